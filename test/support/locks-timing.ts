import { monitorEventLoopDelay } from 'node:perf_hooks';

/** How a call ended, and after how long. */
export interface Ending<T> {
  readonly ms: number;
  readonly value: T | undefined;
  /** The code of its error (or its message, where it has none), or null. */
  readonly failed: string | null;
  readonly error: unknown;
}

/** Never rejects: for calls whose end is looked at later. Given a function, its first turn is counted, too. */
export async function ending<T>(work: Promise<T> | (() => Promise<T>)): Promise<Ending<T>> {
  const beganMs = performance.now();
  try {
    const value = await (typeof work === 'function' ? work() : work);
    return { ms: performance.now() - beganMs, value, failed: null, error: null };
  } catch (error) {
    const { code, message } = error as { code?: string; message: string };
    return { ms: performance.now() - beganMs, value: undefined, failed: code ?? message, error };
  }
}

/** Resolves with how long it took until the signal aborted; rejects after `withinMs`. */
export function aborting(signal: AbortSignal, withinMs: number): Promise<{ ms: number; atMs: number; reason: string }> {
  const beganMs = performance.now();
  return new Promise((resolve, reject) => {
    const end = (): void => {
      clearTimeout(late);
      resolve({ ms: performance.now() - beganMs, atMs: Date.now(), reason: signal.reason.reason });
    };
    const late = setTimeout(() => reject(new Error(`the signal was not aborted within ${withinMs} ms`)), withinMs);
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
  });
}

/** Whether `work` is still under way after `ms`. */
export async function isPendingAfter(work: Promise<unknown>, ms: number): Promise<boolean> {
  const late = Symbol('late');
  const timer = new Promise((resolve) => setTimeout(resolve, ms, late));
  return (await Promise.race([work.catch(() => undefined), timer])) === late;
}

/** How late this very process was at worst: what a span must not be blamed for on a machine that is busy. */
export class Lag {
  readonly #delays = monitorEventLoopDelay({ resolution: 5 });

  constructor() {
    this.#delays.enable();
  }

  /** Since the last reset. */
  get maxMs(): number {
    return this.#delays.max / 1e6;
  }

  reset(): void {
    this.#delays.reset();
  }
}
