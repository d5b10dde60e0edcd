import { messageOf, unavailable } from '../base/errors.ts';
import { Paced } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import { SEAT_CHANGES_MAX, type SeatGate, type SeatRevision } from '../gate/port.ts';
import type { SaleLedger, SeatLedger } from '../ledger/port.ts';
import { mayAdmit, type SaleRecord, stampOf } from '../model/sale.ts';
import type { SaleSeats, SeatedItem } from '../model/sale-seats.ts';
import { SEAT_STATES, type SeatState, seatName, shownStates } from '../model/seat-map.ts';
import type { Pace } from './pace.ts';
import { positionOf, revisionText } from './positions.ts';
import { type PublicAnswer, publicAnswer } from './public-answer.ts';

/** Watchers hear of changes within this time, or when there is time to tell them. */
const FRESH_MS = 100;
/** How old the answer for everybody may be. It is written anew at most so often: of 100 000 seats it has 700 KB. */
const ANSWER_MS = 500;
/** After a failed look. */
const RETRY_MS = 1000;
/** Of all sales together that are kept. A seat takes some 15 bytes, most of them in the answer. */
const KEPT_SEATS_MAX = 500_000;
const KEPT_SALES_MAX = 200;
/** Sales that were not asked for lately: reading one means all of its seats. */
const COLD = { pauseFactor: 3, atOnce: 2, waitingMax: 64, what: 'seats of sales are being read' };
/** Changed seats that are remembered for those who come back, of each watched sale. */
const LOG_SEATS_MAX = 20_000;
/** Answers for those who come back to the same revision. */
const RESUMES_KEPT_MAX = 32;
/** Watched sales that are looked at in one round: where other processes sell, nothing tells this one. */
const POLLED = 64;
/** The revision of a sale without a gate comes from the ledger's revs, and counts on far above what a gate counts to. */
const LEDGER_N = 2 ** 40;

/** The states of all seats: those of each item as one text, row after row as in the answer to `GET …/seats`. */
export interface SeatsSnapshot {
  readonly revision: string;
  readonly items: readonly { readonly code: string; readonly states: string }[];
}

/** Names of seats by what they are now. */
export interface SeatsChanged {
  readonly revision: string;
  readonly changes: { readonly [State in ShownState]?: readonly string[] };
}

export type ShownState = 'f' | 'r' | 's' | 'b';

export interface SeatsEvent {
  readonly type: 'seats';
  readonly id: string;
  readonly seats: SeatsSnapshot | SeatsChanged;
}

/** All who watch get the same array: whoever writes it as text does so once. */
export type HearSeats = (events: readonly SeatsEvent[]) => void;

export interface SeatBoardDependencies {
  readonly runtime: Runtime;
  readonly gate: Pick<SeatGate, 'seats'>;
  readonly ledger: Pick<SaleLedger, 'getSale'> & Pick<SeatLedger, 'seatHolds' | 'blockedSeats'>;
  /** Null: there is no such sale. `has`: what the maps must have, if the sale has it. */
  seatsOf(saleId: string, has?: (seats: SaleSeats) => boolean): Promise<SaleSeats | null>;
  readonly pace: Pace;
  /** How far those who watch a sale have been told of its counts. */
  countsAt(saleId: string): string | null;
}

/**
 * What anybody may see of the seats of a sale: one answer for all who ask, and the stream of changes. Both come from one copy of the
 * states in this process, which is brought up to date by what the gate has changed since: 20 000 seats are read once, and then only
 * what moves.
 *
 * Changes are coalesced: after each telling there is a pause by what it has cost, and what has changed meanwhile is told in one
 * event, made and written once for all watchers. It is never larger than the states of all seats, which are told instead then.
 */
export class SeatBoard {
  readonly #on: SeatBoardDependencies;
  /** The most recently used last. */
  readonly #kept = new Map<string, SeatStates>();
  readonly #reading = new Map<string, Promise<SeatStates | null>>();
  readonly #watched = new Map<string, WatchedSeats>();
  readonly #cold: Paced;
  #seats = 0;

  constructor(dependencies: SeatBoardDependencies) {
    this.#on = dependencies;
    this.#cold = new Paced(dependencies.runtime, COLD);
  }

  /** Null: there is no such sale. */
  async answer(saleId: string): Promise<PublicAnswer | null> {
    const kept = this.#kept.get(saleId);
    const nowMs = this.#on.runtime.clock.monotonic();
    if (kept?.answer && nowMs - kept.answer.madeAtMs < ANSWER_MS) return kept.answer.answer;
    try {
      const states = await this.read(saleId);
      return states?.written(this.#on.runtime.clock.monotonic()) ?? null;
    } catch (error) {
      // With the gate or the ledger out, what was seen last is better than nothing.
      if (kept?.answer) return kept.answer.answer;
      throw error;
    }
  }

  /** The states as the gate has them, or the ledger where there is no gate any more. One read serves all who wait. */
  read(saleId: string): Promise<SeatStates | null> {
    let reading = this.#reading.get(saleId);
    if (reading === undefined) {
      const kept = this.#kept.get(saleId) ?? null;
      const work = kept ? this.#refresh(saleId, kept) : this.#cold.run(() => this.#refresh(saleId, null));
      reading = work.finally(() => this.#reading.delete(saleId));
      this.#reading.set(saleId, reading);
    }
    return reading;
  }

  async #refresh(saleId: string, kept: SeatStates | null): Promise<SeatStates | null> {
    const { gate } = this.#on;
    const seen = await gate.seats(saleId, kept?.since);
    if (kept !== null && seen !== null && 'changes' in seen) {
      kept.follow(seen.revision, seen.changes);
      return this.#keep(kept);
    }
    const items = seen !== null && 'items' in seen ? seen.items : [];
    const ids = items.map(({ itemId }) => itemId);
    const seats = await this.#on.seatsOf(saleId, (maps) => ids.every((id) => maps.item(id) !== null));
    if (seats === null) return this.#forget(saleId);
    if (seats.items.length === 0) return SeatStates.none(seats);
    const next = seen === null ? await this.#ofLedger(seats, kept) : SeatStates.ofGate(seats, seen.revision, items);
    if (next === null) return this.#forget(saleId);
    // Whoever watches is told what differs, whatever the reason that all seats were read.
    if (kept?.seats === seats) return this.#keep(kept.become(next));
    this.touch(saleId);
    return this.#keep(next);
  }

  /** A finished sale has no gate. Its seats change seldom: only if its revs differ are its orders read again. */
  async #ofLedger(seats: SaleSeats, kept: SeatStates | null): Promise<SeatStates | null> {
    const { ledger } = this.#on;
    const sale = await ledger.getSale(seats.saleId);
    if (sale === null) return null;
    if (mayAdmit(sale)) throw unavailable('the gate of this sale is being rebuilt');
    const revision = ledgerRevision(sale);
    if (kept !== null && revisionText(kept.revision) === revisionText(revision)) return kept;
    const states = new SeatStates(seats, revision);
    for (const { itemId, seats: blocked } of await ledger.blockedSeats(seats.saleId)) {
      states.set(itemId, blocked, SEAT_STATES.blocked);
    }
    for await (const { holds } of ledger.seatHolds(seats.saleId)) {
      for (const { itemId, seats: taken, paid } of holds) {
        if (taken) states.set(itemId, taken, paid ? SEAT_STATES.sold : SEAT_STATES.reserved);
      }
    }
    return states;
  }

  #keep(states: SeatStates): SeatStates {
    const { saleId, size } = states.seats;
    const before = this.#kept.get(saleId);
    this.#kept.delete(saleId);
    this.#kept.set(saleId, states);
    this.#seats += size - (before?.seats.size ?? 0);
    for (const [oldest, { seats }] of this.#kept) {
      if (this.#seats <= KEPT_SEATS_MAX && this.#kept.size <= KEPT_SALES_MAX) break;
      if (oldest === saleId || this.#watched.has(oldest)) continue;
      this.#kept.delete(oldest);
      this.#seats -= seats.size;
    }
    return states;
  }

  #forget(saleId: string): null {
    const kept = this.#kept.get(saleId);
    if (kept !== undefined) {
      this.#kept.delete(saleId);
      this.#seats -= kept.seats.size;
    }
    return null;
  }

  /** Its seats have moved: watchers hear of it soon. */
  touch(saleId: string): void {
    this.#watched.get(saleId)?.touch(FRESH_MS);
  }

  /** One round of looking where other processes sell. Watching what stands still costs one small question a round. */
  async poll(): Promise<void> {
    const due = [...this.#watched.values()].toSorted((a, b) => a.lookedAtMs - b.lookedAtMs).slice(0, POLLED);
    await Promise.all(due.map((watched) => watched.look()));
  }

  /** How far those who watch have been told; null: nobody watches, or the sale has no seats. */
  seatsAt(saleId: string): string | null {
    return this.#watched.get(saleId)?.toldAt ?? null;
  }

  /**
   * Calls `hear` with the seats, or with what has changed since `from`, and then with every change, until the returned function is
   * called. Null: the sale has no seats. If they cannot be read now, they are told as soon as they can be.
   */
  async watch(saleId: string, from: SeatRevision | null, hear: HearSeats): Promise<(() => void) | null> {
    const seats = await this.#on.seatsOf(saleId);
    if (seats === null || seats.items.length === 0) return null;
    const watched = this.#watched.get(saleId) ?? this.#begin(saleId);
    const watcher = { from, hear };
    await watched.join(watcher);
    return () => {
      watched.leave(watcher);
      if (watched.isWatched) return;
      watched.stop();
      if (this.#watched.get(saleId) === watched) this.#watched.delete(saleId);
    };
  }

  #begin(saleId: string): WatchedSeats {
    const { runtime, pace, gate, countsAt } = this.#on;
    const idOf = (revision: string): string => positionOf(countsAt(saleId) ?? '0.0', revision);
    const watched = new WatchedSeats({ runtime, pace, gate, read: () => this.read(saleId), idOf }, saleId);
    this.#watched.set(saleId, watched);
    return watched;
  }

  close(): void {
    for (const watched of this.#watched.values()) watched.stop();
    this.#watched.clear();
  }
}

function ledgerRevision(sale: SaleRecord): SeatRevision {
  const { epoch, rev } = stampOf(sale);
  return { epoch, n: LEDGER_N + rev };
}

const CHANGED_TO = [SEAT_STATES.free, SEAT_STATES.reserved, SEAT_STATES.sold, SEAT_STATES.blocked] as const;

/** The states of a sale's seats as they are shown, and which of them have changed since watchers were told. */
export class SeatStates {
  readonly seats: SaleSeats;
  revision: SeatRevision;
  answer: { readonly answer: PublicAnswer; readonly revision: string; madeAtMs: number } | null = null;
  readonly #states: Map<string, Buffer>;
  /** By item. */
  #changed = new Map<string, Set<number>>();
  #isDifference = false;

  /** All seats are free. */
  constructor(seats: SaleSeats, revision: SeatRevision) {
    this.seats = seats;
    this.revision = revision;
    this.#states = new Map(seats.items.map(({ id, map }) => [id, Buffer.alloc(map.size, SEAT_STATES.free)]));
  }

  static none(seats: SaleSeats): SeatStates {
    return new SeatStates(seats, { epoch: 0, n: 0 });
  }

  static ofGate(
    seats: SaleSeats,
    revision: SeatRevision,
    items: readonly { readonly itemId: string; readonly states: string }[],
  ): SeatStates {
    const states = new SeatStates(seats, revision);
    for (const { itemId, states: text } of items) {
      const own = states.#states.get(itemId);
      // Of an item that the maps lack nothing can be shown: it is new, and is looked for again.
      own?.write(shownStates(text), 'latin1');
    }
    return states;
  }

  /** What to ask the gate for; undefined: all. */
  get since(): SeatRevision | undefined {
    return this.revision.n < LEDGER_N ? this.revision : undefined;
  }

  set(itemId: string, seats: readonly number[], state: SeatState): void {
    const own = this.#states.get(itemId);
    if (own === undefined) return;
    const code = shownStates(state).charCodeAt(0);
    for (const seat of seats) {
      if (own[seat] === code) continue;
      own[seat] = code;
      this.#note(itemId, seat);
    }
  }

  follow(
    revision: SeatRevision,
    changes: readonly { itemId: string; seats: readonly number[]; state: SeatState }[],
  ): void {
    for (const { itemId, seats, state } of changes) this.set(itemId, seats, state);
    this.revision = revision;
  }

  /** Takes over the states of another, of the same maps. */
  become(other: SeatStates): SeatStates {
    if (other === this) return this;
    for (const [itemId, own] of this.#states) {
      const next = other.#states.get(itemId)!;
      if (own.equals(next)) continue;
      this.#isDifference = true;
      for (let seat = 0; seat < own.length; seat++) if (own[seat] !== next[seat]) this.#note(itemId, seat);
      next.copy(own);
    }
    this.revision = other.revision;
    return this;
  }

  #note(itemId: string, seat: number): void {
    const changed = this.#changed.get(itemId);
    if (changed) changed.add(seat);
    else this.#changed.set(itemId, new Set([seat]));
  }

  /** What has changed since the last `take`. */
  get pending(): Taken {
    return { changed: this.#changed, isDifference: this.#isDifference };
  }

  take(): Taken {
    const taken = this.pending;
    this.#changed = new Map();
    this.#isDifference = false;
    return taken;
  }

  snapshot(): SeatsSnapshot {
    const items = this.seats.items.map(({ id, code }) => ({ code, states: this.#states.get(id)!.toString('latin1') }));
    return { revision: revisionText(this.revision), items };
  }

  /** These seats by what they are now; all seats if that is shorter. */
  tell(changed: ChangedSeats): SeatsSnapshot | SeatsChanged {
    const changes: { [State in ShownState]?: string[] } = {};
    let chars = 0;
    for (const [itemId, seats] of changed) {
      const { map } = this.seats.item(itemId)!;
      const own = this.#states.get(itemId)!;
      for (const seat of [...seats].sort((a, b) => a - b)) {
        const name = seatName(map, seat);
        const state = String.fromCharCode(own[seat]!) as ShownState;
        const names = changes[state];
        if (names) names.push(name);
        else changes[state] = [name];
        // With its quotes and comma.
        chars += name.length + 3;
        if (chars > this.seats.size + SNAPSHOT_CHARS) return this.snapshot();
      }
    }
    // Always in the same order.
    const inOrder = CHANGED_TO.flatMap((state) => (changes[state] ? [[state, changes[state]] as const] : []));
    return { revision: revisionText(this.revision), changes: Object.fromEntries(inOrder) };
  }

  /** The answer for everybody. */
  written(nowMs: number): PublicAnswer {
    const revision = revisionText(this.revision);
    if (this.answer?.revision !== revision) {
      const items = this.seats.items.map((item) => {
        const states = this.#states.get(item.id)!.toString('latin1');
        return `{"code":${JSON.stringify(item.code)},"rows":[${rowsText(item, states)}]}`;
      });
      const answer = publicAnswer(`{"revision":"${revision}","items":[${items.join(',')}]}`);
      this.answer = { answer, revision, madeAtMs: nowMs };
    }
    this.answer.madeAtMs = nowMs;
    return this.answer.answer;
  }
}

/** What surrounds the states in a snapshot, about. */
const SNAPSHOT_CHARS = 200;

/** Seat numbers by item id. */
type ChangedSeats = ReadonlyMap<string, ReadonlySet<number>>;

interface Taken {
  readonly changed: ChangedSeats;
  /** Found by comparing all states: what has changed and changed back is not among them. */
  readonly isDifference: boolean;
}

/** What stands before and behind the states of each row: it never changes. */
const rowTexts = new WeakMap<SeatedItem, { readonly before: string; readonly behind: string }[]>();

function rowsText(item: SeatedItem, states: string): string {
  let texts = rowTexts.get(item);
  if (texts === undefined) {
    texts = item.map.rows.map(({ section, row, numbers, place }) => {
      const own = JSON.stringify({ section, row, numbers });
      return { before: `${own.slice(0, -1)},"states":"`, behind: place ? `",${JSON.stringify(place).slice(1)}` : '"}' };
    });
    rowTexts.set(item, texts);
  }
  return texts
    .map(({ before, behind }, index) => {
      const { first, numbers } = item.map.rows[index]!;
      return `${before}${states.slice(first, first + numbers.length)}${behind}`;
    })
    .join(',');
}

interface WatchedDependencies extends Pick<SeatBoardDependencies, 'runtime' | 'pace' | 'gate'> {
  read(): Promise<SeatStates | null>;
  idOf(revision: string): string;
}

/** What was told in one event: watchers went from one revision to the next. */
interface Tick extends Taken {
  readonly from: SeatRevision;
  readonly to: SeatRevision;
}

interface Watcher {
  /** What it has already. */
  readonly from: SeatRevision | null;
  readonly hear: HearSeats;
}

/** The seats of a sale that somebody watches. */
class WatchedSeats {
  readonly #on: WatchedDependencies;
  readonly #saleId: string;
  readonly #listeners = new Set<HearSeats>();
  /** Those who have not been told what there is. */
  readonly #joining = new Set<Watcher>();
  /** Null: they could not be read yet. */
  #states: SeatStates | null = null;
  #told: SeatRevision | null = null;
  /** Oldest first, without gaps. */
  readonly #log: Tick[] = [];
  #logSeats = 0;
  /** What those get who come back, by the revision that they have; as of the present one. */
  readonly #resumes = new Map<string, readonly SeatsEvent[] | null>();
  #resumesAt = '';
  #extending: Promise<void> | null = null;
  #looking: Promise<void> | null = null;
  #cancelLook: (() => void) | null = null;
  #stopped = false;
  lookedAtMs = Number.NEGATIVE_INFINITY;

  constructor(dependencies: WatchedDependencies, saleId: string) {
    this.#on = dependencies;
    this.#saleId = saleId;
  }

  get toldAt(): string | null {
    return this.#told && revisionText(this.#told);
  }

  get isWatched(): boolean {
    return this.#listeners.size + this.#joining.size > 0;
  }

  /** Resolves when the watcher has been told what there is, or when that cannot be read now: then it is told later. */
  async join(watcher: Watcher): Promise<void> {
    this.#joining.add(watcher);
    if (this.#states === null) await this.look();
    else await this.#welcome(watcher);
  }

  leave(watcher: Watcher): void {
    this.#joining.delete(watcher);
    this.#listeners.delete(watcher.hear);
  }

  async #welcome(watcher: Watcher): Promise<void> {
    const { from, hear } = watcher;
    if (from !== null && this.#ticksSince(from) === null) await this.#extend(from);
    // In one turn from here on: what is told next is told to this one, too.
    if (!this.#joining.delete(watcher) || this.#stopped) return;
    const events = this.#eventsSince(from);
    if (events !== null) hear(events);
    this.#listeners.add(hear);
  }

  #eventsSince(from: SeatRevision | null): readonly SeatsEvent[] | null {
    const states = this.#states!;
    const id = this.#on.idOf(revisionText(states.revision));
    if (this.#resumesAt !== id) this.#resumes.clear();
    this.#resumesAt = id;
    const ticks = from === null ? null : this.#ticksSince(from);
    const key = ticks === null ? '' : revisionText(from!);
    let events = this.#resumes.get(key);
    if (events === undefined) {
      const changed = ticks && unionOf([...ticks, states.pending]);
      const none = changed?.size === 0;
      events = none ? null : [{ type: 'seats', id, seats: changed ? states.tell(changed) : states.snapshot() }];
      if (this.#resumes.size >= RESUMES_KEPT_MAX) this.#resumes.clear();
      this.#resumes.set(key, events);
    }
    return events;
  }

  /** What was told since; null: that is not known. */
  #ticksSince(from: SeatRevision): readonly Tick[] | null {
    if (isSame(from, this.#told!)) return [];
    const at = this.#log.findIndex((tick) => isIn(tick, from));
    return at < 0 ? null : this.#log.slice(at);
  }

  /** The gate may know more than what was told here, where this process has not watched for long. */
  async #extend(from: SeatRevision): Promise<void> {
    const first = this.#log[0]?.from ?? this.#told!;
    const { epoch, n } = this.#states!.revision;
    if (from.epoch !== epoch || first.epoch !== epoch || from.n >= first.n || n - from.n > SEAT_CHANGES_MAX) return;
    this.#extending ??= this.#ask(first, [Math.max(n - SEAT_CHANGES_MAX, 0), from.n])
      .catch((error: unknown) => this.#on.runtime.log.debug({ err: error }, 'changes of seats cannot be read'))
      .finally(() => {
        this.#extending = null;
      });
    await this.#extending;
  }

  /** From the first of these numbers that the gate still knows all changes of. */
  async #ask(first: SeatRevision, numbers: readonly number[]): Promise<void> {
    const { gate, pace } = this.#on;
    for (const n of numbers) {
      const from = { epoch: first.epoch, n };
      const seen = await pace.read(() => gate.seats(this.#saleId, from));
      if (seen === null || !('changes' in seen)) continue;
      // Another tick may have been added, but none before the first.
      if (!isSame(this.#log[0]?.from ?? this.#told!, first)) return;
      const changed = new Map<string, Set<number>>();
      for (const { itemId, seats } of seen.changes) {
        const those = changed.get(itemId) ?? new Set();
        for (const seat of seats) those.add(seat);
        changed.set(itemId, those);
      }
      this.#log.unshift({ from, to: first, changed, isDifference: false });
      this.#logSeats += sizeOf(changed);
      this.#trim();
      return;
    }
  }

  /** Looks after `ms`, unless it will be sooner. */
  touch(ms: number): void {
    if (this.#stopped) return;
    this.#cancelLook ??= this.#on.runtime.timers.after(ms, () => {
      this.#cancelLook = null;
      // A look that is under way may have read before the change.
      if (this.#looking) void this.#looking.then(() => this.touch(ms));
      else void this.look();
    });
  }

  stop(): void {
    this.#stopped = true;
    this.#cancelLook?.();
  }

  /** One at a time; does not fail. */
  look(): Promise<void> {
    this.#looking ??= this.#look()
      .catch((error: unknown) => {
        const { log } = this.#on.runtime;
        log.debug({ reason: messageOf(error), saleId: this.#saleId }, 'the seats of a watched sale cannot be read now');
        this.touch(RETRY_MS);
      })
      .finally(() => {
        this.#looking = null;
      });
    return this.#looking;
  }

  async #look(): Promise<void> {
    const { pace, runtime } = this.#on;
    this.lookedAtMs = runtime.clock.monotonic();
    const states = await pace.read(async () => (this.#stopped ? null : this.#on.read()));
    if (states === null || this.#stopped) return;
    if (states !== this.#states) this.#begin(states);
    else if (states.pending.changed.size === 0) this.#told = states.revision;
    else await pace.tell(() => this.#tell(states));
    for (const watcher of [...this.#joining]) await this.#welcome(watcher);
  }

  /** The first states, or those of other maps: the sale has got a further item. Then all are told all. */
  #begin(states: SeatStates): void {
    this.#states = states;
    this.#told = states.revision;
    states.take();
    this.#log.length = this.#logSeats = 0;
    if (this.#listeners.size === 0) return;
    const events = this.#eventsSince(null)!;
    for (const hear of this.#listeners) hear(events);
  }

  #tell(states: SeatStates): void {
    if (this.#stopped || states !== this.#states) return;
    const { revision } = states;
    const tick = { from: this.#told!, to: revision, ...states.take() };
    this.#told = revision;
    this.#log.push(tick);
    this.#logSeats += sizeOf(tick.changed);
    this.#trim();
    const events: readonly SeatsEvent[] = [
      { type: 'seats', id: this.#on.idOf(revisionText(revision)), seats: states.tell(tick.changed) },
    ];
    for (const hear of this.#listeners) hear(events);
  }

  #trim(): void {
    while (this.#logSeats > LOG_SEATS_MAX || this.#log.length > SEAT_CHANGES_MAX) {
      this.#logSeats -= sizeOf(this.#log.shift()!.changed);
    }
  }
}

function isSame(a: SeatRevision, b: SeatRevision): boolean {
  return a.epoch === b.epoch && a.n === b.n;
}

/**
 * Whether the tick tells all that has changed since. One that compared two sets of states does not say what has changed back in
 * between.
 */
function isIn({ from, to, isDifference }: Tick, revision: SeatRevision): boolean {
  if (isSame(from, revision)) return true;
  if (isDifference || from.epoch !== to.epoch) return false;
  return revision.epoch === from.epoch && revision.n > from.n && revision.n < to.n;
}

function sizeOf(changed: ChangedSeats): number {
  let size = 0;
  for (const seats of changed.values()) size += seats.size;
  return size;
}

function unionOf(ticks: readonly Taken[]): ChangedSeats {
  const union = new Map<string, Set<number>>();
  for (const { changed } of ticks) {
    for (const [itemId, seats] of changed) {
      const all = union.get(itemId);
      if (all === undefined) union.set(itemId, new Set(seats));
      else for (const seat of seats) all.add(seat);
    }
  }
  return union;
}
