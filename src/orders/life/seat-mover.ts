import type { Runtime } from '../../base/runtime.ts';
import type { Gate } from '../../gate/port.ts';
import type { SeatLedger, SeatMove, WaitingSeatMove } from '../../ledger/port.ts';
import { Outbox } from './outbox.ts';

export interface SeatMoverOptions {
  readonly ledger: Pick<SeatLedger, 'seatMoves' | 'seatMovesTold'>;
  readonly gate: Pick<Gate, 'moveSeats'>;
  /** The seats of this sale have changed. */
  touched(saleId: string): void;
}

/**
 * Orders that the ledger has moved to other seats, on their way to the gate: there the house still holds the new seats for them,
 * and the old ones are not free. The gate ignores a move that is older than the last one it has heard of.
 */
export class SeatMover extends Outbox<SeatMove, WaitingSeatMove> {
  constructor({ ledger, gate, touched }: SeatMoverOptions, runtime: Runtime) {
    super(
      {
        read: (limit, olderMs, after) => ledger.seatMoves(limit, olderMs, after),
        tell: (move) => gate.moveSeats(move.saleId, move),
        told: (moves) => ledger.seatMovesTold(moves),
        touched,
        reached: () => undefined,
        words: {
          waiting: 'orders were moved to other seats, and the gate cannot be told now; they wait',
          stuck: 'orders were moved to other seats, and the gate does not hear of it: their old seats are not free',
        },
      },
      runtime,
    );
  }
}
