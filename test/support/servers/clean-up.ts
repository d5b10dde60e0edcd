/** Something a test has started outside of itself. */
export interface Started {
  /** Ends it and waits until it is gone. */
  end(): Promise<void>;
  /** Ends it as far as that can be done at once, when there is no time left to wait. */
  endNow(): void;
}

const started = new Set<Started>();

/**
 * Ends every server and proxy that this test file has started, whatever state a failed test left it in. For afterAll, or
 * for afterEach if nothing is shared between the tests.
 */
export async function cleanUpServers(): Promise<void> {
  const all = [...started];
  started.clear();
  await Promise.all(all.map((one) => one.end()));
}

/** From now on cleanUpServers ends it, and so does the end of this process. */
export function remember(one: Started): void {
  hookOnce();
  started.add(one);
}

export function forget(one: Started): void {
  started.delete(one);
}

function endAllNow(): void {
  for (const one of started) one.endNow();
  started.clear();
}

let hooked = false;

function hookOnce(): void {
  if (hooked) return;
  hooked = true;
  process.on('exit', endAllNow);
  // Vitest ends its workers with SIGTERM, and a process that dies of a signal runs no 'exit' hooks.
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) {
    const end = (): void => {
      endAllNow();
      process.off(signal, end);
      // Somebody else who listens decides what the signal means; otherwise it means what it always does.
      if (process.listenerCount(signal) === 0) process.kill(process.pid, signal);
    };
    process.on(signal, end);
  }
}
