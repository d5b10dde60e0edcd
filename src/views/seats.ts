import { messageOf, unavailable } from '../base/errors.ts';
import { Paced } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import { SEAT_CHANGES_MAX, type SeatGate, type SeatRevision } from '../gate/port.ts';
import type { SaleLedger, SeatLedger } from '../ledger/port.ts';
import { mayAdmit, type SaleRecord, stampOf } from '../model/sale.ts';
import type { SaleSeats, SeatedItem } from '../model/sale-seats.ts';
import { SEAT_STATES, type SeatState, seatName, shownStates } from '../model/seat-map.ts';
import type { Pace } from './pace.ts';
import { revisionText } from './positions.ts';
import { type PublicAnswer, publicAnswer } from './public-answer.ts';

/** How old the answer for everybody may be. It is written anew at most so often: of 100 000 seats it has 700 KB. */
const ANSWER_MS = 500;
/** Of all sales together that are kept. A seat takes some 15 bytes, most of them in the answer. */
const KEPT_SEATS_MAX = 500_000;
const KEPT_SALES_MAX = 200;
/** Sales that were not asked for lately: reading one means all of its seats. */
const COLD = { pauseFactor: 3, atOnce: 2, waitingMax: 64, what: 'seats of sales are being read' };
/** Changed seats that are remembered for those who come back, of each watched sale. */
const LOG_SEATS_MAX = 20_000;
/** Answers for those who come back to the same revision. */
const RESUMES_KEPT_MAX = 32;
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

export interface SeatBoardDependencies {
  readonly runtime: Runtime;
  readonly gate: Pick<SeatGate, 'seats'>;
  readonly ledger: Pick<SaleLedger, 'getSale'> & Pick<SeatLedger, 'seatHolds' | 'blockedSeats'>;
  /** Null: there is no such sale. `has`: what the maps must have, if the sale has it. */
  seatsOf(saleId: string, has?: (seats: SaleSeats) => boolean): Promise<SaleSeats | null>;
  readonly pace: Pace;
}

/**
 * What anybody may see of the seats of a sale: one answer for all who ask, and the stream of changes. Both come from one copy of the
 * states in this process, which is brought up to date by what the gate has changed since: 20 000 seats are read once, and then only
 * what moves.
 *
 * The board tells watchers of changes together with the counts (board.ts). They are coalesced: after each telling there is a pause by
 * what it has cost, and what has changed meanwhile is told in one event, made and written once for all watchers. It is never larger
 * than the states of all seats, which are told instead then.
 */
export class SeatBoard {
  readonly #on: SeatBoardDependencies;
  /** The most recently used last. */
  readonly #kept = new Map<string, SeatStates>();
  readonly #reading = new Map<string, Promise<SeatStates | null>>();
  readonly #watched = new Map<string, SeatWatch>();
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

  /** The seats of a sale for those who watch it. The board stops it when nobody watches any more. */
  watch(saleId: string): SeatWatch {
    let watched = this.#watched.get(saleId);
    if (watched === undefined) {
      const { runtime, pace, gate } = this.#on;
      const stopped = (): void => void this.#watched.delete(saleId);
      watched = new SeatWatch({ runtime, pace, gate, read: () => this.read(saleId), stopped }, saleId);
      this.#watched.set(saleId, watched);
    }
    return watched;
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
  /** The gate has an item that these maps lack. It is new; all seats are asked for until its map is found. */
  #lacksItem = false;

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
      if (own === undefined) states.#lacksItem = true;
      else own.write(shownStates(text), 'latin1');
    }
    return states;
  }

  /** What to ask the gate for; undefined: all. */
  get since(): SeatRevision | undefined {
    return this.revision.n < LEDGER_N && !this.#lacksItem ? this.revision : undefined;
  }

  set(itemId: string, seats: readonly number[], state: SeatState): void {
    const own = this.#states.get(itemId);
    if (own === undefined) {
      this.#lacksItem = true;
      return;
    }
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
    this.#lacksItem = other.#lacksItem;
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

interface WatchDependencies extends Pick<SeatBoardDependencies, 'runtime' | 'pace' | 'gate'> {
  read(): Promise<SeatStates | null>;
  stopped(): void;
}

/** What was told in one event: watchers went from one revision to the next. */
interface Tick extends Taken {
  readonly from: SeatRevision;
  readonly to: SeatRevision;
}

/** The seats of a sale that somebody watches, for all of its watchers: what is new, and what somebody who comes back has missed. */
export class SeatWatch {
  readonly #on: WatchDependencies;
  readonly #saleId: string;
  /** Null: they could not be read yet. */
  #states: SeatStates | null = null;
  /** Null: nobody has been told anything. */
  #told: SeatRevision | null = null;
  /** Oldest first, without gaps. */
  readonly #log: Tick[] = [];
  #logSeats = 0;
  /** What those get who come back, by the revision that they have; as of the present one. */
  readonly #resumes = new Map<string, SeatsSnapshot | SeatsChanged | null>();
  #resumesAt = '';
  #extending: Promise<void> | null = null;
  lookedAtMs = Number.NEGATIVE_INFINITY;

  constructor(dependencies: WatchDependencies, saleId: string) {
    this.#on = dependencies;
    this.#saleId = saleId;
  }

  /** How far those who watch have been told; null: not at all. */
  get toldAt(): string | null {
    return this.#told && revisionText(this.#told);
  }

  /** Whether there is something that watchers have not been told. */
  get hasNews(): boolean {
    if (this.#states === null) return false;
    return this.#told === null || this.#states.pending.changed.size > 0;
  }

  /** Reads what the gate has now. Fails if that cannot be read. */
  async refresh(): Promise<void> {
    this.lookedAtMs = this.#on.runtime.clock.monotonic();
    const states = await this.#on.read();
    if (states === null || states === this.#states) return;
    // The first ones, or those of other maps, since the sale has got a further item: then all are told all.
    this.#states = states;
    this.#told = null;
    states.take();
    this.#log.length = this.#logSeats = 0;
    this.#resumes.clear();
  }

  /** What watchers are told now; null: nothing. */
  take(): SeatsSnapshot | SeatsChanged | null {
    const states = this.#states;
    if (states === null) return null;
    const { revision } = states;
    const before = this.#told;
    this.#told = revision;
    if (before === null) return states.snapshot();
    const taken = states.take();
    if (taken.changed.size === 0) return null;
    this.#log.push({ from: before, to: revision, ...taken });
    this.#logSeats += sizeOf(taken.changed);
    this.#trim();
    return states.tell(taken.changed);
  }

  /**
   * Resolves when `since` can be asked: with the states read, and with what the gate knows beyond what was told here, where this
   * process has not watched for long. Does not fail: without states nothing is told, and all of it as soon as they are there.
   * `isFirst`: nobody else waits for them.
   */
  async ready(from: SeatRevision | null, isFirst: boolean): Promise<void> {
    try {
      if (this.#states === null) await this.#on.pace.read(() => this.refresh());
      if (isFirst) this.#told ??= this.#states?.revision ?? null;
      if (from !== null && this.#states !== null && this.#ticksSince(from) === null) await this.#extend(from);
    } catch (error) {
      const { log } = this.#on.runtime;
      log.debug({ reason: messageOf(error), saleId: this.#saleId }, 'the seats of a watched sale cannot be read now');
    }
  }

  /** What a watcher has to be told who has `from`; null: nothing. Those with the same one share it. */
  since(from: SeatRevision | null): SeatsSnapshot | SeatsChanged | null {
    const states = this.#states;
    if (states === null) return null;
    const at = revisionText(states.revision);
    if (this.#resumesAt !== at) this.#resumes.clear();
    this.#resumesAt = at;
    const ticks = from === null ? null : this.#ticksSince(from);
    const key = ticks === null ? '' : revisionText(from!);
    let told = this.#resumes.get(key);
    if (told === undefined) {
      const changed = ticks && unionOf([...ticks, states.pending]);
      told = changed === null ? states.snapshot() : changed.size === 0 ? null : states.tell(changed);
      if (this.#resumes.size >= RESUMES_KEPT_MAX) this.#resumes.clear();
      this.#resumes.set(key, told);
    }
    return told;
  }

  stop(): void {
    this.#on.stopped();
  }

  /** What was told since; null: that is not known. */
  #ticksSince(from: SeatRevision): readonly Tick[] | null {
    if (this.#told !== null && isSame(from, this.#told)) return [];
    const at = this.#log.findIndex((tick) => isIn(tick, from));
    return at < 0 ? null : this.#log.slice(at);
  }

  async #extend(from: SeatRevision): Promise<void> {
    const first = this.#log[0]?.from ?? this.#told;
    if (first === null) return;
    const { epoch, n } = this.#states!.revision;
    if (from.epoch !== epoch || first.epoch !== epoch || from.n >= first.n || n - from.n > SEAT_CHANGES_MAX) return;
    this.#extending ??= this.#ask(first, [Math.max(n - SEAT_CHANGES_MAX, 0), from.n]).finally(() => {
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
