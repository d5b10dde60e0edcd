import { BOARD } from './board.ts';
import { EDGE_SEATS } from './edge-seats.ts';
import { GATE } from './gate.ts';
import { GATE_SEATS } from './gate-seats.ts';
import { LEDGER } from './ledger.ts';
import { LEDGER_SEATS } from './ledger-seats.ts';
import { LIFE } from './life.ts';
import { LIKES } from './likes.ts';
import type { Mutant } from './mutant.ts';
import { SALE_CHANGES } from './sale-changes.ts';
import { SEATS } from './seats.ts';
import { SOCIAL } from './social.ts';
import { WRITER } from './writer.ts';

export const MUTANTS: Readonly<Record<string, readonly Mutant[]>> = {
  gate: GATE,
  'gate, seats': GATE_SEATS,
  ledger: LEDGER,
  'ledger, seats': LEDGER_SEATS,
  writer: WRITER,
  life: LIFE,
  social: SOCIAL,
  board: BOARD,
  likes: LIKES,
  seats: SEATS,
  'sale changes': SALE_CHANGES,
  'seats, edge': EDGE_SEATS,
};
