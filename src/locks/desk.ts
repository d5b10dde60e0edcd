import type { Anchor } from '../base/anchor.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import { AbortedError, HeldError, type LossReason, NotOwnerError, TimeoutError, UnavailableError } from './errors.ts';
import type { Emitter, LockEvent } from './events.ts';
import { Grant, type GrantDesk } from './grant.ts';
import { Hold, type HoldKeeper } from './hold.ts';
import { Keeper } from './keeper.ts';
import { marginMs } from './margin.ts';
import type {
  AcquireReply,
  AcquireRequest,
  Address,
  Given,
  LockKind,
  LockStore,
  Mode,
  ReleaseReply,
  StoreEvents,
  Wake,
} from './port.ts';

export interface DeskSettings {
  readonly leaseMs: number;
  readonly handOverMs: number;
  /** How long a call goes on while the store cannot be reached. */
  readonly outageMs: number;
  /** `<host>/<pid>`. */
  readonly owner: string;
}

/** Which lock, and as what. */
export interface Wanted extends Address {
  readonly mode: Mode;
  readonly permits: number;
  readonly limit: number;
}

export interface Terms {
  /** Milliseconds to wait; 0 does not wait, Infinity waits for ever. */
  readonly waitMs: number;
  readonly leaseMs: number;
  readonly renews: boolean;
  readonly maxHoldMs: number;
  readonly signal: AbortSignal | undefined;
  readonly label: string;
  readonly replicas: number;
}

/** A `once` whose result is there already. */
export interface Done {
  readonly result: string;
}

/**
 * One call that wants a lock, from its first command until it has it or has given up. It is itself the request that goes
 * to the store: one object for each call, and not one for each layer.
 */
class Waiter implements AcquireRequest {
  readonly wanted: Wanted;
  readonly terms: Terms;
  readonly kind: LockKind;
  readonly name: string;
  readonly mode: Mode;
  readonly permits: number;
  readonly limit: number;
  readonly rid: string;
  readonly leaseMs: number;
  readonly handOverMs: number;
  readonly info: string;
  queue = false;
  ticket = 0;
  readonly beganMs: number;
  /** A hold that is to turn into what is wanted (upgrade, downgrade), instead of a new one. */
  readonly from: Hold | null;
  readonly resolve: (end: Hold | Done | null) => void;
  readonly reject: (error: unknown) => void;
  /** It stands in the store's queue, as far as we know. */
  queued = false;
  /** Where it waits here, once it does. */
  line: Line | null = null;
  /** It waits here only, for its turn in a row: it has not asked the store. */
  parked = false;
  /** Somebody who gave it back has named it as the next: the store may know of it by that. */
  named = false;
  /** A command is under way for it. */
  asking = false;
  /** To be asked once more when that is answered. */
  again = false;
  /** It was told that it has it, and asks only to be sure; and by whom: its hold continues that one's row. */
  called = false;
  after: Hold | null = null;
  /** Its acquire may have been carried out more than once, or without our knowledge. */
  ambiguous = false;
  /** Since when the store has not been reachable for it; 0: it is. */
  outSinceMs = 0;
  /** What the store last failed with. */
  failure: unknown = undefined;
  retryMs = RETRY_MS_MIN;
  settled = false;
  /** Listeners have heard that it waits. */
  told = false;
  stopTimer: (() => void) | null = null;
  stopSignal: (() => void) | null = null;

  constructor(
    desk: Desk,
    wanted: Wanted,
    terms: Terms,
    from: Hold | null,
    resolve: (end: Hold | Done | null) => void,
    reject: (error: unknown) => void,
  ) {
    this.wanted = wanted;
    this.terms = terms;
    this.kind = wanted.kind;
    this.name = wanted.name;
    this.mode = wanted.mode;
    this.permits = wanted.permits;
    this.limit = wanted.limit;
    this.rid = desk.nextRid();
    this.leaseMs = Math.min(terms.leaseMs, terms.maxHoldMs);
    this.handOverMs = desk.settings.handOverMs;
    this.info = desk.infoOf(terms.label);
    this.beganMs = desk.nowMs();
    this.from = from;
    this.resolve = resolve;
    this.reject = reject;
  }

  get key(): string {
    return keyOf(this.wanted);
  }
}

/** Who waits for one lock in this process, oldest first, and the timer that looks after the oldest. */
interface Line {
  readonly key: string;
  readonly waiters: Set<Waiter>;
  stop: (() => void) | null;
  dueMs: number;
  /**
   * Of a mutex that goes from one to the next in this process, or did a moment ago: ends the timer that looks after those
   * who are parked.
   */
  row: (() => void) | null;
  /** It has since that looked. */
  moved: boolean;
}

/** A silent queue is looked at when the present lease ends, and at least so often: a lease may be an hour. */
const LOOK_MS_MAX = 3000;
const LOOK_MS_MIN = 10;
/** How long a store keeps a queue that nobody tends. */
const QUEUE_MS = 60_000;
/** So many times, or for so long if they take only a moment each. */
const IN_A_ROW_MIN = 16;
const IN_A_ROW_MS = 10;
/** Who has waited for its turn in a row for so long asks the store after all. */
const PARKED_MS = 100;
const CLOSING_LOOK_MS = 20;
/** A replica that has only just joined says for the first time after a second that it is there. */
const REPLICAS_MS = 1500;
/** A store that has not answered its first question for so long is said to be out, not slow. */
const SILENT_MS = 100;
const RETRY_MS_MIN = 25;
const RETRY_MS_MAX = 500;

/** The lock was had, but not on as many replicas as asked for. */
class ReplicasError extends UnavailableError {}

const DONE = Promise.resolve();

const describe = ({ kind, name }: Address): string => `${kind} "${name}"`;
const wantedOf = ({ kind, name, mode, permits, limit }: Wanted): Wanted => ({ kind, name, mode, permits, limit });
const keyOf = ({ kind, name }: Address): string => `${kind} ${name}`;

/**
 * Everything between a caller and the store: asks, waits, is woken, gives up, renews, gives back. Written once for every
 * kind and every store. What it guarantees: a call ends (granted, or with one error) and leaves nothing behind at the
 * store, whatever was lost on the way; a hold is over here before it can be over there.
 */
export class Desk implements StoreEvents, HoldKeeper, GrantDesk {
  readonly settings: DeskSettings;
  readonly runtime: Runtime;
  readonly emitter: Emitter;
  readonly #anchor: Anchor;
  readonly #keeper: Keeper;
  readonly #holds = new Map<string, Hold>();
  readonly #waiters = new Map<string, Waiter>();
  readonly #lines = new Map<string, Line>();
  /** Locks that were handed to somebody who has yet to confirm: looked at once after `handOverMs`. */
  readonly #watched = new Map<string, { address: Address; looked: Promise<void> }>();
  readonly #looks = new Map<string, () => void>();
  /** Commands that clean up behind a call that has ended. */
  readonly #cleaning = new Set<Promise<void>>();
  #store!: LockStore;
  #next = 0;
  #closing: Promise<void> | null = null;
  #closed = false;

  constructor(settings: DeskSettings, runtime: Runtime, emitter: Emitter, anchor: Anchor) {
    this.settings = settings;
    this.runtime = runtime;
    this.emitter = emitter;
    this.#anchor = anchor;
    this.plainTerms = {
      waitMs: Infinity,
      leaseMs: Math.ceil(settings.leaseMs),
      renews: true,
      maxHoldMs: Infinity,
      signal: undefined,
      label: '',
      replicas: 0,
    };
    this.#keeper = new Keeper(runtime, {
      renew: (hold, leaseMs) => this.#renew(hold, leaseMs, ''),
      // To be told at once when it is taken by force, which may be long before the next renewal.
      onOld: (hold) => {
        if (this.#store.hears(hold)) return;
        this.#store.listen(hold).then(
          // It may have been taken before we could hear.
          () => this.#verify(hold),
          () => undefined,
        );
      },
    });
  }

  /** The terms of a call that says nothing. */
  readonly plainTerms: Terms;

  /** The store tells us things and we ask it things: one of the two must come first. */
  attach(store: LockStore): void {
    this.#store = store;
  }

  get store(): LockStore {
    return this.#store;
  }

  /** The same, for a call of its own: after `close()` it fails as an acquire does. */
  get open(): LockStore {
    if (this.#closing) throw new AbortedError('the locks are closed');
    return this.#store;
  }

  nextRid(): string {
    return `${this.#store.client}.${(++this.#next).toString(36)}`;
  }

  nowMs(): number {
    return this.runtime.clock.monotonic();
  }

  infoOf(label: string): string {
    return label === '' ? this.settings.owner : `${this.settings.owner} ${label}`;
  }

  // Taking

  acquire(wanted: Wanted, terms: Terms): Promise<Grant> {
    return new Promise((resolve, reject) => {
      this.#begin(wanted, terms, null, reject, (end) => {
        if (end instanceof Hold) resolve(new Grant(this, end));
        else reject(new HeldError(`${describe(wanted)} is held`));
      });
    });
  }

  tryAcquire(wanted: Wanted, terms: Terms): Promise<Grant | null> {
    return new Promise((resolve, reject) => {
      this.#begin(wanted, terms, null, reject, (end) => resolve(end instanceof Hold ? new Grant(this, end) : null));
    });
  }

  /** A hold; null when it is held and nobody wanted to wait; for a `once` its result. */
  take(wanted: Wanted, terms: Terms, from: Hold | null = null): Promise<Hold | Done | null> {
    const taking = new Promise<Hold | Done | null>((resolve, reject) => {
      this.#begin(wanted, terms, from, reject, resolve);
    });
    // Had, it is retired; not had, its clean-up takes over from here.
    from?.changesWith(taking);
    return taking;
  }

  #begin(
    wanted: Wanted,
    terms: Terms,
    from: Hold | null,
    reject: (error: unknown) => void,
    resolve: (end: Hold | Done | null) => void,
  ): void {
    if (this.#closing || terms.signal?.aborted) {
      reject(this.#refusal(wanted, terms));
      return;
    }
    const waiter = new Waiter(this, wanted, terms, from, resolve, reject);
    this.#anchor.hold();
    this.#waiters.set(waiter.rid, waiter);
    if (this.emitter.hears('asked')) this.emitter.tell('asked', this.#eventOf(waiter));
    if (terms.waitMs > 0 && terms.waitMs !== Infinity) this.#limit(waiter);
    if (terms.signal) this.#follow(waiter, terms.signal);
    if (this.#lines.size > 0 && wanted.kind === 'mutex' && this.#park(waiter)) return;
    waiter.asking = true;
    this.#send(waiter, waiter.beganMs);
  }

  #limit(waiter: Waiter): void {
    const { waitMs } = waiter.terms;
    waiter.stopTimer = this.runtime.timers.after(waitMs, () => {
      const what = describe(waiter.wanted);
      // With Redis out nobody can say whether it is held: "timeout" would send the caller to look for a holder.
      this.#giveUp(
        waiter,
        this.#hasAnswered(waiter)
          ? new TimeoutError(`${what} was not had within ${waitMs} ms`)
          : new UnavailableError(
              `${what} was not had within ${waitMs} ms: ${this.#store.trouble ?? 'its store does not answer'}`,
              { cause: waiter.failure },
            ),
      );
    });
  }

  /** Whether the store has answered it: it stands in the queue, or its first question is too young to tell. */
  #hasAnswered({ outSinceMs, asking, queued, beganMs }: Waiter): boolean {
    if (outSinceMs !== 0) return false;
    return !asking || queued || this.nowMs() - beganMs < SILENT_MS;
  }

  #follow(waiter: Waiter, signal: AbortSignal): void {
    const aborted = (): void => this.#giveUp(waiter, this.#refusal(waiter.wanted, waiter.terms));
    signal.addEventListener('abort', aborted, { once: true });
    waiter.stopSignal = () => signal.removeEventListener('abort', aborted);
  }

  /** The call ends: everything that it had here is gone before its caller hears of it. */
  #settle(waiter: Waiter, end: Hold | Done | null, error: unknown = undefined): void {
    waiter.settled = true;
    this.#waiters.delete(waiter.rid);
    if (waiter.line) this.#leaveLine(waiter, waiter.line);
    waiter.stopTimer?.();
    waiter.stopSignal?.();
    this.#anchor.drop();
    if (this.emitter.used) this.#tellEnd(waiter, end, error);
    if (error !== undefined) waiter.reject(error);
    else waiter.resolve(end);
  }

  #refusal(wanted: Wanted, terms: Terms): Error {
    if (this.#closing) return new AbortedError('the locks are closed');
    return new AbortedError(`waiting for ${describe(wanted)} was aborted`, { cause: terms.signal?.reason });
  }

  /** Asks the store until it has answered, the call has ended, or the store was out for too long. */
  #ask(waiter: Waiter): void {
    if (waiter.settled) return;
    if (waiter.asking) {
      // What is under way may have been answered before the reason to ask again came up.
      waiter.again = true;
      return;
    }
    waiter.asking = true;
    this.#send(waiter);
  }

  #send(waiter: Waiter, sentMs = this.nowMs()): void {
    waiter.parked = false;
    const wantsQueue = waiter.terms.waitMs > 0;
    const hears = wantsQueue && this.#store.hears(waiter.wanted);
    // Who may be queued must be able to hear. A first try without the queue spares most processes the connection.
    if (waiter.queued && !hears) {
      this.#store.listen(waiter.wanted).then(
        () => this.#send(waiter),
        (error: unknown) => this.#unanswered(waiter, sentMs, error),
      );
      return;
    }
    this.#command(waiter, hears).then(
      (reply) => this.#answered(waiter, sentMs, hears, reply),
      (error: unknown) => this.#unanswered(waiter, sentMs, error),
    );
  }

  #command(waiter: Waiter, queue: boolean): Promise<AcquireReply> {
    waiter.queue = queue;
    if (waiter.from) return this.#change(waiter, waiter.from);
    if (waiter.terms.replicas > 0) return this.#replicated(waiter);
    return this.#store.acquire(waiter);
  }

  async #replicated(waiter: Waiter): Promise<AcquireReply> {
    const { replicas } = waiter.terms;
    const [reply, confirmed] = await this.#store.acquireReplicated(waiter, replicas, REPLICAS_MS);
    if (reply.outcome === 'granted' && confirmed < replicas) {
      // Not tried again: the caller asked for that many, and they are not there.
      throw new ReplicasError(`${describe(waiter.wanted)} reached ${confirmed} of ${replicas} replicas`);
    }
    return reply;
  }

  async #change(waiter: Waiter, from: Hold): Promise<AcquireReply> {
    const { rid: nextRid, mode: to, kind, name, leaseMs, queue, handOverMs, info } = waiter;
    const reply = await this.#store.change({
      kind,
      name,
      rid: from.rid,
      nextRid,
      to,
      leaseMs,
      queue,
      handOverMs,
      info,
    });
    if (reply.outcome === 'absent') {
      from.lose('refused');
      throw from.loss ?? new NotOwnerError(`${describe(from)} was released`);
    }
    if (reply.outcome === 'busy') {
      // Not yet asked with the right to wait: a first try without hearing. Else somebody waits to upgrade already.
      if (waiter.terms.waitMs > 0 && !queue) return { outcome: 'held', retryMs: LOOK_MS_MAX, ticket: 0 };
      const why = waiter.terms.waitMs > 0 ? 'another reader waits to upgrade' : 'there are other readers';
      throw new HeldError(`${describe(from)} cannot be upgraded: ${why}`);
    }
    return reply;
  }

  #unanswered(waiter: Waiter, sentMs: number, error: unknown): void {
    if (waiter.settled) return;
    if (!(error instanceof UnavailableError) || error instanceof ReplicasError || this.#closing) {
      this.#giveUp(waiter, error);
      return;
    }
    waiter.ambiguous = true;
    waiter.failure = error;
    waiter.outSinceMs ||= sentMs;
    if (this.nowMs() - waiter.outSinceMs + waiter.retryMs >= this.settings.outageMs) {
      this.#giveUp(waiter, error);
      return;
    }
    const pauseMs = waiter.retryMs * (0.5 + this.runtime.random.fraction());
    waiter.retryMs = Math.min(waiter.retryMs * 2, RETRY_MS_MAX);
    this.runtime.timers.after(pauseMs, () => {
      if (!waiter.settled) this.#send(waiter);
    });
  }

  #answered(waiter: Waiter, sentMs: number, heard: boolean, reply: AcquireReply): void {
    if (waiter.settled) {
      // It gave up meanwhile, or was told of its grant before this came (then it is in use, and must not be given back).
      if (reply.outcome === 'granted' && !this.#holds.has(waiter.rid)) this.#clean(waiter);
      return;
    }
    waiter.outSinceMs = 0;
    waiter.retryMs = RETRY_MS_MIN;
    if (reply.outcome === 'granted') {
      if (waiter.ticket !== 0 && !waiter.called) this.#askOthers(waiter);
      const hold = this.#hold(waiter, reply.token, sentMs, waiter.leaseMs);
      if (waiter.after !== null) hold.follow(waiter.after);
      this.#settle(waiter, hold);
      return;
    }
    // Told in vain, or long ago.
    waiter.called = false;
    waiter.after = null;
    if (reply.outcome === 'queued' && reply.rejoined) this.#askOthers(waiter);
    if (reply.outcome === 'held' && waiter.terms.waitMs > 0 && !heard) {
      // Again, with the right to wait.
      waiter.queued = true;
      this.#send(waiter);
      return;
    }
    if (waiter.again && reply.outcome === 'queued') {
      waiter.again = false;
      this.#queued(waiter, reply.ticket);
      this.#send(waiter);
      return;
    }
    waiter.asking = false;
    waiter.again = false;
    switch (reply.outcome) {
      case 'done':
        this.#settle(waiter, { result: reply.result });
        return;
      case 'held':
        if (waiter.terms.waitMs > 0) this.#joinLine(waiter, reply.retryMs, reply.ticket);
        else this.#settle(waiter, null);
        return;
      case 'queued':
        this.#joinLine(waiter, reply.retryMs, reply.ticket);
        return;
      case 'gone':
        this.#giveUp(waiter, new AbortedError(`${describe(waiter.wanted)} was given up before`));
    }
  }

  /**
   * One that waited found itself out of the queue, or had to ask for what it should have been told: the store has lost
   * the queue, or messages. Those who wait with it have been lost as well, most likely.
   */
  #askOthers(waiter: Waiter): void {
    this.#askLine(waiter.wanted, waiter);
  }

  #askLine(address: Address, but: Waiter | null = null): void {
    for (const waiter of this.#lines.get(keyOf(address))?.waiters ?? []) {
      if (waiter !== but && !waiter.asking) this.#ask(waiter);
    }
  }

  /** The call ends with an error, and whatever the store may hold for it is given back. */
  #giveUp(waiter: Waiter, error: unknown): void {
    if (waiter.settled) return;
    this.#settle(waiter, null, error);
    if (!waiter.parked || waiter.named) this.#clean(waiter);
    // It may have asked for all.
    if (!waiter.parked) this.#represent(waiter);
  }

  #clean(waiter: Waiter): void {
    const { wanted, rid, terms } = waiter;
    // Asked and not answered: a copy of the acquire may come behind us on another connection.
    const ambiguous = waiter.asking || waiter.ambiguous;
    const { from } = waiter;
    const backTo = from?.mode === 'read' ? from.rid : '';
    // A place in the queue lasts for longer than a short lease. One that changes is waited for, and ends with its own.
    const forMs = from === null ? Math.max(terms.leaseMs, QUEUE_MS) : terms.leaseMs;
    const cleaning = this.#cleanUp({ ...wanted, rid, ambiguous, backTo }, forMs);
    // Until then nobody knows as what the old hold is known there.
    if (from) {
      from.changing = cleaning.then(() => {
        from.changing = null;
        if (from.state === 'held') return this.#verify(from);
      });
    }
  }

  /** Gives back at the store what nobody here wants, for as long as it could still be held there. */
  #cleanUp(what: Wanted & { rid: string; ambiguous: boolean; backTo?: string }, leaseMs: number): Promise<void> {
    const endMs = this.nowMs() + leaseMs;
    const work = async (): Promise<void> => {
      for (let retryMs = RETRY_MS_MIN; ; retryMs = Math.min(retryMs * 2, RETRY_MS_MAX)) {
        try {
          const { handOverMs } = this.settings;
          const sentMs = this.nowMs();
          const reply = await this.#store.release({ backTo: '', next: '', nextQueued: false, ...what, handOverMs });
          if (typeof reply === 'object') this.#given(reply, sentMs, what, null);
          else if (reply === 'handed' || reply === 'moved') this.#watch(what);
          else if (retryMs > RETRY_MS_MIN) this.#askLine(what);
          this.#represent(what);
          return;
        } catch (error) {
          if (!(error instanceof UnavailableError) || this.nowMs() >= endMs || this.#closing) return;
          await sleep(this.runtime.timers, retryMs);
        }
      }
    };
    const cleaning = work().finally(() => this.#cleaning.delete(cleaning));
    this.#cleaning.add(cleaning);
    return cleaning;
  }

  // Waiting

  #joinLine(waiter: Waiter, retryMs: number, ticket: number): void {
    this.#queued(waiter, ticket);
    if (!waiter.line) {
      const { key } = waiter;
      let line = this.#lines.get(key);
      if (!line) {
        line = { key, waiters: new Set(), stop: null, dueMs: Infinity, row: null, moved: false };
        this.#lines.set(key, line);
      }
      this.#stand(waiter, line);
    }
    this.#tend(waiter.line!, retryMs);
  }

  #stand(waiter: Waiter, line: Line): void {
    waiter.line = line;
    line.waiters.add(waiter);
  }

  #queued(waiter: Waiter, ticket: number): void {
    waiter.queued = true;
    waiter.ticket = ticket;
    this.#tellWaiting(waiter);
  }

  #tellWaiting(waiter: Waiter): void {
    if (waiter.told) return;
    waiter.told = true;
    if (this.emitter.hears('waiting')) this.emitter.tell('waiting', this.#eventOf(waiter));
  }

  #leaveLine(waiter: Waiter, line: Line): void {
    waiter.line = null;
    line.waiters.delete(waiter);
    if (line.row === null) this.#closeLine(line);
  }

  /** Unless somebody waits there. */
  #closeLine(line: Line): void {
    if (line.waiters.size > 0) return;
    line.stop?.();
    this.#lines.delete(line.key);
  }

  /**
   * While a mutex goes from one to the next in this process, who asks for it waits here only: its turn in the row comes
   * before the store could say more than "wait". False: there is no row, or it must ask all the same.
   */
  #park(waiter: Waiter): boolean {
    const line = this.#lines.get(waiter.key);
    if (!line || line.row === null || waiter.terms.waitMs === 0 || waiter.terms.replicas > 0) return false;
    waiter.parked = true;
    this.#stand(waiter, line);
    this.#tellWaiting(waiter);
    return true;
  }

  /** Nobody is parked for long: `inspect` is to see who waits, and it is the store that heals what is lost. */
  #lookAfterRow(line: Line): () => void {
    return this.runtime.timers.after(PARKED_MS, () => {
      const sinceMs = this.nowMs() - PARKED_MS;
      let parked = false;
      for (const waiter of line.waiters) {
        if (!waiter.parked) continue;
        if (waiter.beganMs <= sinceMs) this.#ask(waiter);
        else parked = true;
      }
      if (parked || line.moved) {
        line.moved = false;
        line.row = this.#lookAfterRow(line);
      } else {
        line.row = null;
        this.#closeLine(line);
      }
    });
  }

  /**
   * What went from one to the next here goes elsewhere now: one of those who are parked asks for all. `free`: the store says
   * that nobody waits, so that who believes to be in its queue is not.
   */
  #represent(address: Address, free = false): void {
    const line = this.#lineOf(address);
    if (!line || (line.row === null && !free)) return;
    let first: Waiter | null = null;
    for (const waiter of line.waiters) {
      if (waiter.asking || (waiter.queued && !free)) return;
      first ??= waiter;
    }
    if (first) this.#ask(first);
    else this.#endRow(address);
  }

  /** Nobody is parked there any more: those who are ask the store. */
  #endRow(address: Address): void {
    const line = this.#lineOf(address);
    if (!line || line.row === null) return;
    line.row();
    line.row = null;
    for (const waiter of line.waiters) if (waiter.parked) this.#ask(waiter);
    this.#closeLine(line);
  }

  #lineOf(address: Address): Line | undefined {
    return this.#lines.size > 0 ? this.#lines.get(keyOf(address)) : undefined;
  }

  /**
   * The one timer of a line. Wake-ups do the work; this heals what a wake-up cannot: a holder that died (its lease ends),
   * a message that was lost. The oldest waiter asks again, by its ticket, which also lets the store move on.
   */
  #tend(line: Line, retryMs: number): void {
    const afterMs = Math.min(Math.max(retryMs, LOOK_MS_MIN), LOOK_MS_MAX) + 2;
    const dueMs = this.nowMs() + afterMs;
    if (line.stop && line.dueMs <= dueMs) return;
    line.stop?.();
    line.dueMs = dueMs;
    line.stop = this.runtime.timers.after(afterMs, () => {
      line.stop = null;
      line.dueMs = Infinity;
      const [oldest] = line.waiters;
      if (!oldest) return;
      // Should its answer not come, the line must still be tended.
      this.#tend(line, LOOK_MS_MAX);
      this.#ask(oldest);
    });
  }

  /** Handed on, not yet confirmed: if that process is stopped or cut off, the store moves on when somebody comes by. */
  #watch(of: Wanted): void {
    if (!this.#store.remote || this.#closed) return;
    const address = wantedOf(of);
    const key = keyOf(address);
    if (this.#watched.has(key)) return;
    const look = async (): Promise<void> => {
      const untilMs = this.nowMs() + this.settings.handOverMs + 2;
      while (this.nowMs() < untilMs) {
        await sleep(this.runtime.timers, this.#closing ? CLOSING_LOOK_MS : untilMs - this.nowMs());
        if (this.#closing && (await this.#isConfirmed(address))) break;
      }
      this.#watched.delete(key);
      const nobody = { rid: `${this.#store.client}.0`, ambiguous: false, backTo: '', next: '', nextQueued: false };
      const reply = await this.#store.release({ ...address, ...nobody, handOverMs: this.settings.handOverMs });
      // That one was stopped, too, perhaps.
      if (reply === 'moved') this.#watch(address);
    };
    this.#watched.set(key, { address, looked: look().catch(() => undefined) });
  }

  /** Nobody holds it on the mere strength of a hand-over. */
  async #isConfirmed(address: Address): Promise<boolean> {
    const { holders } = await this.#store.inspect(address);
    return holders.every(({ info }) => info !== '');
  }

  // StoreEvents

  wake(wake: Wake): void {
    if (wake.event === 'lost') {
      this.#holds.get(wake.rid)?.lose('forced');
      return;
    }
    if (wake.event === 'look') {
      const waiter = this.#waiters.get(wake.rid);
      if (waiter) this.#ask(waiter);
      else this.#looks.get(wake.rid)?.();
      return;
    }
    const waiter = this.#waiters.get(wake.rid);
    if (!waiter) {
      // Given up in the same moment: the clean-up is under way. Ours already: the grant came by the reply as well.
      return;
    }
    const atMs = this.#whenHere(wake.atUs);
    const graceMs = this.settings.handOverMs;
    const nowMs = this.nowMs();
    // Heard late (we were stopped, or the network was slow), or from a clock that jumped: ask before believing it.
    const fresh = atMs !== null && atMs <= nowMs && nowMs < atMs + graceMs / 2;
    if (!fresh || waiter.terms.replicas > 0) {
      waiter.called = true;
      this.#ask(waiter);
      return;
    }
    const hold = this.#hold(waiter, wake.token, atMs, graceMs);
    // `atMs` is early to be on the safe side, by more than a row lasts if the clocks were compared long ago.
    hold.rowSinceMs = nowMs;
    // An ask that is under way for it may still come after its release.
    if (waiter.asking) hold.ambiguous = true;
    this.#settle(waiter, hold);
    this.#confirm(hold, waiter.terms);
  }

  /**
   * When, on our clock, the store's clock showed `storeUs`: not before this. A reading was taken after we sent for it, so
   * that the true moment can only be later, and a deadline reckoned from this one only earlier than need be.
   */
  #whenHere(storeUs: number): number | null {
    const reading = this.#store.clock;
    if (!reading) return null;
    const sinceMs = (storeUs - reading.storeUs) / 1000;
    // Two clocks drift apart by less than 1 % of the time since they were compared.
    return reading.sentMs + sinceMs - Math.abs(sinceMs) * 0.01;
  }

  interrupted(): void {
    if (this.#closing) return;
    for (const waiter of this.#waiters.values()) if (waiter.queued) this.#ask(waiter);
    for (const hold of this.#holds.values()) if (!hold.renewing) void this.#verify(hold);
    for (const look of this.#looks.values()) look();
  }

  /** Calls `run` when the store wakes `rid` without granting it anything (latches), and when wake-ups may have been missed. */
  onLook(rid: string, run: () => void): () => void {
    this.#looks.set(rid, run);
    this.#anchor.hold();
    return () => {
      if (this.#looks.delete(rid)) this.#anchor.drop();
    };
  }

  // Holding

  #hold(waiter: Waiter, token: number, sentMs: number, leaseMs: number): Hold {
    const hold = new Hold(this, waiter, token, sentMs, leaseMs);
    this.#holds.set(hold.rid, hold);
    this.#keeper.add(hold);
    return hold;
  }

  /** A hand-over lasts only `handOverMs`: turned into a full lease, unless it was given back in the same turn. */
  #confirm(hold: Hold, terms: Terms): void {
    this.runtime.timers.nextTurn(() => {
      if (hold.state === 'held')
        void this.#renew(hold, Math.min(terms.leaseMs, terms.maxHoldMs), this.infoOf(terms.label));
    });
  }

  /** True: it holds for `leaseMs` from now, or until maxHold. False: it is lost, or could not be asked. */
  async #renew(hold: Hold, wantedMs: number, info: string, exactly = false): Promise<boolean> {
    const sentMs = this.nowMs();
    // With the margin on top the deadline comes to lie at maxHold itself, and there is nothing more to renew.
    const leaseMs = Math.min(wantedMs, hold.untilMs - sentMs + marginMs(hold.leaseMs));
    const deadlineMs = Math.min(sentMs + leaseMs - marginMs(leaseMs), hold.untilMs);
    const number = ++hold.renewals;
    if (exactly) {
      hold.lastExact = number;
      // Shorter than before: in force from now on, whether or not we hear of it.
      if (deadlineMs < hold.deadlineMs) this.#keeper.move(hold, deadlineMs);
    }
    hold.renewing = true;
    try {
      const { kind, name, rid, mode } = hold;
      const renewed = await this.#store.renew({
        exactly,
        kind,
        name,
        rid,
        mode,
        leaseMs: Math.max(1, Math.ceil(leaseMs)),
        info,
      });
      // Released or lost meanwhile: the answer is about nobody's lock, and no loss.
      if (hold.state !== 'held') return false;
      if (!renewed) {
        // While it changes into another one, it is known there by one id or the other.
        if (!hold.changing) hold.lose('refused');
        return false;
      }
      // Unless one that was sent after it may have made it shorter.
      if (number >= hold.lastExact)
        this.#keeper.move(hold, exactly ? deadlineMs : Math.max(deadlineMs, hold.deadlineMs));
      return true;
    } catch (error) {
      if (!(error instanceof UnavailableError))
        this.runtime.log.warn({ err: error, name: hold.name }, 'renewing a lock');
      return false;
    } finally {
      hold.renewing = false;
    }
  }

  /** Asks whether a hold still stands, without making a fixed lease longer. */
  async #verify(hold: Hold): Promise<void> {
    const leftMs = hold.deadlineMs - this.nowMs();
    const leaseMs = hold.renews ? hold.leaseMs : leftMs + marginMs(hold.leaseMs);
    if (leftMs > 0 && hold.state === 'held') await this.#renew(hold, leaseMs, '');
  }

  onLost(hold: Hold, reason: LossReason): void {
    this.#holds.delete(hold.rid);
    this.#endRow(hold);
    // A renewal whose answer we did not have in time may stand there, for nobody.
    if (hold.renewals > 0 && !hold.changing && (reason === 'expired' || reason === 'max_hold')) {
      void this.#cleanUp({ ...wantedOf(hold), rid: hold.rid, ambiguous: true }, hold.leaseMs);
    }
    const heldMs = this.nowMs() - hold.sinceMs;
    this.runtime.log.warn({ kind: hold.kind, name: hold.name, reason, heldMs }, 'a lock was lost');
    if (this.emitter.hears('lost')) {
      this.emitter.tell('lost', { ...this.#eventOf(hold), token: hold.token, heldMs, reason });
    }
  }

  async extend(hold: Hold, leaseMs: number): Promise<void> {
    if (await this.#renew(hold, leaseMs, '', true)) {
      hold.leaseMs = leaseMs;
      return;
    }
    if (hold.loss) throw hold.loss;
    if (hold.state === 'released') throw new NotOwnerError(`${describe(hold)} was released`);
    throw new UnavailableError(`${describe(hold)} could not be extended`);
  }

  // Giving back

  giveBack(hold: Hold): Promise<void> {
    hold.count--;
    // A loss is told to everybody who shares the hold.
    if (!hold.isHeld()) return hold.loss ? Promise.reject(hold.loss) : DONE;
    if (hold.count > 0) return DONE;
    // A change that was given up is being taken back: before that, nobody knows by which id it is held.
    if (hold.changing) return hold.changing.then(() => this.giveBack(this.#countedAgain(hold)));
    this.#drop(hold);
    const sentMs = this.nowMs();
    if (hold.kind === 'mutex') this.#passOn(hold, sentMs);
    const oneByOne = hold.kind === 'mutex' || hold.kind === 'fair';
    return new Promise((resolve, reject) => {
      this.#release(hold, hold.ambiguous).then(
        (reply) => {
          if (typeof reply === 'object') {
            // Whoever is first of all begins a row of its own.
            this.#given(reply, sentMs, hold, reply.to === hold.next ? hold : null);
            // The new holder goes first: what it has to say to the store is on its way while we go on.
            this.runtime.timers.nextTurn(resolve);
            return;
          }
          if (reply === 'handed') this.#watch(hold);
          if (reply !== 'absent' && reply !== 'moved') {
            if (oneByOne) this.#represent(hold, reply === 'released');
            resolve();
            return;
          }
          hold.state = 'held';
          hold.lose('refused');
          reject(hold.loss);
        },
        (error: unknown) => {
          this.#endRow(hold);
          this.#releaseAgain(hold, error).then(resolve, reject);
        },
      );
      // In the same call.
      if (hold.next === '' && oneByOne) this.#represent(hold);
    });
  }

  /**
   * Who waits here for a mutex that is given back here: it goes to the next of this process before it goes to another,
   * some times in a row, since that costs one message where the other way costs three (and wakes nobody). Redis decides all
   * the same, and mints each its token. A fair lock never asks for it.
   */
  #passOn(hold: Hold, nowMs: number): void {
    const line = this.#lineOf(hold);
    if (!line) return;
    if (hold.inARow >= IN_A_ROW_MIN && nowMs > hold.rowSinceMs + IN_A_ROW_MS) return;
    for (const waiter of line.waiters) {
      if (waiter.asking) continue;
      hold.next = waiter.rid;
      hold.nextQueued = waiter.queued;
      waiter.named = true;
      line.moved = true;
      line.row ??= this.#lookAfterRow(line);
      return;
    }
  }

  /** What was given back went to another request of this process. `row`: the hold before it, of which it continues the row. */
  #given({ given, to }: Given, sentMs: number, of: Wanted, row: Hold | null): void {
    const waiter = this.#waiters.get(to);
    if (!waiter) {
      // Given up meanwhile, and its own clean-up may have ended before. Or it heard of it otherwise: then it is in use, and
      // must not be given back.
      if (!this.#holds.has(to)) void this.#cleanUp({ ...wantedOf(of), rid: to, ambiguous: true }, QUEUE_MS);
      return;
    }
    const { handOverMs } = this.settings;
    // Answered late, or to be had on replicas as well: ask before believing it.
    if (this.nowMs() >= sentMs + handOverMs / 2 || waiter.terms.replicas > 0) {
      waiter.called = true;
      waiter.after = row;
      this.#ask(waiter);
      return;
    }
    const hold = this.#hold(waiter, given, sentMs, handOverMs);
    if (row !== null) hold.follow(row);
    if (waiter.asking) hold.ambiguous = true;
    this.#settle(waiter, hold);
    this.#confirm(hold, waiter.terms);
  }

  #countedAgain(hold: Hold): Hold {
    hold.count++;
    return hold;
  }

  #release(hold: Hold, ambiguous: boolean): Promise<ReleaseReply> {
    hold.ambiguous = ambiguous;
    return this.#store.release(hold);
  }

  async #releaseAgain(hold: Hold, failure: unknown): Promise<void> {
    const endMs = Math.min(hold.deadlineMs, this.nowMs() + this.settings.outageMs);
    for (let retryMs = RETRY_MS_MIN; ; retryMs = Math.min(retryMs * 2, RETRY_MS_MAX)) {
      if (!(failure instanceof UnavailableError)) throw failure;
      // After its deadline the lease ends by itself: trying on would help nobody.
      if (this.#closing || this.nowMs() + retryMs >= endMs) {
        // The caller is told; the store still is when it comes back, while it could hold it.
        this.#cleanUp({ ...wantedOf(hold), rid: hold.rid, ambiguous: true }, hold.deadlineMs - this.nowMs());
        this.#cleanNext(hold);
        throw failure;
      }
      await this.rest(retryMs);
      try {
        // "Not yours" most likely means that the first one did it, whose answer was lost: it was sent while the lease was
        // in force by our own clock.
        const sentMs = this.nowMs();
        const reply = await this.#release(hold, true);
        if (typeof reply === 'object') this.#given(reply, sentMs, hold, reply.to === hold.next ? hold : null);
        else if (reply === 'handed') this.#watch(hold);
        // The first one may have given it to a neighbour, and nobody here heard of it.
        else {
          this.#askLine(hold);
          this.#cleanNext(hold);
        }
        return;
      } catch (error) {
        failure = error;
      }
    }
  }

  /** The one that was to have it next may have been given it after it had given up. */
  #cleanNext(hold: Hold): void {
    const { next } = hold;
    if (next === '' || this.#waiters.has(next) || this.#holds.has(next)) return;
    void this.#cleanUp({ ...wantedOf(hold), rid: next, ambiguous: true }, QUEUE_MS);
  }

  /** Ours no more by our own will: no timers, no loss. */
  #drop(hold: Hold): void {
    hold.state = 'released';
    hold.disarm?.();
    this.#holds.delete(hold.rid);
    if (this.emitter.hears('released')) {
      const heldMs = this.nowMs() - hold.sinceMs;
      this.emitter.tell('released', { ...this.#eventOf(hold), token: hold.token, heldMs });
    }
  }

  /** Forgets a hold that the store has turned into another one (upgrade, downgrade, finish). */
  retire(hold: Hold): void {
    if (hold.state === 'held') this.#drop(hold);
  }

  holdsOf({ kind, name }: Address): Hold[] {
    return [...this.#holds.values()].filter((hold) => hold.kind === kind && hold.name === name && hold.isHeld());
  }

  // Sight

  #eventOf(of: Waiter | Hold): LockEvent {
    const { kind, name, mode } = 'wanted' in of ? of.wanted : of;
    const label = 'wanted' in of ? of.terms.label : of.label;
    return { kind, name, mode, ...(label === '' ? {} : { label }) };
  }

  #tellEnd(waiter: Waiter, end: Hold | Done | null, error: unknown): void {
    const waitedMs = this.nowMs() - waiter.beganMs;
    if (end instanceof Hold) {
      if (this.emitter.hears('acquired')) {
        const waited = waiter.told;
        this.emitter.tell('acquired', { ...this.#eventOf(waiter), token: end.token, waitedMs, waited });
      }
    } else if (!(end && 'result' in end) && this.emitter.hears('failed')) {
      const reason =
        error instanceof TimeoutError
          ? 'timeout'
          : error instanceof AbortedError
            ? 'aborted'
            : error === undefined || error instanceof HeldError
              ? 'held'
              : 'unavailable';
      this.emitter.tell('failed', { ...this.#eventOf(waiter), reason, waitedMs });
    }
  }

  get closed(): boolean {
    return this.#closing !== null;
  }

  /** Sends a command again while the store cannot be reached. Only for commands that may be carried out twice. */
  async patiently<T>(command: () => Promise<T>): Promise<T> {
    const endMs = this.nowMs() + this.settings.outageMs;
    for (let retryMs = RETRY_MS_MIN; ; retryMs = Math.min(retryMs * 2, RETRY_MS_MAX)) {
      try {
        return await command();
      } catch (error) {
        if (!(error instanceof UnavailableError) || this.#closing || this.nowMs() + retryMs >= endMs) throw error;
        await this.rest(retryMs);
      }
    }
  }

  /**
   * Sleeps between two tries of a call that somebody awaits. Nothing else keeps the process alive then: it would end, with
   * code 13, in the middle of its caller's await.
   */
  async rest(ms: number): Promise<void> {
    this.#anchor.hold();
    try {
      await sleep(this.runtime.timers, ms);
    } finally {
      this.#anchor.drop();
    }
  }

  /** Calls of this process that wait for a lock now. */
  get waiting(): number {
    return this.#waiters.size;
  }

  get holding(): number {
    return this.#holds.size;
  }

  /** Rejects who waits, gives back what is held, stops every timer. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    // Its own timers would let the process end before it is done.
    this.#anchor.hold();
    for (const line of this.#lines.values()) {
      line.row?.();
      line.row = null;
      this.#closeLine(line);
    }
    for (const waiter of this.#waiters.values()) this.#giveUp(waiter, new AbortedError('the locks were closed'));
    for (const hold of this.#holds.values()) {
      hold.lose('closed');
      void this.#cleanUp({ ...wantedOf(hold), rid: hold.rid, ambiguous: hold.ambiguous }, 0);
    }
    for (const look of this.#looks.values()) look();
    this.#keeper.close();
    // First what hands over, then what looks after those to whom it was handed: nobody else would look so soon.
    await Promise.all(this.#cleaning);
    await Promise.all(
      [...this.#watched.values()].map(async ({ address, looked }) => {
        await sleep(this.runtime.timers, CLOSING_LOOK_MS);
        if (!(await this.#isConfirmed(address).catch(() => true))) await looked;
      }),
    );
    this.#closed = true;
    await this.#store.close();
    this.#anchor.drop();
    this.#anchor.close();
  }
}
