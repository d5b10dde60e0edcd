import type {
  AcquireReply,
  AcquireRequest,
  HolderState,
  Mode,
  ReleaseReply,
  ReleaseRequest,
  RenewRequest,
  WaiterState,
} from '../client/port.ts';

/** How long a request that was given up is remembered, as in `_frame.lua`. */
export const GONE_MS = 120_000;
/** A queue that nobody tends is dropped after this; a live waiter joins again at least three times in this span. */
export const QUEUE_MS = 60_000;
/** When to look again where no lease will end. */
export const RETRY_MS = 10_000;

/** The client that made a request id: the part before the first point. */
export function clientOf(rid: string): string {
  const end = rid.indexOf('.');
  return end === -1 ? rid : rid.slice(0, end);
}

/** What every command has at hand: the counterpart of `_frame.lua`. Time stands still while a command runs. */
export interface Frame {
  /** Judges leases: monotonic. */
  readonly nowMs: number;
  /** For people: milliseconds since 1970. */
  readonly wallMs: number;
  /** A number larger than any before it. */
  mint(): number;
  /** Was this request given up before this copy of it arrived? */
  isGone(rid: string): boolean;
  rememberGone(rid: string): void;
  /** Does the client that made `rid` still live? */
  hears(rid: string): boolean;
  /** Tells the client that made `rid`, after the command. False: nobody listens there. */
  tellGranted(rid: string, token: number): boolean;
  tell(event: 'lost' | 'look', rid: string): boolean;
}

/** What `inspect` shows of one lock. */
export interface Sight {
  readonly holders: readonly HolderState[];
  readonly waiters: readonly WaiterState[];
  readonly waiting: number;
  readonly limit: number | null;
}

/** One lock of any kind, from the first who takes it until nobody holds it or waits for it. */
export interface LockCell {
  acquire(frame: Frame, request: AcquireRequest): AcquireReply;
  release(frame: Frame, request: ReleaseRequest): ReleaseReply;
  renew(frame: Frame, request: RenewRequest): boolean;
  force(frame: Frame, handOverMs: number, limit: number): readonly HolderState[];
  inspect(nowMs: number): Sight;
  /** Forgets what is over. Lets nobody in: the next command that may does. */
  prune(nowMs: number): void;
  readonly isEmpty: boolean;
}

export interface Hold {
  readonly rid: string;
  token: number;
  readonly permits: number;
  readonly sinceMs: number;
  endMs: number;
  info: string;
}

/** Up to the next whole millisecond, as Redis tells it: whoever comes back then is not too early. */
export function remainingMs(hold: Hold, nowMs: number): number {
  return Math.ceil(hold.endMs - nowMs);
}

/** `exactly`: it may become shorter, too. */
export function renewHold(hold: Hold, nowMs: number, leaseMs: number, info: string, exactly = false): void {
  hold.endMs = exactly ? nowMs + leaseMs : Math.max(hold.endMs, nowMs + leaseMs);
  if (info !== '') hold.info = info;
}

export function holderOf(hold: Hold, mode: Mode, nowMs: number): HolderState {
  const { rid, token, permits, sinceMs, info } = hold;
  return { rid, mode, token, permits, sinceMs, remainingMs: remainingMs(hold, nowMs), info };
}
