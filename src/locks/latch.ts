import { checkedCount, checkedDuration, checkedSignal, checkedSpan, refuseUnknown } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import { AbortedError, TimeoutError, UnavailableError } from './client/errors.ts';

export interface LatchOptions {
  /** For how long a latch is kept after it was last set or counted, in milliseconds. Default a day. */
  keep?: number;
}

export interface LatchWait {
  /** How long to wait, in milliseconds. Without it, as long as it takes. */
  wait?: number;
  signal?: AbortSignal;
}

const LATCH_OPTIONS: ReadonlySet<string> = new Set(['keep']);
const WAIT_OPTIONS: ReadonlySet<string> = new Set(['wait', 'signal']);

/** A look at this interval heals lost wake-ups. */
const LOOK_MS = 10_000;
const OUT_MS = 250;

/**
 * Waits until so many things have happened. A latch that was never set, or that has gone, is open; set it before those who
 * wait for it ask.
 */
export class Latch {
  readonly name: string;
  readonly #client: LockClient;
  readonly #keepMs: number;

  constructor(client: LockClient, name: string, options: LatchOptions) {
    refuseUnknown(options, LATCH_OPTIONS, 'latch');
    this.name = name;
    this.#client = client;
    this.#keepMs = checkedDuration(options.keep ?? 86_400_000, 'keep', 100);
  }

  /** Sets the count, whatever it was. Those who wait go on waiting for the new one. */
  async reset(count: number): Promise<void> {
    await this.#patiently(() => this.#client.open.latchSet(this.name, checkedCount(count, 'count', 0), this.#keepMs));
  }

  /** Counts down, not below 0. What is left. */
  async countDown(by = 1): Promise<number> {
    const rid = this.#client.nextRid();
    // Sent again when its answer was lost, it counts once: by its request id.
    return await this.#patiently(() =>
      this.#client.open.latchDown(this.name, rid, checkedCount(by, 'by', 1), this.#keepMs),
    );
  }

  async count(): Promise<number> {
    return (await this.#client.open.latchLook(this.name, null)).count;
  }

  /** Resolves when the count is 0. TimeoutError, AbortedError, UnavailableError. */
  async wait(options: LatchWait = {}): Promise<void> {
    refuseUnknown(options, WAIT_OPTIONS, 'wait of a latch');
    const { wait = Infinity } = options;
    const signal = checkedSignal(options.signal);
    const { runtime, settings } = this.#client;
    const waitMs = checkedSpan(wait, 'wait', 0);
    const rid = this.#client.nextRid();
    const untilMs = this.#client.nowMs() + waitMs;
    let outSinceMs = 0;
    const timers: { wake: (() => void) | null } = { wake: null };
    let woken = false;
    const stopLooking = this.#client.onLook(rid, () => {
      woken = true;
      timers.wake?.();
    });
    const aborted = (): void => timers.wake?.();
    signal?.addEventListener('abort', aborted, { once: true });
    let registered = false;
    try {
      for (;;) {
        if (signal?.aborted)
          throw new AbortedError(`waiting for latch "${this.name}" was aborted`, { cause: signal.reason });
        if (this.#client.closed) throw new AbortedError('the locks were closed');
        let pauseMs = LOOK_MS;
        woken = false;
        try {
          if (waitMs > 0) await this.#client.store.listen({ kind: 'latch', name: this.name });
          registered = waitMs > 0;
          const { count } = await this.#client.store.latchLook(this.name, registered ? rid : null);
          outSinceMs = 0;
          if (count === 0) {
            registered = false;
            return;
          }
        } catch (error) {
          if (!(error instanceof UnavailableError)) throw error;
          const nowMs = this.#client.nowMs();
          outSinceMs ||= nowMs;
          if (nowMs - outSinceMs >= settings.outageMs) throw error;
          pauseMs = OUT_MS;
        }
        const leftMs = untilMs - this.#client.nowMs();
        if (leftMs <= 0) {
          if (outSinceMs === 0) throw new TimeoutError(`latch "${this.name}" did not open within ${waitMs} ms`);
          const why = this.#client.store.trouble ?? 'its store does not answer';
          throw new UnavailableError(`latch "${this.name}" could not be looked at: ${why}`);
        }
        if (woken || signal?.aborted) continue;
        await new Promise<void>((resolve) => {
          const stop = runtime.timers.after(Math.min(leftMs, pauseMs), resolve);
          timers.wake = () => {
            stop();
            resolve();
          };
        });
        timers.wake = null;
      }
    } finally {
      stopLooking();
      signal?.removeEventListener('abort', aborted);
      if (registered) this.#client.store.latchLeave(this.name, rid).catch(() => undefined);
    }
  }

  async #patiently<T>(command: () => Promise<T>): Promise<T> {
    return await this.#client.patiently(command);
  }
}
