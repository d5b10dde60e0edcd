import type { Timers } from '../base/timers.ts';

/** Waits for `ms`, or until `stop` aborts. */
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
