import { type LossReason, LostError } from './errors.ts';
import { marginMs } from './margin.ts';
import type { LockKind, Mode, ReleaseRequest } from './port.ts';

/** What a hold asks of the client that it belongs to. */
export interface HoldClient {
  nowMs(): number;
  /** The hold is over by its own loss; timers are stopped. */
  onLost(hold: Hold, reason: LossReason): void;
}

/** What was asked for, and on which terms: of a call that has been granted. */
export interface Granted {
  readonly kind: LockKind;
  readonly name: string;
  readonly mode: Mode;
  readonly permits: number;
  readonly limit: number;
  readonly rid: string;
  readonly handOverMs: number;
  readonly ambiguous: boolean;
  readonly terms: {
    readonly leaseMs: number;
    readonly renews: boolean;
    readonly maxHoldMs: number;
    readonly label: string;
  };
}

/**
 * Something that this process holds at the store. Its deadline is ours, on our monotonic clock, and lies before the moment
 * at which the store could give it to somebody else; it moves only when a renewal came back. Several grants may share one
 * hold (re-entry): the last one that is released gives it back. It is itself the request that gives it back.
 */
export class Hold implements ReleaseRequest {
  readonly kind: LockKind;
  readonly name: string;
  readonly mode: Mode;
  readonly permits: number;
  readonly limit: number;
  readonly label: string;
  readonly rid: string;
  readonly #token: number;
  readonly renews: boolean;
  readonly untilMs: number;
  readonly sinceMs: number;
  leaseMs: number;
  deadlineMs: number;
  state: 'held' | 'released' | 'lost' = 'held';
  /** Grants that share it. */
  count = 1;
  loss: LostError | null = null;
  /** Stops its timers (renewals.ts), once there are some. */
  disarm: (() => void) | null = null;
  /** A renewal is under way. */
  renewing = false;
  /** How many were sent, and which was the last that could make it shorter. */
  renewals = 0;
  lastExact = 0;
  /** An upgrade or downgrade is under way, or being taken back; resolves when it is not. */
  changing: Promise<void> | null = null;
  /** Its acquire was sent more than once: a late copy must not take it again after the release. */
  ambiguous: boolean;
  readonly handOverMs: number;
  readonly backTo = '';
  /** Grants of another client cannot share it. */
  readonly of: HoldClient;
  #controller: AbortController | null = null;

  /** Sent at `sentMs` (monotonic), granted for `leaseMs` from some moment after that. */
  constructor(client: HoldClient, granted: Granted, token: number, sentMs: number, leaseMs: number) {
    const { terms } = granted;
    this.of = client;
    this.kind = granted.kind;
    this.name = granted.name;
    this.mode = granted.mode;
    this.permits = granted.permits;
    this.limit = granted.limit;
    this.rid = granted.rid;
    this.handOverMs = granted.handOverMs;
    this.ambiguous = granted.ambiguous;
    this.label = terms.label;
    this.renews = terms.renews;
    this.leaseMs = terms.leaseMs;
    this.#token = token;
    // Counted from when it was sent: slightly too long, and the clock need not be read again.
    this.sinceMs = sentMs;
    this.untilMs = sentMs + terms.maxHoldMs;
    this.deadlineMs = Math.min(sentMs + leaseMs - marginMs(leaseMs), this.untilMs);
  }

  get token(): bigint {
    return BigInt(this.#token);
  }

  changesWith(change: Promise<unknown>): void {
    const done = (): void => undefined;
    this.changing = change.then(done, done);
  }

  /** Reads the clock, too: after a stall of the event loop the deadline has passed before its timer could run. */
  isHeld(): boolean {
    if (this.state !== 'held') return false;
    const nowMs = this.of.nowMs();
    if (nowMs < this.deadlineMs) return true;
    this.lose(this.deadlineMs >= this.untilMs - marginMs(this.leaseMs) - 1 ? 'max_hold' : 'expired');
    return false;
  }

  remainingMs(): number {
    return this.isHeld() ? this.deadlineMs - this.of.nowMs() : 0;
  }

  /** Made when first asked for: most locks are held for a moment, and nobody reads it. */
  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController();
      if (this.state === 'lost') this.#controller.abort(this.loss);
    }
    this.isHeld();
    return this.#controller.signal;
  }

  lose(reason: LossReason, cause?: unknown): void {
    if (this.state !== 'held') return;
    this.state = 'lost';
    this.disarm?.();
    const why = reason === 'expired' && !this.renews ? FIXED_ENDED : LOSS[reason];
    this.loss = new LostError(`${this.kind} "${this.name}" is lost: ${why}`, reason, { cause });
    this.#controller?.abort(this.loss);
    this.of.onLost(this, reason);
  }
}

const FIXED_ENDED = 'its fixed lease has ended (renew: true would renew it)';

const LOSS: Record<LossReason, string> = {
  expired: 'its lease ran out before it could be renewed',
  refused: 'the server says that it is not ours any more',
  forced: 'it was released by force',
  max_hold: 'it was held for as long as maxHold allows',
  closed: 'the locks were closed',
};
