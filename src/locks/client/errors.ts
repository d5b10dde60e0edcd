import { RetryableError, TerminalError } from '../../base/errors.ts';

/**
 * How a lock can fail, each with a class of its own: callers need not tell held, lost and unreachable apart by message.
 * Retryable or terminal is the base class, as everywhere here.
 */

/** It is held, and the call said not to wait (`wait: 0`), or waiting could never succeed. */
export class HeldError extends RetryableError {
  constructor(message: string, options?: { cause?: unknown }) {
    super('lock_held', message, options);
  }
}

/** The lock was not acquired within `wait`. */
export class TimeoutError extends RetryableError {
  constructor(message: string) {
    super('lock_timeout', message);
  }
}

export type LossReason =
  /** Our own deadline passed before a renewal came through: the server may have given it away. */
  | 'expired'
  /** The server said that it is not ours any more: taken over, forgotten in a restart or FLUSHALL. */
  | 'refused'
  /** Somebody called forceRelease. */
  | 'forced'
  /** Held as long as `maxHold` allows. */
  | 'max_hold'
  /** `close()` was called while it was held. */
  | 'closed';

/** It was ours and is not any more. Writes since then may have met another holder's: the fence decides. */
export class LostError extends TerminalError {
  readonly reason: LossReason;

  constructor(message: string, reason: LossReason, options?: { cause?: unknown }) {
    super('lock_lost', message, options);
    this.reason = reason;
  }
}

/** The grant is not one that may be used here: released before, or of another name. */
export class NotOwnerError extends TerminalError {
  constructor(message: string) {
    super('lock_not_owner', message);
  }
}

/** The store cannot be reached, or too few of them. Nothing is held; what may have been taken is given back. */
export class UnavailableError extends RetryableError {
  constructor(message: string, options?: { cause?: unknown }) {
    super('lock_unavailable', message, options);
  }
}

/** The caller's signal was aborted, or the locks were closed, while waiting. */
export class AbortedError extends TerminalError {
  constructor(message: string, options?: { cause?: unknown }) {
    super('lock_aborted', message, options);
  }
}

/** A fenced resource has seen a later holder. */
export class StaleFenceError extends TerminalError {
  constructor(message: string) {
    super('lock_stale_fence', message);
  }
}
