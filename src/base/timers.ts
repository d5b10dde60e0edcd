/** Timers and the next-turn scheduler as a dependency, like the clock. */
export interface Timers {
  /** Runs once after `ms`. Does not keep the process alive. Returns a function that cancels it. */
  after(ms: number, run: () => void): () => void;
  /** Runs every `ms`. Does not keep the process alive. Returns a function that cancels it. */
  every(ms: number, run: () => void): () => void;
  /** Runs after everything that has already arrived in this turn of the event loop: batches are cut there. */
  nextTurn(run: () => void): void;
}

/** setTimeout takes at most 31 bits (24 days), and a sale may open later: longer waits are cut into hops. */
const HOP_MS_MAX = 2 ** 31 - 1;

export const systemTimers: Timers = {
  after(ms, run) {
    let handle: NodeJS.Timeout;
    const arm = (leftMs: number): void => {
      const hopMs = Math.min(Math.max(leftMs, 0), HOP_MS_MAX);
      handle = setTimeout(() => (leftMs > hopMs ? arm(leftMs - hopMs) : run()), hopMs);
      handle.unref();
    };
    arm(ms);
    return () => clearTimeout(handle);
  },
  every(ms, run) {
    const handle = setInterval(run, ms);
    handle.unref();
    return () => clearInterval(handle);
  },
  nextTurn(run) {
    setImmediate(run);
  },
};

export function sleep(timers: Timers, ms: number): Promise<void> {
  return new Promise((resolve) => {
    timers.after(ms, resolve);
  });
}

/** Waits for `ms`, or until one of the signals aborts. */
export async function pause(timers: Timers, ms: number, ...signals: readonly AbortSignal[]): Promise<void> {
  if (signals.some(({ aborted }) => aborted)) return;
  await new Promise<void>((resolve) => {
    const done = (): void => {
      cancel();
      for (const signal of signals) signal.removeEventListener('abort', done);
      resolve();
    };
    const cancel = timers.after(ms, done);
    for (const signal of signals) signal.addEventListener('abort', done);
  });
}

/** Resolves like the promise, or to null after `ms`. */
export async function within<T>(timers: Timers, promise: Promise<T>, ms: number): Promise<T | null> {
  let cancel = (): void => {};
  const late = new Promise<null>((resolve) => {
    cancel = timers.after(ms, () => resolve(null));
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    cancel();
  }
}

/** In so many parts `withinAwake` waits: a stop of the process, however long, uses up one of them. */
const PARTS = 5;

/**
 * As `within`, by the time that this process is awake. After a stop (SIGSTOP, a long turn of the event loop) timers come before what
 * has arrived meanwhile: with one timer, the answer would be there and be taken for late.
 */
export async function withinAwake<T>(timers: Timers, promise: Promise<T>, ms: number): Promise<T | null> {
  const answered = promise.then((value) => ({ value }));
  for (let parts = 0; parts < PARTS; parts++) {
    const answer = await within(timers, answered, ms / PARTS);
    if (answer !== null) return answer.value;
  }
  return null;
}

/** Skips a tick while the one before still runs, so that calls to a hanging database do not pile up. */
export function oneAtATime(run: () => Promise<void>): () => void {
  let running = false;
  return () => {
    if (running) return;
    running = true;
    void run().finally(() => {
      running = false;
    });
  };
}
