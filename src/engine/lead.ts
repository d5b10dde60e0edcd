import type { LeaderOptions } from '../locks/leader.ts';
import type { Locks } from '../locks/locks.ts';

/** Runs a job until it is stopped: in one process of the cluster at a time or, without `locks`, in this one. */
export function lead(
  locks: Locks | null,
  job: string,
  work: (signal: AbortSignal, alone: boolean) => Promise<void>,
  options?: LeaderOptions,
): { stop(): Promise<void> } {
  if (locks !== null) return locks.leader(job, ({ signal }) => work(signal, false), options);
  // Does not keep the process alive, as a leader would.
  const ended = new AbortController();
  // A job that fails must not take the process down with it.
  const done = work(ended.signal, true).catch(() => undefined);
  return {
    stop: () => {
      ended.abort();
      return done;
    },
  };
}
