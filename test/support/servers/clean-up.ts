/** A server or proxy that a test has started. */
export interface Started {
  /** Ends it and waits until it is gone. */
  end(): Promise<void>;
  /** Ends it synchronously, as far as possible. */
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

/** Registers it: cleanUpServers and the end of this process end it. */
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
      // If there is no other listener, the signal takes its default effect.
      if (process.listenerCount(signal) === 0) process.kill(process.pid, signal);
    };
    process.on(signal, end);
  }
}
