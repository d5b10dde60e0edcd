import type { Runtime } from '../../base/runtime.ts';
import type { Gate } from '../../gate/port.ts';
import type { ReleaseLedger, WaitingRelease } from '../../ledger/port.ts';
import { Outbox } from './outbox.ts';

export interface Freed {
  readonly orderId: string;
  readonly saleId: string;
  readonly buyer: string;
}

export interface ReleaserOptions {
  readonly ledger: Pick<ReleaseLedger, 'releases' | 'released'>;
  readonly gate: Pick<Gate, 'release'>;
  /** The counts of this sale have changed. */
  touched(saleId: string): void;
  /** A point between two steps, for tests that end the process there. */
  reached(point: 'release:committed' | 'release:in-gate'): void;
}

/**
 * Units on their way from the ledger, which has committed that they are free, back to the gate (P4). The row of the outbox
 * stands until the gate has them; releasing twice does nothing, since the hold is gone.
 */
export class Releaser extends Outbox<Freed, WaitingRelease> {
  constructor({ ledger, gate, touched, reached }: ReleaserOptions, runtime: Runtime) {
    super(
      {
        read: (limit, olderMs, after) => ledger.releases(limit, olderMs, after),
        tell: ({ saleId, orderId, buyer }) => gate.release(saleId, { orderId, buyer }),
        told: (freed) => ledger.released(freed.map(({ orderId }) => orderId)),
        touched,
        reached: (point) => reached(`release:${point}`),
        words: {
          waiting: 'units cannot be given back to the gate now; they wait',
          stuck: 'units that are free do not come back to the gate: nobody can buy them',
        },
      },
      runtime,
    );
  }
}
