/**
 * What a lock needs from the place where it lives. Each command is one atomic step there: a Lua script in Redis, a plain
 * function in process. Everything above (waiting, renewal, deadlines, signals, re-entry) is written once, on this port.
 *
 * Every acquisition has a **request id**, made by the client and unique for ever: `<client>.<number>`. Acquire, renew and
 * release are idempotent by it, so that each may be sent again when its reply was lost. The client part names the wake-up
 * channel, so that a script can tell the right process, and learns from the same call whether that process still lives.
 */

/** Which family of commands a name belongs to. Names of different kinds never meet. */
export type LockKind = 'mutex' | 'fair' | 'readwrite' | 'semaphore' | 'once';

export interface Address {
  readonly kind: LockKind;
  readonly name: string;
}

/** What is asked of a read-write lock. Other kinds ignore it. */
export type Mode = 'read' | 'write';

export interface AcquireRequest extends Address {
  readonly rid: string;
  readonly mode: Mode;
  /** Permits wanted: 1 but for a semaphore. */
  readonly permits: number;
  /** A semaphore's size where none is stored. */
  readonly limit: number;
  readonly leaseMs: number;
  /** Join the queue if it cannot be had at once. */
  readonly queue: boolean;
  /** The place in the queue that an earlier reply gave; 0 for a new one. Keeps FIFO when a queue was lost and is joined again. */
  readonly ticket: number;
  /** How long the next in line may take to confirm, before the lock goes to the one behind. */
  readonly handOverMs: number;
  /** What `inspect` shows of the holder: `<host>/<pid>` and a label. */
  readonly info: string;
}

export type AcquireReply =
  | { readonly outcome: 'granted'; readonly token: number }
  /** In the queue, or refused when `queue` was false. Worth another look after `retryMs`, when the holder's lease ends. */
  | {
      readonly outcome: 'queued' | 'held';
      readonly retryMs: number;
      readonly ticket: number;
      /** It had a ticket and was not in the queue any more: the store has lost the queue. */
      readonly rejoined?: boolean;
    }
  /** Only `once`: somebody has already run it; the stored result. */
  | { readonly outcome: 'done'; readonly result: string }
  /** This request id was given up before: a late copy of the command must not take the lock for nobody. */
  | { readonly outcome: 'gone' };

export interface ReleaseRequest extends Address {
  readonly rid: string;
  readonly mode: Mode;
  readonly permits: number;
  readonly limit: number;
  readonly handOverMs: number;
  /** A copy of the acquire may still be under way (its reply was lost): remember the id as gone. */
  readonly ambiguous: boolean;
  /** An upgrade that is given up: should it have come true, it becomes the read hold of this id again. Else ''. */
  readonly backTo: string;
}

/**
 * `released`: it was held, and nobody waits. `handed`: it was held, and went to somebody who has yet to confirm.
 * `dequeued`: it was waiting and is no more. `absent`: neither; a holder that hears this had lost it. `moved`: not held,
 * and somebody else was let in who has yet to confirm.
 */
export type ReleaseReply = 'released' | 'handed' | 'dequeued' | 'absent' | 'moved' | Given;

/** Given back, and `to`, another request of this client, has it now, for `handOverMs` unless it is confirmed: its token. */
export interface Given {
  readonly given: number;
  readonly to: string;
}

export interface RenewRequest extends Address {
  readonly rid: string;
  readonly mode: Mode;
  readonly leaseMs: number;
  /** Empty: leave it as it is. A hand-over is confirmed with it, since the queue keeps only ids. */
  readonly info: string;
  /** Also if that is less than what is left. A renewal never makes a lease shorter: a late copy of it would do so, too. */
  readonly exactly: boolean;
}

/** `busy`: the upgrade is refused at once, since another reader is already waiting for its own. */
export type ChangeReply =
  | { readonly outcome: 'granted'; readonly token: number }
  | { readonly outcome: 'queued'; readonly retryMs: number; readonly ticket: number }
  | { readonly outcome: 'busy' }
  | { readonly outcome: 'absent' };

export interface ChangeRequest extends Address {
  /** The hold that is to change. */
  readonly rid: string;
  /** The id it has afterwards. */
  readonly nextRid: string;
  readonly to: Mode;
  readonly leaseMs: number;
  readonly queue: boolean;
  readonly handOverMs: number;
  readonly info: string;
}

export interface HolderState {
  readonly rid: string;
  readonly mode: Mode;
  readonly token: number;
  readonly permits: number;
  /** By the store's clock, milliseconds since 1970. */
  readonly sinceMs: number;
  readonly remainingMs: number;
  readonly info: string;
}

export interface WaiterState {
  readonly rid: string;
  readonly mode: Mode;
  readonly permits: number;
  readonly ticket: number;
}

export interface LockState extends Address {
  readonly holders: readonly HolderState[];
  /** The first waiters (at most 100) in the order they will be served. */
  readonly waiters: readonly WaiterState[];
  readonly waiting: number;
  /** The size that was stored for a semaphore; null where none is, and for other kinds. */
  readonly limit: number | null;
  readonly nowMs: number;
}

export interface LatchState {
  readonly count: number;
  /** There is such a latch. A latch that was never set counts as open. */
  readonly exists: boolean;
}

/** What a store tells a client without being asked. `rid` is always one of that client's. */
export type Wake =
  /** It is yours, for `handOverMs` from `atUs` (store's clock, microseconds) unless you renew. */
  | { readonly event: 'granted'; readonly rid: string; readonly token: number; readonly atUs: number }
  /** It was taken from you by `forceRelease`. */
  | { readonly event: 'lost'; readonly rid: string }
  /** What you wait for is over: a latch is open, a `once` has its result. Look again. */
  | { readonly event: 'look'; readonly rid: string };

export interface StoreEvents {
  wake(wake: Wake): void;
  /** Wake-ups may have been missed, or the store may have forgotten: ask again about everything that is held or awaited. */
  interrupted(): void;
}

/** A reading of the store's clock: it showed `storeUs` at some moment after `sentMs` (monotonic, ours). */
export interface ClockReading {
  readonly sentMs: number;
  readonly storeUs: number;
}

/**
 * Failures of the way to the store are RetryableError (`lock_unavailable`): the command may or may not have been carried
 * out. Nothing else is thrown but for a broken store.
 */
export interface LockStore {
  /** Names the client in request ids: `<client>.<number>`. */
  readonly client: string;
  /** Two stores with the same `place` are the same place. Orders the parts of a multi-lock. */
  readonly place: string;
  readonly events: StoreEvents;
  /** Others who use it may be stopped or cut off while we are not. */
  readonly remote: boolean;
  /** Why it cannot be reached now; null when it can, or nothing is known. Holds no secrets. */
  readonly trouble: string | null;
  /** The latest reading of the store's clock, or null before the first. */
  readonly clock: ClockReading | null;

  /** Whether wake-ups for this name reach us already. */
  hears(address: Address): boolean;
  /** Resolves when wake-ups for this name reach us: must be awaited before a request may queue. */
  listen(address: Address | { readonly kind: 'latch'; readonly name: string }): Promise<void>;

  acquire(request: AcquireRequest): Promise<AcquireReply>;
  release(request: ReleaseRequest): Promise<ReleaseReply>;
  /** False: it is not ours any more. */
  renew(request: RenewRequest): Promise<boolean>;
  /** Read to write, or write to read. */
  change(request: ChangeRequest): Promise<ChangeReply>;
  /** Takes it from whoever has it, tells them, and hands it on. The holders it was taken from. */
  force(address: Address, handOverMs: number, limit: number): Promise<readonly HolderState[]>;
  /** Raises the token of a hold (and what will be minted next) to at least `token`. False: not ours any more. For quorums. */
  raise(address: Address, rid: string, token: number): Promise<boolean>;
  /** Acquire with `replicas` copies confirmed within `timeoutMs`; how many did. */
  acquireReplicated(request: AcquireRequest, replicas: number, timeoutMs: number): Promise<[AcquireReply, number]>;

  inspect(address: Address): Promise<LockState>;
  list(kinds: readonly LockKind[]): Promise<LockState[]>;

  /** Stores a semaphore's size for everybody, or forgets it (null), and lets in who now may. */
  resize(name: string, limit: number | null, defaultLimit: number, handOverMs: number): Promise<void>;

  /** Ends a `once`: stores the result for `keepMs` and wakes all who wait for it. False: not ours any more, nothing stored. */
  finish(name: string, rid: string, result: string, keepMs: number): Promise<boolean>;
  /** Drops a stored result. True if there was one. */
  forget(name: string): Promise<boolean>;

  /** Sets a latch to `count` (for at most `keepMs`) and wakes its waiters: what they waited for has changed. */
  latchSet(name: string, count: number, keepMs: number): Promise<void>;
  /** Counts down by `by`, not below 0, once per `rid`. What is left. */
  latchDown(name: string, rid: string, by: number, keepMs: number): Promise<number>;
  /** The count; while it is above 0 and `rid` is given, that waiter is woken when it is open or set anew. */
  latchLook(name: string, rid: string | null): Promise<LatchState>;
  /** No longer waits. */
  latchLeave(name: string, rid: string): Promise<void>;

  /** Ends connections; commands under way fail. */
  close(): Promise<void>;
}
