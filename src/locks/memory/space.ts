import { type Clock, systemClock } from '../../base/clock.ts';
import type {
  AcquireReply,
  AcquireRequest,
  Address,
  ChangeReply,
  ChangeRequest,
  HolderState,
  LatchState,
  LockKind,
  LockState,
  ReleaseReply,
  ReleaseRequest,
  RenewRequest,
  StoreEvents,
  Wake,
} from '../client/port.ts';
import { clientOf, type Frame, GONE_MS, type LockCell } from './frame.ts';
import { LatchCell } from './latch.ts';
import { MutexCell, OnceCell } from './mutex.ts';
import { ReadWriteCell } from './read-write.ts';
import { SemaphoreCell } from './semaphore.ts';

/** Every so many commands, so many locks are looked at whether anything of them is left. More than can come up meanwhile. */
const SWEEP_EVERY = 16;
const SWEEP_CELLS = 32;

let spaces = 0;

/**
 * Where locks live that are shared within one process: what a Redis is to the others. Names are kept only while they are
 * held, awaited or have something stored; the largest number ever minted is one for all of them.
 */
export class MemorySpace {
  /** Tells spaces apart. */
  readonly id: number;
  readonly #clock: Clock;
  readonly #realms = new Map<string, Realm>();
  readonly #sweep: Generator<boolean>;
  #lastMinted = 0;
  #nowMs = 0;
  #commands = 0;

  /** Leases are judged by this clock, whatever clocks the clients have. */
  constructor(clock: Clock = systemClock) {
    this.id = ++spaces;
    this.#clock = clock;
    this.#sweep = this.#rounds();
  }

  /** The locks of one prefix. To be asked for by somebody who then joins as a client: one without clients may go. */
  realm(prefix: string): Realm {
    let realm = this.#realms.get(prefix);
    if (!realm) {
      realm = new Realm(this);
      this.#realms.set(prefix, realm);
    }
    return realm;
  }

  /** Monotonic, and the same for all of a command. */
  get nowMs(): number {
    return this.#nowMs;
  }

  get wallMs(): number {
    return this.#clock.now();
  }

  mint(): number {
    this.#lastMinted = Math.max(this.#lastMinted + 1, Math.floor(this.#clock.now() * 1000));
    return this.#lastMinted;
  }

  /** What is minted next is larger than `number`. */
  mintedElsewhere(number: number): void {
    this.#lastMinted = Math.max(this.#lastMinted, number);
  }

  /** A command begins. */
  begin(): void {
    this.#nowMs = this.#clock.monotonic();
    if (++this.#commands % SWEEP_EVERY !== 0) return;
    for (let i = 0; i < SWEEP_CELLS; i++) if (!this.#sweep.next().value) return;
  }

  /** Goes round for ever, one lock at a time; false at the end of each round. */
  *#rounds(): Generator<boolean, never> {
    for (;;) {
      for (const [prefix, realm] of this.#realms) {
        yield* realm.sweep();
        if (realm.clients === 0 && realm.size === 0) this.#realms.delete(prefix);
      }
      yield false;
    }
  }

  /** How many locks, latches and given-up requests are remembered. */
  get size(): number {
    let size = 0;
    for (const realm of this.#realms.values()) size += realm.size;
    return size;
  }
}

const noCell: Omit<LockState, 'kind' | 'name' | 'nowMs'> = { holders: [], waiters: [], waiting: 0, limit: null };

/** The locks of one prefix and their clients. Each command is one synchronous step with the replies of the Lua scripts. */
export class Realm implements Frame {
  readonly #space: MemorySpace;
  readonly #clients = new Map<string, StoreEvents>();
  readonly #mutex = new Map<string, MutexCell>();
  readonly #fair = new Map<string, MutexCell>();
  readonly #once = new Map<string, OnceCell>();
  readonly #readWrite = new Map<string, ReadWriteCell>();
  readonly #semaphore = new Map<string, SemaphoreCell>();
  readonly #latches = new Map<string, LatchCell>();
  readonly #cells: Record<LockKind, Map<string, LockCell>> = {
    mutex: this.#mutex,
    fair: this.#fair,
    once: this.#once,
    readwrite: this.#readWrite,
    semaphore: this.#semaphore,
  };
  /** Requests that were given up, and until when that is remembered: the oldest first, since all are kept equally long. */
  readonly #gone = new Map<string, number>();

  constructor(space: MemorySpace) {
    this.#space = space;
  }

  // Clients

  get clients(): number {
    return this.#clients.size;
  }

  /** False: there is one of that name. */
  join(client: string, events: StoreEvents): boolean {
    if (this.#clients.has(client)) return false;
    this.#clients.set(client, events);
    return true;
  }

  /** From now on it hears nothing. What it holds stays held until the leases end, as when a process dies. */
  leave(client: string): void {
    this.#clients.delete(client);
  }

  // Frame

  get nowMs(): number {
    return this.#space.nowMs;
  }

  get wallMs(): number {
    return this.#space.wallMs;
  }

  mint(): number {
    return this.#space.mint();
  }

  isGone(rid: string): boolean {
    if (this.#gone.size === 0) return false;
    const untilMs = this.#gone.get(rid);
    return untilMs !== undefined && untilMs > this.nowMs;
  }

  rememberGone(rid: string): void {
    this.#pruneGone();
    this.#gone.delete(rid);
    this.#gone.set(rid, this.nowMs + GONE_MS);
  }

  #pruneGone(): void {
    for (const [rid, untilMs] of this.#gone) {
      if (untilMs > this.nowMs) return;
      this.#gone.delete(rid);
    }
  }

  hears(rid: string): boolean {
    return this.#clients.has(clientOf(rid));
  }

  tellGranted(rid: string, token: number): boolean {
    // Rounded down: a hand-over may seem to have begun earlier than it did, never later.
    return this.#wake({ event: 'granted', rid, token, atUs: Math.floor(this.nowMs * 1000) });
  }

  tell(event: 'lost' | 'look', rid: string): boolean {
    return this.#wake({ event, rid });
  }

  #wake(wake: Wake): boolean {
    const client = clientOf(wake.rid);
    if (!this.#clients.has(client)) return false;
    // Never inside the command: the waiter may send its next command at once.
    queueMicrotask(() => this.#clients.get(client)?.wake(wake));
    return true;
  }

  // Cells

  /** Runs a command on a lock that is made for it if need be, and forgets the lock if nothing of it is left. */
  #on<C extends LockCell, R>(cells: Map<string, C>, name: string, make: () => C, run: (cell: C) => R): R {
    const known = cells.get(name);
    const cell = known ?? make();
    const reply = run(cell);
    if (cell.isEmpty) {
      if (known) cells.delete(name);
    } else if (!known) {
      cells.set(name, cell);
    }
    return reply;
  }

  /** Runs a command on a lock if there is one, and forgets the lock if nothing of it is left. */
  #if<C extends LockCell, R>(cells: Map<string, C>, name: string, otherwise: R, run: (cell: C) => R): R {
    const cell = cells.get(name);
    if (!cell) return otherwise;
    const reply = run(cell);
    if (cell.isEmpty) cells.delete(name);
    return reply;
  }

  *sweep(): Generator<boolean> {
    this.#pruneGone();
    for (const cells of Object.values(this.#cells)) {
      for (const [name, cell] of cells) {
        cell.prune(this.nowMs);
        if (cell.isEmpty) cells.delete(name);
        yield true;
      }
    }
    for (const name of this.#latches.keys()) {
      this.#latch(name);
      yield true;
    }
  }

  get size(): number {
    const cells = Object.values(this.#cells).reduce((sum, { size }) => sum + size, 0);
    return cells + this.#latches.size + this.#gone.size;
  }

  // Commands

  acquire(request: AcquireRequest): AcquireReply {
    this.#space.begin();
    const { kind, name } = request;
    return this.#on(this.#cells[kind], name, MAKE[kind], (cell) => cell.acquire(this, request));
  }

  release(request: ReleaseRequest): ReleaseReply {
    this.#space.begin();
    const { kind, name, rid, ambiguous } = request;
    const reply = this.#if(this.#cells[kind], name, null, (cell) => cell.release(this, request));
    if (reply === null && ambiguous) this.rememberGone(rid);
    return reply ?? 'absent';
  }

  renew(request: RenewRequest): boolean {
    this.#space.begin();
    return this.#if(this.#cells[request.kind], request.name, false, (cell) => cell.renew(this, request));
  }

  change(request: ChangeRequest): ChangeReply {
    this.#space.begin();
    const absent: ChangeReply = { outcome: 'absent' };
    return this.#if(this.#readWrite, request.name, absent, (cell) => cell.change(this, request));
  }

  force({ kind, name }: Address, handOverMs: number, limit: number): readonly HolderState[] {
    this.#space.begin();
    return this.#if(this.#cells[kind], name, [], (cell) => cell.force(this, handOverMs, limit));
  }

  raise({ kind, name }: Address, rid: string, token: number): boolean {
    this.#space.begin();
    if (kind === 'readwrite' || kind === 'semaphore') return false;
    const cells: Map<string, MutexCell> = kind === 'mutex' ? this.#mutex : kind === 'fair' ? this.#fair : this.#once;
    const raised = this.#if(cells, name, false, (cell) => cell.raise(this.nowMs, rid, token));
    if (raised) this.#space.mintedElsewhere(token);
    return raised;
  }

  inspect({ kind, name }: Address): LockState {
    this.#space.begin();
    const sight = this.#if(this.#cells[kind], name, noCell, (cell) => cell.inspect(this.nowMs));
    return { kind, name, ...sight, nowMs: this.wallMs };
  }

  list(kinds: readonly LockKind[]): LockState[] {
    const states = kinds.flatMap((kind) => [...this.#cells[kind].keys()].map((name) => this.inspect({ kind, name })));
    return states.filter((state) => state.holders.length > 0 || state.waiting > 0);
  }

  resize(name: string, limit: number | null, defaultLimit: number, handOverMs: number): void {
    this.#space.begin();
    this.#on(this.#semaphore, name, MAKE.semaphore, (cell) => cell.resize(this, limit, defaultLimit, handOverMs));
  }

  finish(name: string, rid: string, result: string, keepMs: number): boolean {
    this.#space.begin();
    return this.#if(this.#once, name, false, (cell) => cell.finish(this, rid, result, keepMs));
  }

  forget(name: string): boolean {
    this.#space.begin();
    return this.#if(this.#once, name, false, (cell) => cell.forget(this.nowMs));
  }

  latchSet(name: string, count: number, keepMs: number): void {
    this.#space.begin();
    let latch = this.#latch(name);
    if (!latch) {
      latch = new LatchCell();
      this.#latches.set(name, latch);
    }
    latch.set(this, count, keepMs);
  }

  latchDown(name: string, rid: string, by: number, keepMs: number): number {
    this.#space.begin();
    return this.#latch(name)?.down(this, rid, by, keepMs) ?? 0;
  }

  latchLook(name: string, rid: string | null): LatchState {
    this.#space.begin();
    return this.#latch(name)?.look(rid) ?? { count: 0, exists: false };
  }

  latchLeave(name: string, rid: string): void {
    this.#space.begin();
    this.#latch(name)?.leave(rid);
  }

  #latch(name: string): LatchCell | undefined {
    const latch = this.#latches.get(name);
    if (!latch || latch.exists(this.nowMs)) return latch;
    this.#latches.delete(name);
    return undefined;
  }
}

const MAKE = {
  mutex: () => new MutexCell(),
  fair: () => new MutexCell(),
  once: () => new OnceCell(),
  readwrite: () => new ReadWriteCell(),
  semaphore: () => new SemaphoreCell(),
} satisfies Record<LockKind, () => LockCell>;
