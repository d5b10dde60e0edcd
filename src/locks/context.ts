import { AsyncLocalStorage } from 'node:async_hooks';
import type { Hold } from './client/hold.ts';

/** One `run(fn)` that is going on, and those around it. */
export interface Frame {
  readonly holds: readonly Hold[];
  readonly outer: Frame | null;
  /** Ends when fn settles: work that it left behind is outside, though it still carries this frame. */
  active: boolean;
}

const frames = new AsyncLocalStorage<Frame | null>();

/** What the present code runs inside of, innermost first. Frames whose function has settled are left out. */
export function* framesAround(): Generator<Frame> {
  for (let frame = frames.getStore() ?? null; frame; frame = frame.outer) if (frame.active) yield frame;
}

/** Whether the present code is inside any run(fn): cheap, for the path of every acquire. */
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
