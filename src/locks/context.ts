import { AsyncLocalStorage } from 'node:async_hooks';
import type { Hold } from './client/hold.ts';

/** A `run(fn)` that is in progress, and those around it. */
export interface Frame {
  readonly holds: readonly Hold[];
  readonly outer: Frame | null;
  /** False once fn has settled: work that it left behind still carries this frame, but is outside. */
  active: boolean;
}

const frames = new AsyncLocalStorage<Frame | null>();

/** The frames around the running code, innermost first, without those whose function has settled. */
export function* framesAround(): Generator<Frame> {
  for (let frame = frames.getStore() ?? null; frame; frame = frame.outer) if (frame.active) yield frame;
}

/** Whether the running code is inside any run(fn). Cheap: every acquire asks. */
export function isInside(): boolean {
  return frames.getStore() != null;
}

export async function runInside<T>(holds: readonly Hold[], fn: () => Promise<T> | T): Promise<T> {
  const frame: Frame = { holds, outer: frames.getStore() ?? null, active: true };
  try {
    return await frames.run(frame, fn);
  } finally {
    frame.active = false;
  }
}

/**
 * Runs `fn` as if no lock were held around it. For work that is started inside run(fn) and is not part of it: a batch that
 * serves others as well, a queue, a connection pool.
 */
export function outside<T>(fn: () => T): T {
  return frames.run(null, fn);
}
