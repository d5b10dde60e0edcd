/**
 * The log that our code needs. The shop passes a pino logger; the locks do not depend on pino, so that they can be installed
 * without it.
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

/** The default for the library: it logs nothing unless asked to. */
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
