import type { Timers } from '../base/timers.ts';

/** Waits, but not when there is nothing left to wait for. */
export function pause(timers: Timers, ms: number, stop: AbortSignal): Promise<void> {
  if (stop.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const wake = (): void => {
      cancel();
      stop.removeEventListener('abort', wake);
      resolve();
    };
    const cancel = timers.after(ms, wake);
    stop.addEventListener('abort', wake);
  });
}
