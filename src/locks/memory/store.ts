import { type Clock, systemClock } from '../../base/clock.ts';
import type { Runtime } from '../../base/runtime.ts';
import { UnavailableError } from '../client/errors.ts';
import type {
  AcquireReply,
  AcquireRequest,
  Address,
  ChangeReply,
  ChangeRequest,
  ClockReading,
  HolderState,
  LatchState,
  LockKind,
  LockState,
  LockStore,
  ReleaseReply,
  ReleaseRequest,
  RenewRequest,
  StoreEvents,
} from '../client/port.ts';
import { MemorySpace, type Realm } from './space.ts';

export { MemorySpace };

const processSpaces = new WeakMap<Clock, MemorySpace>();

/** The space that this process shares. A client with a clock of its own (a test) gets a space of its own. */
export function processSpace(clock: Clock = systemClock): MemorySpace {
  let space = processSpaces.get(clock);
  if (!space) {
    space = new MemorySpace(clock);
    processSpaces.set(clock, space);
  }
  return space;
}

/** Locks within this process. Each command is carried out at once; its reply and the wake-ups come in a later microtask. */
export class MemoryLockStore implements LockStore {
  readonly client: string;
  readonly place: string;
  readonly remote = false;
  readonly trouble = null;
  readonly events: StoreEvents;
  readonly #space: MemorySpace;
  readonly #realm: Realm;
  readonly #runtime: Runtime;
  #reading: ClockReading | null = null;
  #closed = false;

  constructor(space: MemorySpace, prefix: string, runtime: Runtime, events: StoreEvents) {
    this.events = events;
    this.place = `process:${space.id}:${prefix}`;
    this.#space = space;
    this.#realm = space.realm(prefix);
    this.#runtime = runtime;
    // Two clients with the same seed (in tests) must still be two.
    let client = runtime.random.secret(8);
    while (!this.#realm.join(client, events)) client = runtime.random.secret(8);
    this.client = client;
  }

  get clock(): ClockReading | null {
    return this.#reading;
  }

  /** The locks, unless they are closed for us. */
  get #open(): Realm {
    if (this.#closed) throw new UnavailableError('the locks of this process are closed');
    return this.#realm;
  }

  hears(_address: Address): boolean {
    return true;
  }

  async listen(_address: Address | { readonly kind: 'latch'; readonly name: string }): Promise<void> {
    // A client hears wake-ups from the moment it joins.
    void this.#open;
  }

  async acquire(request: AcquireRequest): Promise<AcquireReply> {
    const sentMs = this.#runtime.clock.monotonic();
    const reply = this.#open.acquire(request);
    // Rounded up, and a hand-over's time down: it may seem to have begun earlier than it did, never later.
    this.#reading = { sentMs, storeUs: Math.ceil(this.#space.nowMs * 1000) };
    return reply;
  }

  /** There are no copies. */
  async acquireReplicated(
    request: AcquireRequest,
    _replicas: number,
    _timeoutMs: number,
  ): Promise<[AcquireReply, number]> {
    return [await this.acquire(request), 0];
  }

  async release(request: ReleaseRequest): Promise<ReleaseReply> {
    return this.#open.release(request);
  }

  async renew(request: RenewRequest): Promise<boolean> {
    return this.#open.renew(request);
  }

  async change(request: ChangeRequest): Promise<ChangeReply> {
    return this.#open.change(request);
  }

  async force(address: Address, handOverMs: number, limit: number): Promise<readonly HolderState[]> {
    return this.#open.force(address, handOverMs, limit);
  }

  async raise(address: Address, rid: string, token: number): Promise<boolean> {
    return this.#open.raise(address, rid, token);
  }

  async inspect(address: Address): Promise<LockState> {
    return this.#open.inspect(address);
  }

  async list(kinds: readonly LockKind[]): Promise<LockState[]> {
    return this.#open.list(kinds);
  }

  async resize(name: string, limit: number | null, defaultLimit: number, handOverMs: number): Promise<void> {
    this.#open.resize(name, limit, defaultLimit, handOverMs);
  }

  async finish(name: string, rid: string, result: string, keepMs: number): Promise<boolean> {
    return this.#open.finish(name, rid, result, keepMs);
  }

  async forget(name: string): Promise<boolean> {
    return this.#open.forget(name);
  }

  async latchSet(name: string, count: number, keepMs: number): Promise<void> {
    this.#open.latchSet(name, count, keepMs);
  }

  async latchDown(name: string, rid: string, by: number, keepMs: number): Promise<number> {
    return this.#open.latchDown(name, rid, by, keepMs);
  }

  async latchLook(name: string, rid: string | null): Promise<LatchState> {
    return this.#open.latchLook(name, rid);
  }

  async latchLeave(name: string, rid: string): Promise<void> {
    this.#open.latchLeave(name, rid);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#realm.leave(this.client);
  }
}
