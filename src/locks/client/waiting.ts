import type { LockClient } from './client.ts';
import { eventOf } from './events.ts';
import type { Address } from './port.ts';
import type { Waiter } from './waiter.ts';
import { keyOf } from './wanted.ts';

/** Those who wait for one lock in this process, oldest first, and the timer that looks after the oldest. */
export interface Line {
  readonly key: string;
  readonly waiters: Set<Waiter>;
  stop: (() => void) | null;
  dueMs: number;
}

/** A silent queue is checked when the present lease ends, and at least so often: a lease may be an hour. */
export const LOOK_MS_MAX = 3000;
const LOOK_MS_MIN = 10;

/**
 * Who waits for what in this process. Wake-ups do the work (handing-over.ts). This heals what they cannot: a holder that
 * died, so that its lease ends, and a message that was lost.
 */
export class Waiting {
  readonly #client: LockClient;
  readonly #lines = new Map<string, Line>();

  constructor(client: LockClient) {
    this.#client = client;
  }

  join(waiter: Waiter, retryMs: number, ticket: number): void {
    this.queued(waiter, ticket);
    if (!waiter.line) {
      const { key } = waiter;
      let line = this.#lines.get(key);
      if (!line) {
        line = { key, waiters: new Set(), stop: null, dueMs: Infinity };
        this.#lines.set(key, line);
      }
      waiter.line = line;
      line.waiters.add(waiter);
    }
    this.#tend(waiter.line!, retryMs);
  }

  queued(waiter: Waiter, ticket: number): void {
    waiter.queued = true;
    waiter.ticket = ticket;
    if (waiter.told) return;
    waiter.told = true;
    const { emitter } = this.#client;
    if (emitter.hears('waiting')) emitter.tell('waiting', eventOf(waiter));
  }

  leave(waiter: Waiter, line: Line): void {
    waiter.line = null;
    line.waiters.delete(waiter);
    if (line.waiters.size > 0) return;
    line.stop?.();
    this.#lines.delete(line.key);
  }

  /** The one timer of a line. The oldest waiter asks again, by its ticket, which also lets the store move on. */
  #tend(line: Line, retryMs: number): void {
    const { runtime, asking } = this.#client;
    const afterMs = Math.min(Math.max(retryMs, LOOK_MS_MIN), LOOK_MS_MAX) + 2;
    const dueMs = this.#client.nowMs() + afterMs;
    if (line.stop && line.dueMs <= dueMs) return;
    line.stop?.();
    line.dueMs = dueMs;
    line.stop = runtime.timers.after(afterMs, () => {
      line.stop = null;
      line.dueMs = Infinity;
      const [oldest] = line.waiters;
      if (!oldest) return;
      // Should its answer not come, the line must still be tended.
      this.#tend(line, LOOK_MS_MAX);
      asking.ask(oldest);
    });
  }

  /**
   * One that waited found itself out of the queue, or had to ask for what it should have been told: the store has lost the
   * queue, or messages. Those who wait with it were most likely lost as well.
   */
  askOthers(waiter: Waiter): void {
    this.askAll(waiter.wanted, waiter);
  }

  askAll(address: Address, but: Waiter | null = null): void {
    for (const waiter of this.#lines.get(keyOf(address))?.waiters ?? []) {
      if (waiter !== but && !waiter.asking) this.#client.asking.ask(waiter);
    }
  }

  /** The store says that nobody waits for it: whoever waits here was lost, and the first asks again. */
  nobodyQueued(address: Address): void {
    // Most releases find no line at all: they need not build a key.
    if (this.#lines.size === 0) return;
    const waiters = [...(this.#lines.get(keyOf(address))?.waiters ?? [])];
    if (waiters.length > 0 && !waiters.some((waiter) => waiter.asking)) this.#client.asking.ask(waiters[0]!);
  }
}
