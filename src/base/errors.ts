/**
 * Failures. A *refusal* (sold out, not open) is a value and never comes here; see model/outcome.ts. Whether a failure
 * may be tried again is its class, not a string to be matched:
 *   RetryableError: the same call may succeed later, nothing is wrong with it (ledger out, overload).
 *   TerminalError:  the same call will fail again (bad configuration, damaged file, broken invariant).
 */
export class DoorbusterError extends Error {
  readonly code: string;

  constructor(code: string, message: string, options?: { cause?: unknown }) {
    // `cause: undefined` would be printed as one.
    super(message, options?.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.code = code;
  }
}

export class RetryableError extends DoorbusterError {
  /** What to tell a client: whole seconds until another try is worth it. */
  readonly retryAfterSeconds: number;
  /** The message with what is for the operator alone, an address for instance: buyers read the message. */
  readonly inFull: string;

  constructor(
    code: string,
    message: string,
    options?: { cause?: unknown; retryAfterSeconds?: number; inFull?: string },
  ) {
    super(code, message, options);
    this.retryAfterSeconds = options?.retryAfterSeconds ?? 1;
    this.inFull = options?.inFull ?? message;
  }
}

/** Somebody else is in the way of this very call: another one may succeed at once. HTTP: 503 `unavailable`. */
export class BusyError extends RetryableError {
  constructor(message: string, cause?: unknown) {
    super('unavailable', message, { cause });
  }
}

export class TerminalError extends DoorbusterError {}

/** The ledger, the gate or the whole shop cannot serve now. HTTP: 503 `unavailable`. */
export function unavailable(reason: string, cause?: unknown): RetryableError {
  return new RetryableError('unavailable', reason, { cause });
}

/** A broken invariant: a bug of ours. Assertions stay on in production, since going on would sell wrongly. */
export class InvariantError extends TerminalError {
  constructor(message: string) {
    super('internal', `invariant broken: ${message}`);
  }
}

export function invariant(condition: boolean, message: string): asserts condition {
  if (!condition) throw new InvariantError(message);
}

/** For the log of a start, the command line and `doctor`; never for an answer. */
export function messageInFull(error: unknown): string {
  return error instanceof RetryableError ? error.inFull : messageOf(error);
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
