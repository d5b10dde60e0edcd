import type { Attacker } from './attacker.ts';
import { anonymousReaders } from './attackers/anonymous-readers.ts';
import { badCredentials } from './attackers/bad-credentials.ts';
import { connectionChurn } from './attackers/connection-churn.ts';
import { declinedCards } from './attackers/declined-cards.ts';
import { forwardedFor } from './attackers/forwarded-for.ts';
import { halfSent } from './attackers/half-sent.ts';
import { largeBodies } from './attackers/large-bodies.ts';
import { pendingPayments } from './attackers/pending-payments.ts';
import { pipelinedBehindStream } from './attackers/pipelined-behind-stream.ts';
import { refusedOrders } from './attackers/refused-orders.ts';
import { routerGarbage } from './attackers/router-garbage.ts';
import { streamChurn } from './attackers/stream-churn.ts';
import { streamHoard } from './attackers/stream-hoard.ts';

/** All known attacks. Add new ones here. */
export const ATTACKERS: readonly Attacker[] = [
  pipelinedBehindStream,
  streamChurn,
  halfSent,
  badCredentials,
  declinedCards,
  routerGarbage,
  anonymousReaders,
  refusedOrders,
  streamHoard,
  pendingPayments,
  forwardedFor,
  connectionChurn,
  largeBodies,
];
