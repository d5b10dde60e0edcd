import { RedisUnavailableError } from '../../base/redis/link.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { Marks, StreamStore } from './store.ts';

const POLL_MS_MIN = 5;
const POLL_MS_MAX = 100;

/**
 * Waits until all that is in a channel has left it. Entries leave a stream when they are decided, so the stream's first entry
 * shows how far it has come. A message that is tried again enters the stream anew: while there are such messages, the mark moves on
 * with the stream.
 */
export class CatchUp<M> {
  readonly #store: StreamStore<M>;
  readonly #runtime: Runtime;
  /** The shortest time after which a message that left the stream can come back. */
  readonly #retryMs: number;
  /** Waiters by channel: they look again when a batch of the channel was decided here. */
  readonly #watchers = new Map<string, Set<() => void>>();

  #closed = false;

  constructor(store: StreamStore<M>, runtime: Runtime, retryMs: number) {
    this.#store = store;
    this.#runtime = runtime;
    this.#retryMs = retryMs;
  }

  async wait(channel: string, withinMs: number, idleMs = Infinity): Promise<boolean> {
    const { clock } = this.#runtime;
    const untilMs = clock.monotonic() + withinMs;
    let movedMs = clock.monotonic();
    let decided: number | null = null;
    let marks: Marks | null = null;
    let moving = false;
    let seenMs = 0;
    let pollMs = POLL_MS_MIN;
    for (;;) {
      const now = await this.#look(channel);
      const nowMs = clock.monotonic();
      // While Redis is out nobody can decide anything, so that time does not count as idle.
      if (now === null || now.decided !== decided) movedMs = nowMs;
      if (now !== null) {
        decided = now.decided;
        // The last look is older than the shortest retry: a message may have left and come back unseen.
        if (marks === null || moving || nowMs - seenMs > this.#retryMs / 2) marks = now;
        seenMs = nowMs;
        moving = now.waiting > 0;
        if (!moving && hasPassed(now, marks)) return true;
      }
      if (this.#closed) return false;
      const leftMs = Math.min(untilMs, movedMs + idleMs) - clock.monotonic();
      if (leftMs <= 0) return false;
      await this.#watch(channel, Math.min(pollMs, leftMs));
      pollMs = Math.min(pollMs * 2, POLL_MS_MAX, this.#retryMs / 4);
    }
  }

  /** A batch of this channel was decided here. */
  decided(channel: string): void {
    for (const look of this.#watchers.get(channel) ?? []) look();
  }

  /** Nobody waits any longer. */
  close(): void {
    this.#closed = true;
    for (const watchers of [...this.#watchers.values()]) for (const look of [...watchers]) look();
  }

  /** Null: Redis cannot be asked now. */
  async #look(channel: string): Promise<Marks | null> {
    try {
      return await this.#store.marks(channel);
    } catch (error) {
      if (error instanceof RedisUnavailableError) return null;
      throw error;
    }
  }

  #watch(channel: string, ms: number): Promise<void> {
    return new Promise((resolve) => {
      const watchers = this.#watchers.get(channel) ?? new Set();
      this.#watchers.set(channel, watchers);
      const done = (): void => {
        cancel();
        watchers.delete(done);
        if (watchers.size === 0 && this.#watchers.get(channel) === watchers) this.#watchers.delete(channel);
        resolve();
      };
      const cancel = this.#runtime.timers.after(ms, done);
      watchers.add(done);
    });
  }
}

/** Whether everything up to these marks has left. */
function hasPassed(now: Marks, marks: Marks): boolean {
  return now.streams.every(({ epoch, first }) => {
    const mark = marks.streams.find((one) => one.epoch === epoch);
    return mark === undefined || isAfter(first, mark.last);
  });
}

/** Compares entry ids, `<ms>-<number>`. */
function isAfter(one: string, other: string): boolean {
  const [ms, number] = one.split('-').map(Number) as [number, number];
  const [otherMs, otherNumber] = other.split('-').map(Number) as [number, number];
  return ms > otherMs || (ms === otherMs && number > otherNumber);
}
