import { messageOf } from '../base/errors.ts';
import { Grouped } from '../base/grouped.ts';
import type { IdSequence } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { Seldom } from '../base/seldom.ts';
import { type Round, sweep } from '../base/sweep.ts';
import type { Gate } from '../gate/port.ts';
import type { AttemptOpened, Ledger, Move, Moved, NewAttempt } from '../ledger/port.ts';
import type { Locks } from '../locks/locks.ts';
import type { CheckedProvider } from '../orders/life/answers.ts';
import { LifeKeepers } from '../orders/life/keepers.ts';
import { ProviderWatch } from '../orders/life/lanes.ts';
import { OrderLife } from '../orders/life/life.ts';
import type { Reached } from '../orders/life/points.ts';
import { Releaser, type ReleaserCounters } from '../orders/life/releaser.ts';
import type { PlaceRequest, PlaceResult } from '../orders/place.ts';
import type { PaymentProvider } from '../payments/port.ts';
import { SandboxProvider } from '../payments/sandbox.ts';
import { OrderLock } from './order-lock.ts';

export interface PaymentOptions {
  /** The provider for trying things out. */
  readonly sandbox: boolean;
  /** A shop's own, by name. */
  readonly providers?: readonly PaymentProvider[];
  /** How long a buyer waits for the provider before the payment is left `pending`. */
  readonly answerWithinMs?: number;
}

export interface ShopLifeParts {
  readonly runtime: Runtime;
  readonly ledger: Ledger;
  readonly gate: Gate;
  readonly locks: Locks;
  readonly attemptIds: IdSequence;
  readonly auditIds: IdSequence;
  readonly payments: PaymentOptions;
  readonly reached: Reached;
  place(request: PlaceRequest): Promise<PlaceResult>;
  touched(saleId: string): void;
  moved(move: Move, moved: Moved): void;
  committed(moves: number, durationMs: number): void;
  /** A failure of the ledger here is known everywhere. */
  watched<T>(work: Promise<T>): Promise<T>;
}

const ROUND_MS = 250;
/** What fails is tried less and less often, but soon enough after an outage. */
const ROUND_MS_MAX = 2000;
/** Orders of a leader that was killed expire so much later, at most. Two that lead only do some work twice. */
const LEAD_LEASE_MS = 5000;
const ANSWER_WITHIN_MS = 5000;
/** Of expiry and of payments, which need nothing but the ledger: about twenty seconds in which this process did not reach it. */
const FAILURES_MAX = 12;
/** Of one part while others are well, which is about five minutes: what this process cannot reach, another may. */
const FAILURES_MAX_ALONE = 150;

/** One of those that look after orders. */
interface Part {
  readonly name: string;
  readonly round: (signal: AbortSignal) => Promise<Round>;
  /** In a row. */
  failures: number;
}

/**
 * The life of orders in a shop, put together:
 *
 *     pay, cancel, refund, webhook ──▶ life ──▶ mover ══▶ ledger ──▶ releaser ──▶ gate
 *     keepers (one process leads): expiry, open and late payments, releases that were left ──▶ the same
 */
export class ShopLife {
  readonly life: OrderLife;
  readonly keepers: LifeKeepers;
  readonly providers = new Map<string, CheckedProvider>();
  readonly #moves: Grouped<Move, Moved>;
  readonly #attempts: Grouped<NewAttempt, AttemptOpened>;
  readonly #releaser: Releaser;
  readonly #sandbox: SandboxProvider | null = null;
  readonly #runtime: Runtime;
  readonly #seldom: Seldom;
  #inLine = false;
  #leader: { stop(): Promise<void> } | null = null;

  constructor(parts: ShopLifeParts) {
    const { runtime, ledger, gate, locks, payments, reached, attemptIds, auditIds } = parts;
    this.#runtime = runtime;
    this.#seldom = new Seldom(runtime.clock);
    this.#releaser = new Releaser({ ledger, gate, touched: parts.touched, reached }, runtime);
    this.#moves = new Grouped(
      async (batch) => {
        const startedMs = runtime.clock.monotonic();
        const moved = await parts.watched(ledger.moveOrders(batch));
        parts.committed(batch.length, runtime.clock.monotonic() - startedMs);
        return moved;
      },
      runtime,
      { atOnce: ledger.atOnce, answered: (move, moved) => parts.moved(move, moved) },
    );
    this.#attempts = new Grouped((batch) => parts.watched(ledger.openAttempts(batch)), runtime, {
      atOnce: ledger.atOnce,
    });
    const watch = new ProviderWatch(runtime);
    for (const provider of payments.providers ?? []) this.providers.set(provider.name, watch.over(provider));
    const lock = new OrderLock(locks, runtime);
    const withLock: typeof lock.run = (orderId, waitMs, work) => lock.run(orderId, waitMs, work);
    this.life = new OrderLife({
      runtime,
      ledger,
      moves: this.#moves,
      attempts: this.#attempts,
      withLock,
      release: (freed) => this.#releaser.add(freed),
      providers: this.providers,
      attemptIds,
      auditIds,
      answerWithinMs: payments.answerWithinMs ?? ANSWER_WITHIN_MS,
      reached,
    });
    if (payments.sandbox) {
      this.#sandbox = new SandboxProvider(ledger, runtime, (news) => this.life.heard(news));
      this.providers.set(this.#sandbox.name, watch.over(this.#sandbox));
    }
    this.keepers = new LifeKeepers({
      runtime,
      ledger,
      life: this.life,
      watch,
      withLock,
      auditIds,
      place: parts.place,
      reached,
    });
  }

  /**
   * From now on this process looks after orders that nobody asks about; with `locks`, when it is the one of the cluster that
   * leads.
   */
  start(locks: Locks | null): void {
    if (locks === null) {
      // Does not keep the process alive, as a leader would.
      const ended = new AbortController();
      const led = this.#lead(ended.signal).catch(() => undefined);
      this.#leader = {
        stop: () => {
          ended.abort();
          return led;
        },
      };
      return;
    }
    this.#inLine = true;
    this.#leader = locks.leader('life', ({ signal }) => this.#lead(signal), { lease: LEAD_LEASE_MS });
  }

  /**
   * Each part at its own pace: a provider that hangs, or a gate that is out, does not keep others' orders from their end. A
   * part that fails backs off alone. The process hands over when it is of no use, and stands in line again at once: after
   * a failed job it would wait for up to a minute, and may be the only one.
   */
  async #lead(signal: AbortSignal): Promise<void> {
    const { log } = this.#runtime;
    const sandbox = this.#sandbox;
    const part = (name: string, round: Part['round']): Part => ({ name, round, failures: 0 });
    const expiry = part('expiry', (either) => this.keepers.expire(either));
    const payments = part('payments', (either) => this.keepers.payments(either));
    const parts = [
      expiry,
      payments,
      part('refunds', (either) => this.keepers.refunds(either)),
      part('releases', () => this.#releaser.sweep()),
      ...(sandbox === null ? [] : [part('sandbox', () => sandbox.round())]),
    ];
    const ended = new AbortController();
    const either = AbortSignal.any([signal, ended.signal]);
    const failed = ({ name, failures }: Part, error: unknown): void => {
      const useless = Math.min(expiry.failures, payments.failures) >= FAILURES_MAX;
      if (!this.#inLine || !(useless || failures >= FAILURES_MAX_ALONE) || either.aborted) return;
      if (this.#seldom.may('fails on')) {
        log.warn({ part: name, reason: messageOf(error) }, 'a keeper of orders fails on; another process may lead');
      }
      ended.abort();
    };
    try {
      await Promise.all(parts.map((one) => this.#goOn(one, either, failed)));
    } finally {
      ended.abort();
      this.keepers.forget();
      this.#releaser.forget();
    }
  }

  /** Units on their way back to the gate, as far as this process looks after them. */
  get releases(): ReleaserCounters {
    return this.#releaser.counters;
  }

  #goOn(part: Part, signal: AbortSignal, failed: (part: Part, error: unknown) => void): Promise<void> {
    const { timers, log } = this.#runtime;
    const { name } = part;
    const round = async (): Promise<Round> => {
      try {
        const done = await part.round(signal);
        part.failures = 0;
        return done;
      } catch (error) {
        part.failures++;
        failed(part, error);
        throw error;
      }
    };
    return sweep(timers, round, {
      signal,
      pauseMs: ROUND_MS,
      pauseMsMax: ROUND_MS_MAX,
      failed: (error) => {
        const reason = messageOf(error);
        // An outage is met by all parts, and again by each whenever this process leads anew.
        if (!this.#seldom.may(`failed: ${reason}`)) return;
        log.warn({ part: name, reason }, 'a keeper of orders failed; it tries on');
      },
    });
  }

  async stop(): Promise<void> {
    await this.#leader?.stop();
    // Not before: whoever leads next need not wait for what a provider may never answer.
    await this.keepers.idle();
    await this.#moves.idle();
    await this.#releaser.idle();
  }
}
