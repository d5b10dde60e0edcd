/** What a library must be able to do to be compared; one file per library in `bench/baselines/locks/`, ours beside this. */
export interface LockAdapter {
  readonly name: string;
  /** What was chosen, printed beside the figures. */
  readonly settings: string;
  /** The one kind of measurement these settings make a difference to; all when absent. */
  readonly only?: 'uncontended' | 'contended';
  open(url: string): Promise<LockClient>;
}

export interface LockClient {
  /** Takes the lock and returns its release. Waits as long as it must when it is held. */
  acquire(name: string): Promise<() => Promise<void>>;
  close(): Promise<void>;
}

/** Long enough that no lock runs out while a swamped process gets round to releasing it: an expiry would look like a grant. */
export const TTL_MS = 30_000;
