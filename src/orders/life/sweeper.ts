import { messageOf } from '../../base/errors.ts';
import { Seldom } from '../../base/seldom.ts';
import { pages, type Round, sweep } from '../../base/sweep.ts';
import type { DueOrder } from '../../ledger/port.ts';
import type { DuePayments } from './due.ts';
import type { Life } from './life.ts';
import { move } from './move.ts';
import { SWEEPER } from './revive.ts';

/** Runs the work until it is stopped, in one process of the cluster at a time. `alone`: there is no other process. */
export type Lead = (
  work: (signal: AbortSignal, alone: boolean) => Promise<void>,
  options: { lease: number },
) => { stop(): Promise<void> };

/** One of the loops, which each go at their own pace. */
interface Part {
  readonly name: string;
  readonly round: (signal: AbortSignal) => Promise<Round>;
  /** In a row. */
  failures: number;
}

const ROUND_MS = 250;
/** A part that fails is tried less and less often, but soon enough after an outage. */
const ROUND_MS_MAX = 2000;
/** Orders expire at most so much later if the leader was killed. Two leaders at once only do some work twice. */
const LEAD_LEASE_MS = 5000;
/** Failures of both expiry and payments, which need only the ledger: about twenty seconds without reaching it. */
const FAILURES_MAX = 12;
/** Failures of one part while others are well, about five minutes: another process may reach what this one cannot. */
const FAILURES_MAX_ALONE = 150;
/** Orders that are read, and then moved in one transaction. */
const DUE_MAX = 256;

/**
 * Does what happens to orders without anybody's asking: ends those whose time is over, looks after payments and refunds
 * (due.ts), and gives the gate the units and tells it the moves that were left to it (releaser.ts, seat-mover.ts). One process of
 * the cluster does it at a time.
 */
export class Sweeper {
  readonly due: DuePayments;
  readonly #life: Life;
  readonly #sandbox: ((signal: AbortSignal) => Promise<Round>) | null;
  readonly #lead: Lead;
  readonly #seldom: Seldom;
  #leader: { stop(): Promise<void> } | null = null;

  /** `sandbox`: a round of the sandbox provider, if the shop has it. */
  constructor(life: Life, due: DuePayments, sandbox: (() => Promise<Round>) | null, lead: Lead) {
    this.due = due;
    this.#life = life;
    this.#sandbox = sandbox;
    this.#lead = lead;
    this.#seldom = new Seldom(life.runtime.clock);
  }

  /** From now on this process sweeps whenever it leads. */
  start(): void {
    this.#leader = this.#lead((signal, alone) => this.#sweep(signal, alone), { lease: LEAD_LEASE_MS });
  }

  async stop(): Promise<void> {
    const { moves, releaser, seatMover } = this.#life;
    await this.#leader?.stop();
    // Only now: the next leader need not wait for what a provider may never answer.
    await this.due.idle();
    await moves.idle();
    await releaser.idle();
    await seatMover.idle();
  }

  /**
   * Each part goes at its own pace: a provider that hangs, or a gate that is out, does not keep others' orders from their end.
   * A part that fails backs off alone. When the process is of no use as a leader it hands over by returning, and stands in
   * line again at once: after a failed job it would wait for up to a minute, and may be the only one.
   */
  async #sweep(signal: AbortSignal, alone: boolean): Promise<void> {
    const { log } = this.#life.runtime;
    const part = (name: string, round: Part['round']): Part => ({ name, round, failures: 0 });
    const expiry = part('expiry', (either) => this.expire(either));
    const payments = part('payments', (either) => this.due.payments(either));
    const parts = [
      expiry,
      payments,
      part('refunds', (either) => this.due.refunds(either)),
      part('releases', () => this.#life.releaser.sweep()),
      part('seat moves', () => this.#life.seatMover.sweep()),
      ...(this.#sandbox === null ? [] : [part('sandbox', this.#sandbox)]),
    ];
    const ended = new AbortController();
    const either = AbortSignal.any([signal, ended.signal]);
    const failed = ({ name, failures }: Part, error: unknown): void => {
      const useless = Math.min(expiry.failures, payments.failures) >= FAILURES_MAX;
      if (alone || !(useless || failures >= FAILURES_MAX_ALONE) || either.aborted) return;
      if (this.#seldom.may('fails on')) {
        log.warn({ part: name, reason: messageOf(error) }, 'the order sweeper keeps failing; another process may lead');
      }
      ended.abort();
    };
    try {
      await Promise.all(parts.map((one) => this.#goOn(one, either, failed)));
    } finally {
      ended.abort();
      this.due.forget();
      this.#life.releaser.forget();
      this.#life.seatMover.forget();
    }
  }

  #goOn(part: Part, signal: AbortSignal, failed: (part: Part, error: unknown) => void): Promise<void> {
    const { timers, log } = this.#life.runtime;
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
        // All parts meet an outage, and each meets it again whenever this process leads anew.
        if (!this.#seldom.may(`failed: ${reason}`)) return;
        log.warn({ part: name, reason }, 'the order sweeper failed; it tries again');
      },
    });
  }

  /** Ends orders whose time is over, in one pass. However many have an open payment, those stay as they are. */
  async expire(signal?: AbortSignal): Promise<Round> {
    const { ledger, reached, runtime } = this.#life;
    const acting = { by: SWEEPER, fence: null };
    const read = (limit: number, after?: DueOrder) => ledger.dueOrders(limit, after);
    let changed = 0;
    let failure: PromiseRejectedResult | undefined;
    for await (const due of pages<DueOrder>(runtime.timers, DUE_MAX, read, signal)) {
      reached('expire:found');
      // They are moved in the same turn, and so in one transaction.
      const ready = due.filter(({ paying }) => !paying);
      const moved = await Promise.allSettled(ready.map(({ orderId }) => move(this.#life, orderId, 'expire', acting)));
      reached('expire:committed');
      changed += moved.filter((end) => end.status === 'fulfilled' && end.value.outcome === 'moved').length;
      failure ??= moved.find((end) => end.status === 'rejected');
    }
    if (failure) throw failure.reason;
    return { changed, more: false };
  }
}
