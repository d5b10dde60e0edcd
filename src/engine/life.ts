import { Grouped } from '../base/grouped.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Gate } from '../gate/port.ts';
import type { AttemptOpened, Ledger, Move, Moved, NewAttempt } from '../ledger/port.ts';
import { DuePayments } from '../orders/life/due.ts';
import type { Life } from '../orders/life/life.ts';
import { type Mutexes, OrderLock } from '../orders/life/lock.ts';
import { hear } from '../orders/life/news.ts';
import { type CheckedProvider, ProviderWatch } from '../orders/life/provider.ts';
import { Releaser } from '../orders/life/releaser.ts';
import type { Place } from '../orders/life/revive.ts';
import { SeatMover } from '../orders/life/seat-mover.ts';
import { type Lead, Sweeper } from '../orders/life/sweeper.ts';
import type { PaymentProvider } from '../payments/port.ts';
import { SandboxProvider } from '../payments/sandbox.ts';

export interface PaymentOptions {
  /** The provider for trying things out. */
  readonly sandbox: boolean;
  /** A shop's own, by name. */
  readonly providers?: readonly PaymentProvider[];
  /** How long a buyer waits for the provider before the payment is left `pending`. */
  readonly answerWithinMs?: number;
}

export interface LifeParts extends Pick<Life, 'attemptIds' | 'auditIds' | 'reached' | 'queuedOrder'> {
  readonly runtime: Runtime;
  readonly ledger: Ledger;
  readonly gate: Gate;
  readonly locks: Mutexes;
  readonly payments: PaymentOptions;
  readonly place: Place;
  readonly lead: Lead;
  touched(saleId: string): void;
  moved(move: Move, moved: Moved): void;
  committed(moves: number, durationMs: number): void;
  /** A failure of the ledger here is known everywhere. */
  watched<T>(work: Promise<T>): Promise<T>;
}

const ANSWER_WITHIN_MS = 5000;

/**
 * The life of orders in a shop, put together:
 *
 *     pay, cancel, refund, news ──▶ moves ══▶ ledger ──▶ releaser ──▶ gate
 *     sweeper (one process leads): expiry, open and late payments, releases that were left ──▶ the same
 */
export function wireLife(parts: LifeParts): { life: Life; sweeper: Sweeper } {
  const { runtime, ledger, gate, locks, payments, reached, attemptIds, auditIds, queuedOrder } = parts;
  const { atOnce } = ledger;
  const watch = new ProviderWatch(runtime);
  const providers = new Map<string, CheckedProvider>();
  /** The gate shows the seats of a paid order as sold. If it does not hear of it, they are reserved there: no less taken. */
  const showSold = ({ outcome, order }: Moved): void => {
    if (outcome !== 'moved' || order?.status !== 'paid' || order.seats === undefined) return;
    const { saleId, id, buyer } = order;
    gate.paid(saleId, [{ orderId: id, buyer }]).then(
      () => parts.touched(saleId),
      (error: unknown) => runtime.log.debug({ err: error, orderId: id }, 'the gate was not told of a paid order'),
    );
  };
  const life: Life = {
    runtime,
    ledger,
    moves: new Grouped<Move, Moved>(
      async (batch) => {
        const startedMs = runtime.clock.monotonic();
        const moved = await parts.watched(ledger.moveOrders(batch));
        parts.committed(batch.length, runtime.clock.monotonic() - startedMs);
        return moved;
      },
      runtime,
      {
        atOnce,
        answered: (move, moved) => {
          parts.moved(move, moved);
          showSold(moved);
        },
      },
    ),
    attempts: new Grouped<NewAttempt, AttemptOpened>((batch) => parts.watched(ledger.openAttempts(batch)), runtime, {
      atOnce,
    }),
    lock: new OrderLock(locks, runtime),
    releaser: new Releaser({ ledger, gate, touched: parts.touched, reached }, runtime),
    seatMover: new SeatMover({ ledger, gate, touched: parts.touched }, runtime),
    providers,
    attemptIds,
    auditIds,
    answerWithinMs: payments.answerWithinMs ?? ANSWER_WITHIN_MS,
    reached,
    queuedOrder,
  };
  const sandbox = payments.sandbox ? new SandboxProvider(ledger, runtime, (news) => hear(life, news)) : null;
  for (const provider of [...(payments.providers ?? []), ...(sandbox === null ? [] : [sandbox])]) {
    providers.set(provider.name, watch.over(provider));
  }
  const due = new DuePayments(life, watch, parts.place);
  return { life, sweeper: new Sweeper(life, due, sandbox && (() => sandbox.round()), parts.lead) };
}
