import { RetryableError, unavailable } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { within } from '../base/timers.ts';
import type { Ledger, Page } from '../ledger/port.ts';
import type { SaleRecord } from '../model/sale.ts';
import type { Sale } from './present.ts';
import { type PublicAnswer, PublicList, type Written } from './public-answer.ts';

/** Public counts may lag by a second, with the time it takes to read them. */
const FRESH_MS = 500;
/** Sales read in one step of the event loop: with 200 items each some milliseconds. */
const STEP_SALES = 10;
/** A page ends with the sale that reaches this: 200 sales of 200 items would be 5 MB for anybody who asks. */
const PAGE_CHARS_MAX = 256 * 1024;
const PAGE_SALES_MAX = 200;
const KEPT_PAGES_MAX = 64;
/** Whoever walks through the list waits here, and is refused when so many wait. */
const WAITING_MAX = 32;
/** Anybody can make up cursors: those that the list has not handed out have few places, and are served last. */
const MADE_UP_WAITING_MAX = 4;
const HANDED_OUT_MAX = 1000;
/** Who wait for any page. They are requests in flight, and must not use up the allowance that orders have. */
const READERS_MAX = 1024;
/** The list takes at most a quarter of the event loop's time, whatever is asked for. */
const PAUSE_FACTOR = 3;
/** While the ledger does not answer, the page that was read last is served; without one, 503. */
const READ_MS_MAX = 1000;
const BUILD_MS_MAX = 5000;

export interface SaleListOn {
  readonly runtime: Runtime;
  readonly ledger: Pick<Ledger, 'listSales'>;
  readonly present: (record: SaleRecord) => Promise<Sale>;
}

/** The sales that follow a cursor, newest first, as they are sent. Whoever asks for fewer gets the first of them. */
interface Run {
  readonly list: PublicList;
  readonly readAtMs: number;
}

interface Waiting {
  readonly before: string | null;
  readonly resolve: (run: Run) => void;
  readonly reject: (error: unknown) => void;
  readonly run: Promise<Run>;
}

/**
 * The public list of sales: read at most twice a second for each cursor and shared by all who look, whatever their limit. It
 * is built step by step, one run at a time with a pause after each, so that readers cannot take the event loop from those
 * who order; the first page goes before all others, and cursors that it has led to before those that somebody made up.
 */
export class SaleList {
  readonly #on: SaleListOn;
  readonly #kept = new Map<string | null, Run>();
  readonly #waiting = new Map<string | null, Waiting>();
  /** Cursors that readers reach from the first page, the most recently used last. */
  readonly #handedOut = new Set<string>();
  #readers = 0;
  #building = false;
  #current: Waiting | null = null;
  /** Raised by every change of a sale: what was read before it is not kept. */
  #changes = 0;

  constructor(on: SaleListOn) {
    this.#on = on;
  }

  async page({ limit, before }: Page): Promise<PublicAnswer> {
    const run = await this.#runOf(before);
    const led = before === null || this.#isHandedOut(before);
    if (before !== null && led) this.#handOut(before);
    const next = run.list.next(limit);
    if (next !== null && led) this.#handOut(next);
    return run.list.answer(limit);
  }

  /** A sale was made or changed: whoever did it must see it at once. */
  changed(): void {
    this.#changes++;
    this.#kept.clear();
    // The page that is being built may lack the change: later callers do not wait for it.
    if (this.#current) this.#leave(this.#current);
  }

  async #runOf(before: string | null): Promise<Run> {
    const { runtime } = this.#on;
    const kept = this.#kept.get(before);
    if (kept && runtime.clock.monotonic() - kept.readAtMs < FRESH_MS) return kept;
    if (kept === undefined) return this.#wait(before);
    const run = await within(runtime.timers, this.#waitOr(before, kept), READ_MS_MAX);
    return run ?? kept;
  }

  async #waitOr(before: string | null, kept: Run): Promise<Run> {
    try {
      return await this.#wait(before);
    } catch {
      return kept;
    }
  }

  async #wait(before: string | null): Promise<Run> {
    if (this.#readers >= READERS_MAX) throw new RetryableError('overloaded', 'too many wait for the list of sales');
    this.#readers++;
    try {
      return await this.#waitFor(before);
    } finally {
      this.#readers--;
    }
  }

  #waitFor(before: string | null): Promise<Run> {
    const waiting = this.#waiting.get(before);
    if (waiting) return waiting.run;
    if (before !== null && this.#isFullFor(before)) {
      return Promise.reject(new RetryableError('overloaded', 'too many pages of the list are being read'));
    }
    const { promise: run, resolve, reject } = Promise.withResolvers<Run>();
    this.#waiting.set(before, { before, resolve, reject, run });
    if (!this.#building) void this.#build();
    return run;
  }

  #isHandedOut(cursor: string | null): boolean {
    return cursor !== null && this.#handedOut.has(cursor);
  }

  #handOut(cursor: string): void {
    this.#handedOut.delete(cursor);
    this.#handedOut.add(cursor);
    if (this.#handedOut.size <= HANDED_OUT_MAX) return;
    for (const oldest of this.#handedOut) {
      this.#handedOut.delete(oldest);
      return;
    }
  }

  /** The two kinds do not take each other's places. */
  #isFullFor(cursor: string): boolean {
    const led = this.#isHandedOut(cursor);
    let taken = 0;
    for (const other of this.#waiting.keys()) if (other !== null && this.#isHandedOut(other) === led) taken++;
    return taken >= (led ? WAITING_MAX : MADE_UP_WAITING_MAX);
  }

  #next(): Waiting | undefined {
    const first = this.#waiting.get(null);
    if (first) return first;
    for (const waiting of this.#waiting.values()) if (this.#isHandedOut(waiting.before)) return waiting;
    return this.#waiting.values().next().value;
  }

  async #build(): Promise<void> {
    const { runtime } = this.#on;
    this.#building = true;
    for (;;) {
      const next = this.#next();
      if (next === undefined) break;
      this.#current = next;
      const busy = { ms: 0 };
      try {
        const changes = this.#changes;
        const run = await within(runtime.timers, this.#read(next.before, busy), BUILD_MS_MAX);
        if (run === null) throw unavailable('the list of sales cannot be read now');
        if (changes === this.#changes) this.#keep(next.before, run);
        next.resolve(run);
      } catch (error) {
        next.reject(error);
      }
      this.#current = null;
      this.#leave(next);
      await new Promise<void>((resolve) => void runtime.timers.after(Math.ceil(PAUSE_FACTOR * busy.ms), resolve));
    }
    this.#building = false;
  }

  #leave(waiting: Waiting): void {
    if (this.#waiting.get(waiting.before) === waiting) this.#waiting.delete(waiting.before);
  }

  async #read(before: string | null, busy: { ms: number }): Promise<Run> {
    const { runtime, ledger, present } = this.#on;
    const { clock, timers } = runtime;
    const sales: Written[] = [];
    let chars = 0;
    let startedMs = clock.monotonic();
    const readAtMs = startedMs;
    const pause = (): void => {
      busy.ms += clock.monotonic() - startedMs;
    };
    const run = (more: boolean): Run => {
      const list = new PublicList(sales, more);
      pause();
      return { list, readAtMs };
    };
    for (let cursor = before; ; ) {
      const reading = ledger.listSales({ limit: STEP_SALES + 1, before: cursor });
      pause();
      const records = await reading;
      startedMs = clock.monotonic();
      for (const record of records.slice(0, STEP_SALES)) {
        if (sales.length === PAGE_SALES_MAX || chars >= PAGE_CHARS_MAX) return run(true);
        const presenting = present(record);
        pause();
        const sale = await presenting;
        startedMs = clock.monotonic();
        const json = JSON.stringify(sale);
        sales.push({ cursor: record.id, json });
        chars += json.length;
        cursor = record.id;
      }
      if (records.length <= STEP_SALES) return run(false);
      pause();
      await new Promise<void>((resolve) => timers.nextTurn(resolve));
      startedMs = clock.monotonic();
    }
  }

  #keep(before: string | null, run: Run): void {
    this.#kept.delete(before);
    this.#kept.set(before, run);
    if (this.#kept.size <= KEPT_PAGES_MAX) return;
    let evicted: string | null = null;
    for (const oldest of this.#kept.keys()) {
      if (oldest === null) continue;
      evicted ??= oldest;
      if (this.#isHandedOut(oldest)) continue;
      evicted = oldest;
      break;
    }
    this.#kept.delete(evicted);
  }
}
