/**
 * What our code needs of a log. pino's loggers are of this shape, and the shop uses one; the locks have no pino, so that whoever
 * wants only them does not install it.
 */
export interface Logger {
  trace: Write;
  debug: Write;
  info: Write;
  warn: Write;
  error: Write;
  fatal: Write;
  isLevelEnabled(level: string): boolean;
  child(bindings: Record<string, unknown>, options?: object): Logger;
}

type Write = (details: object | string, message?: string) => void;

/** For embedding: a library says nothing unless asked to. */
export function silentLog(): Logger {
  const write = (): void => {};
  const log: Logger = {
    trace: write,
    debug: write,
    info: write,
    warn: write,
    error: write,
    fatal: write,
    isLevelEnabled: () => false,
    child: () => log,
  };
  return log;
}
