/**
 * Failures. A *refusal* (sold out, not open) is a value and not an error; see model/outcome.ts. The class says whether a
 * failure may be retried, so that nobody has to match strings:
 *   RetryableError: the same call may succeed later, nothing is wrong with it (ledger out, overload).
 *   TerminalError:  the same call will fail again (bad configuration, damaged file, broken invariant).
 */
export class DoorbusterError extends Error {
  readonly code: string;

  constructor(code: string, message: string, options?: { cause?: unknown }) {
    // `cause: undefined` would be printed.
    super(message, options?.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.code = code;
  }
}

export class RetryableError extends DoorbusterError {
  /** For the client's Retry-After: whole seconds. */
  readonly retryAfterSeconds: number;
  /** The message with details for the operator only, such as an address; buyers see the message. */
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

/** Another transaction holds what this call needs; other calls may succeed at once. HTTP: 503 `unavailable`. */
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

/** A broken invariant: a bug of ours. Assertions stay on in production, because going on could sell wrongly. */
export class InvariantError extends TerminalError {
  constructor(message: string) {
    super('internal', `invariant broken: ${message}`);
  }
}

export function invariant(condition: boolean, message: string): asserts condition {
  if (!condition) throw new InvariantError(message);
}

/** For the log at start-up, the command line and `doctor`; never for an answer to a client. */
export function messageInFull(error: unknown): string {
  return error instanceof RetryableError ? error.inFull : messageOf(error);
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
