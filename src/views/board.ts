import { messageOf, RetryableError, unavailable } from '../base/errors.ts';
import { type During, Paced } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep, within } from '../base/timers.ts';
import type { Gate, ItemView } from '../gate/port.ts';
import type { SaleLedger } from '../ledger/port.ts';
import { type Described, nextWindowChangeMs, type SaleRecord, type SaleStamp, stampOf } from '../model/sale.ts';
import { PAUSE_FACTOR, Pace } from './pace.ts';
import { type Positions, positionOf, positionsOf } from './positions.ts';
import { type Item, presentSale, type Sale } from './present.ts';
import { type PublicAnswer, publicAnswer } from './public-answer.ts';
import type { SeatBoard, SeatsEvent, SeatWatch } from './seats.ts';

/** Public counts may lag by a second; a tenth costs the ledger ten reads a second and a sale, whatever the crowd. */
const FRESH_MS = 100;
const KEPT_SALES_MAX = 1000;
const READ_MS_MAX = 1000;
/** After the seats of a sale could not be read. */
const RETRY_MS = 1000;
/** Stamps do not show what waits in the pipe: each round also reads so many sales with queued units, and as many others. */
const ROTATED = 8;
/** A sale that is over can only change by a refund. */
const OVER_EVERY_ROUNDS = 10;
/** Nor do stamps show which seats are held: so many sales are asked for theirs in a round. */
const SEATS_LOOKED_AT = 64;
/** Anybody can make up ids. Those that are not known to exist are looked up so many at once, and so many wait. */
const ASKED_AT_ONCE = 200;
const ASKED_WAITING_MAX = 1000;
/** The pause after a query is reckoned from this at most: one that hung must not hold up those who wait. */
const ASKING_MS_MAX = 10;
/**
 * Known sales are read in a quarter of the event loop's time, however many are asked for: one of 200 items takes more than a
 * millisecond.
 */
const READ_PACE = { pauseFactor: PAUSE_FACTOR, atOnce: 8, waitingMax: 256, what: 'sales are being read' };
/** While others are read first, what was seen is served up to this age. Together with the read that follows it is a second. */
const BUSY_MS = 900;
/** A read that takes longer gives its place to the next. */
const PLACE_MS_MAX = 5000;
/** Who wait for any sale. They are requests in flight, and must not use up the allowance that orders have. */
const READERS_MAX = 1024;
const KNOWN_MAX = 10_000;
const MISSING_MAX = 1000;
const MISSING_MS = 1000;

/** Without its texts: they are long, do not change with every order, and a crowd listens. */
export type Stock = Omit<Item, keyof Described>;

export type SaleEvent =
  | { type: 'stock'; id: string; item: Stock }
  | { type: 'state'; id: string; state: Sale['state'] }
  | SeatsEvent;

/** All who watch get the same array: whoever writes it as text does so once. */
export type HearSale = (events: readonly SaleEvent[]) => void;

interface BoardRow {
  sale: Sale;
  eventId: string;
  stamp: SaleStamp;
  readAtMs: number;
  /** Written when it is asked for. */
  answer: PublicAnswer | null;
  /** The whole sale as events, made when a watcher needs it, and their id. */
  snapshot: { readonly id: string; readonly events: readonly SaleEvent[] } | null;
}

/**
 * The board: what anybody may see of a sale, read at most ten times a second and shared by all who look, and the
 * stream of its changes. Events carry absolute counts, so one that is missed is repaired by the next.
 *
 * An event's id is `epoch.rev`, where rev sums the revs of the items, four times the sale's version, and how far its
 * window has come (0 before, 1 open, 2 over): the sum only grows, so it names one state of the whole sale, also across
 * restarts and when only time has passed. Of a sale with seats, the id goes on with the revision of the seats (positions.ts).
 */
export class Board {
  readonly #runtime: Runtime;
  readonly #ledger: SaleLedger;
  readonly #gate: Gate;
  readonly #entries = new Map<string, BoardRow>();
  readonly #reading = new Map<string, Promise<BoardRow | null>>();
  readonly #watchers = new Map<string, Watched>();
  readonly #pace: Pace;
  readonly #seats: Pick<SeatBoard, 'watch'> | null;
  readonly #reads: Paced;
  #readers = 0;
  readonly #asked = new Map<string, PromiseWithResolvers<boolean>>();
  #asking = false;
  /** Sales that were seen to exist, and ids that were seen not to, with the time until which that is believed. */
  readonly #known = new Set<string>();
  readonly #missing = new Map<string, number>();
  #rounds = 0;
  #touches = 0;
  /** Raised by every change of a sale: what was read before it is not kept. */
  #changes = 0;

  constructor(
    runtime: Runtime,
    ledger: SaleLedger,
    gate: Gate,
    pace: Pace = new Pace(runtime),
    seats: Pick<SeatBoard, 'watch'> | null = null,
  ) {
    this.#runtime = runtime;
    this.#ledger = ledger;
    this.#gate = gate;
    this.#pace = pace;
    this.#seats = seats;
    this.#reads = new Paced(runtime, READ_PACE);
  }

  async read(saleId: string): Promise<BoardRow | null> {
    const kept = this.#entries.get(saleId);
    if (kept && this.#runtime.clock.monotonic() - kept.readAtMs < FRESH_MS) return kept;
    if (this.#readers >= READERS_MAX) {
      if (kept) return kept;
      throw new RetryableError('overloaded', 'too many wait for sales');
    }
    const isBusy = this.#reads.isBusy;
    // One read serves all who wait.
    let reading = this.#reading.get(saleId);
    if (!reading) {
      const mine = this.#readAny(saleId).finally(() => {
        if (this.#reading.get(saleId) === mine) this.#reading.delete(saleId);
      });
      reading = mine;
      this.#reading.set(saleId, reading);
    }
    if (kept && isBusy && this.#runtime.clock.monotonic() - kept.readAtMs < BUSY_MS) {
      reading.catch(() => {});
      return kept;
    }
    this.#readers++;
    try {
      return await this.#waitFor(reading, kept);
    } finally {
      this.#readers--;
    }
  }

  async #waitFor(reading: Promise<BoardRow | null>, kept: BoardRow | undefined): Promise<BoardRow | null> {
    if (kept === undefined) return reading;
    // With the ledger out or silent, what was seen last is better than nothing.
    const seen = await within(
      this.#runtime.timers,
      reading.then(
        (read) => ({ read }),
        () => ({ read: kept }),
      ),
      READ_MS_MAX,
    );
    return seen ? seen.read : kept;
  }

  /** The same as it is sent, written once for all who look. */
  async answer(saleId: string): Promise<PublicAnswer | null> {
    const entry = await this.read(saleId);
    if (entry === null) return null;
    return answerOf(entry);
  }

  async readNow(saleId: string, during: During = (piece) => piece()): Promise<BoardRow | null> {
    const changes = this.#changes;
    const record = await during(() => this.#ledger.getSale(saleId));
    if (record === null) {
      // It was deleted, if it ever was: what was seen last must not be shown while the ledger is out.
      this.#known.delete(saleId);
      this.#entries.delete(saleId);
      return null;
    }
    const view = await this.#viewOf(record);
    return during(() => this.#keep(record, presentSale(record, view, this.#runtime.clock.now()), changes));
  }

  async #readInTime(saleId: string, during: During): Promise<BoardRow | null> {
    const reading = this.readNow(saleId, during).then((row) => ({ row }));
    const read = await within(this.#runtime.timers, reading, PLACE_MS_MAX);
    if (read === null) throw unavailable('this sale cannot be read now');
    // Written here, where it is paced: a sale of 200 items is 25 kB.
    if (read.row !== null) during(() => answerOf(read.row!));
    return read.row;
  }

  /** For public reads: ids that are made up do not reach the ledger as fast as they are asked for. */
  async #readAny(saleId: string): Promise<BoardRow | null> {
    const changes = this.#changes;
    let found: BoardRow | null;
    if (this.#known.has(saleId)) found = await this.#reads.run((during) => this.#readInTime(saleId, during));
    else if (await this.exists(saleId)) found = await this.#pace.read(() => this.readNow(saleId));
    // Not remembered once more: however often it is asked for, it is looked for again after a second.
    else return null;
    if (found === null) this.#miss(saleId, changes);
    return found;
  }

  /** Whether there is such a sale, as far as it is known or can be found out at a bounded price. */
  async exists(saleId: string): Promise<boolean> {
    if (this.#known.has(saleId)) return true;
    if (this.#runtime.clock.monotonic() < (this.#missing.get(saleId) ?? 0)) return false;
    const changes = this.#changes;
    const exists = await this.#exists(saleId);
    if (!exists) this.#miss(saleId, changes);
    return exists;
  }

  #miss(saleId: string, changes: number): void {
    if (changes !== this.#changes) return;
    bound(this.#missing, MISSING_MAX);
    this.#missing.set(saleId, this.#runtime.clock.monotonic() + MISSING_MS);
  }

  /** One query at a time for all who ask, with a pause after each: however many ids are made up, they cost the same. */
  #exists(saleId: string): Promise<boolean> {
    let asked = this.#asked.get(saleId);
    if (asked === undefined) {
      if (this.#asked.size >= ASKED_WAITING_MAX)
        throw new RetryableError('overloaded', 'too many unknown sales are asked for');
      asked = Promise.withResolvers<boolean>();
      this.#asked.set(saleId, asked);
      if (!this.#asking) void this.#ask();
    }
    return asked.promise;
  }

  async #ask(): Promise<void> {
    const { clock, timers } = this.#runtime;
    this.#asking = true;
    while (this.#asked.size > 0) {
      const some = [...this.#asked].slice(0, ASKED_AT_ONCE);
      const startedMs = clock.monotonic();
      try {
        const stamps = await this.#ledger.saleStamps(some.map(([id]) => id));
        for (const [id, { resolve }] of some) resolve(stamps.has(id));
      } catch (error) {
        for (const [, { reject }] of some) reject(error);
      }
      for (const [id] of some) this.#asked.delete(id);
      const tookMs = Math.min(clock.monotonic() - startedMs, ASKING_MS_MAX);
      if (tookMs >= 1) await sleep(timers, Math.ceil(PAUSE_FACTOR * tookMs));
    }
    this.#asking = false;
  }

  #know(saleId: string): void {
    if (this.#known.has(saleId)) return;
    bound(this.#known, KNOWN_MAX);
    this.#known.add(saleId);
  }

  async present(record: SaleRecord): Promise<Sale> {
    return presentSale(record, await this.#viewOf(record), this.#runtime.clock.now());
  }

  /** A gate that is out does not hide the sale: what waits in the pipe then counts as free. */
  #viewOf(record: SaleRecord): Promise<readonly ItemView[] | null> {
    return this.#gate.view(record.id).catch(() => null);
  }

  /** The sale itself was changed: whoever did it must see it at once. */
  changed(saleId: string): void {
    this.#changes++;
    this.#know(saleId);
    this.#entries.delete(saleId);
    // A read that began before may not show the change: later callers do not wait for it.
    this.#reading.delete(saleId);
    this.touch(saleId);
  }

  /** Its counts have moved: watchers hear of it within FRESH_MS, or when there is time to tell them. */
  touch(saleId: string): void {
    this.#touches++;
    this.#watchers.get(saleId)?.touch();
  }

  /**
   * One round of looking where counts move in other processes, over when everything it found is told. One query says which
   * of the watched sales have changed: the others are not read, so watching what stands still costs next to nothing.
   */
  async poll(): Promise<void> {
    const withOver = ++this.#rounds % OVER_EVERY_ROUNDS === 0;
    const ids = [...this.#watchers].filter(([, { isOver }]) => withOver || !isOver).map(([id]) => id);
    if (ids.length === 0) return;
    const stamps = await this.#ledger.saleStamps(ids);
    const due = new Set<Watched>();
    const same: Watched[] = [];
    for (const id of ids) {
      const watched = this.#watchers.get(id);
      const stamp = stamps.get(id);
      if (watched === undefined) continue;
      // Without a stamp it was deleted.
      if (stamp === undefined || !isSameStamp(stamp, watched.seen.stamp)) due.add(watched);
      else if (!watched.isOver) same.push(watched);
    }
    same.sort((a, b) => a.seen.readAtMs - b.seen.readAtMs);
    for (const isQueued of [true, false]) {
      for (const watched of same.filter((each) => each.isQueued === isQueued).slice(0, ROTATED)) due.add(watched);
    }
    const seated = ids
      .flatMap((id) => this.#watchers.get(id) ?? [])
      .filter((one) => one.seats !== null && !due.has(one));
    seated.sort((a, b) => a.seats!.lookedAtMs - b.seats!.lookedAtMs);
    await Promise.all([
      ...[...due].map((watched) => watched.look()),
      ...seated.slice(0, SEATS_LOOKED_AT).map((watched) => watched.lookAtSeats()),
    ]);
  }

  /**
   * Calls `hear` with changes until the returned function is called. `from` is the id of the last event that the watcher has.
   * Calls `gone` if the sale is deleted: that was the last.
   */
  async watch(
    saleId: string,
    from: string | null,
    hear: HearSale,
    gone: () => void = () => undefined,
  ): Promise<(() => void) | null> {
    let watched = this.#watchers.get(saleId);
    if (watched === undefined) {
      const touches = this.#touches;
      const now = await this.#readAny(saleId);
      if (now === null) return null;
      watched = this.#watchers.get(saleId);
      if (watched === undefined) {
        const made = new Watched(
          this.#runtime,
          this.#pace,
          now,
          () => this.readNow(saleId),
          () => this.#seats?.watch(saleId) ?? null,
          () => this.#unwatch(saleId, made),
        );
        watched = made;
        this.#watchers.set(saleId, watched);
        // Counts that moved while it was read may not show yet, and there was no watcher to tell.
        if (touches !== this.#touches) watched.touch();
      }
    }
    const mine = watched;
    const stop = (): void => {
      mine.listeners.delete(hear);
      mine.joining.delete(hear);
      if (mine.listeners.size + mine.joining.size > 0) return;
      mine.stop();
      this.#unwatch(saleId, mine);
    };
    await mine.join(positionsOf(from), hear, gone);
    return stop;
  }

  #unwatch(saleId: string, watched: Watched): void {
    if (this.#watchers.get(saleId) === watched) this.#watchers.delete(saleId);
  }

  close(): void {
    for (const watched of this.#watchers.values()) watched.stop();
    this.#watchers.clear();
  }

  #keep(record: SaleRecord, sale: Sale, changes: number): BoardRow {
    this.#know(record.id);
    const stamp = stampOf(record);
    const nowMs = this.#runtime.clock.now();
    const phase = nowMs < record.opensAtMs ? 0 : nowMs < record.closesAtMs ? 1 : 2;
    const rev = stamp.rev + 4 * stamp.version + phase;
    const eventId = `${stamp.epoch}.${rev}`;
    const readAtMs = this.#runtime.clock.monotonic();
    const entry: BoardRow = { sale, eventId, stamp, readAtMs, answer: null, snapshot: null };
    if (changes !== this.#changes) return entry;
    if (this.#entries.size >= KEPT_SALES_MAX) this.#entries.clear();
    this.#entries.set(record.id, entry);
    return entry;
  }
}

const missedEvents = new WeakMap<SeatsEvent['seats'], readonly SaleEvent[]>();

/** A sale that somebody watches: reads it when touched, and when its window opens or closes. */
class Watched {
  /** Each with what to call when the sale is gone. */
  readonly listeners = new Map<HearSale, () => void>();
  /** Those who wait until the seats can be told. */
  readonly joining = new Map<HearSale, () => void>();
  readonly #runtime: Runtime;
  readonly #pace: Pace;
  readonly #read: () => Promise<BoardRow | null>;
  readonly #watchSeats: () => SeatWatch | null;
  readonly #gone: () => void;
  #seats: SeatWatch | null = null;
  #seen: BoardRow;
  #looking: Promise<void> | null = null;
  #stopped = false;
  #cancelRead: (() => void) | null = null;
  #cancelWindow: (() => void) | null = null;
  #again: (() => void) | null = null;

  /** `gone` is called when the sale was deleted: whoever watches it afterwards must be told that there is none. */
  constructor(
    runtime: Runtime,
    pace: Pace,
    seen: BoardRow,
    read: () => Promise<BoardRow | null>,
    watchSeats: () => SeatWatch | null,
    gone: () => void,
  ) {
    this.#gone = gone;
    this.#runtime = runtime;
    this.#pace = pace;
    this.#seen = seen;
    this.#read = read;
    this.#watchSeats = watchSeats;
    this.#saw(seen);
  }

  /** Null: it has none. */
  get seats(): SeatWatch | null {
    return this.#seats;
  }

  /** Tells a new watcher what it lacks. */
  async join({ counts, seats }: Positions, hear: HearSale, gone: () => void): Promise<void> {
    this.joining.set(hear, gone);
    if (this.#seats !== null) {
      await this.#seats.ready(seats, this.listeners.size === 0);
      if (this.#seats.hasNews) this.touch();
    }
    // In one turn from here on: what is told next is told to this one, too.
    if (!this.joining.delete(hear) || this.#stopped) return;
    const { eventId } = this.#seen;
    const missed = this.#seats?.since(seats) ?? null;
    const id = positionOf(eventId, missed?.revision ?? this.#seats?.toldAt ?? null);
    if (this.#seen.snapshot?.id !== id) this.#seen.snapshot = { id, events: snapshotEvents(this.#seen.sale, id) };
    if (counts !== eventId) hear(this.#seen.snapshot.events);
    if (missed !== null) hear(this.#missed(id, missed));
    this.listeners.set(hear, gone);
  }

  /** All who have missed the same get the same array. */
  #missed(id: string, seats: SeatsEvent['seats']): readonly SaleEvent[] {
    let events = missedEvents.get(seats);
    if (events?.[0]?.id !== id) {
      events = [{ type: 'seats', id, seats }];
      missedEvents.set(seats, events);
    }
    return events;
  }

  /** What all who watch have been told. */
  get seen(): BoardRow {
    return this.#seen;
  }

  get isQueued(): boolean {
    return this.#seen.sale.items.some(({ queued }) => queued > 0);
  }

  /** It does not change by itself any more. */
  get isOver(): boolean {
    const { state, items } = this.#seen.sale;
    return state === 'closed' && items.every(({ queued, reserved }) => queued === 0 && reserved === 0);
  }

  touch(): void {
    if (this.#stopped) return;
    this.#cancelRead ??= this.#runtime.timers.after(FRESH_MS, () => {
      this.#cancelRead = null;
      // A look that is under way may have read before the change.
      if (this.#looking) void this.#looking.then(() => this.touch());
      else void this.look();
    });
  }

  stop(): void {
    this.#stopped = true;
    this.#cancelRead?.();
    this.#cancelWindow?.();
    this.#again?.();
    this.#seats?.stop();
  }

  /** One at a time; does not fail. */
  look(): Promise<void> {
    this.#looking ??= this.#look()
      .catch((error: unknown) => this.#runtime.log.warn({ err: error }, 'a watched sale cannot be read'))
      .finally(() => {
        this.#looking = null;
      });
    return this.#looking;
  }

  /** Only if its seats have moved, the rest is read, too. */
  async lookAtSeats(): Promise<void> {
    if (this.#looking !== null) return;
    await this.#refreshSeats();
    if (this.#seats?.hasNews) await this.look();
  }

  async #look(): Promise<void> {
    const [now] = await Promise.all([
      this.#pace.read(async () => (this.#stopped ? null : this.#read())),
      this.#refreshSeats(),
    ]);
    if (this.#stopped) return;
    if (now === null) return this.#leave();
    if (changes(this.#seen, now, '').length === 0 && !this.#seats?.hasNews) return this.#saw(now);
    await this.#pace.tell(this.listeners, () => {
      const seats = this.#seats?.take() ?? null;
      const id = positionOf(now.eventId, this.#seats?.toldAt ?? null);
      const events = changes(this.#seen, now, id);
      if (seats !== null) events.push({ type: 'seats', id, seats });
      this.#saw(now);
      return (hear) => {
        if (events.length > 0) hear(events);
      };
    });
  }

  #leave(): void {
    this.stop();
    this.#gone();
    const all = [...this.listeners.values(), ...this.joining.values()];
    this.listeners.clear();
    this.joining.clear();
    for (const gone of all) gone();
  }

  /** Without its seats a sale can still be told; they are looked at again with the next look. */
  async #refreshSeats(): Promise<void> {
    const seats = this.#seats;
    if (seats === null || this.#stopped) return;
    try {
      await this.#pace.read(() => seats.refresh());
    } catch (error) {
      this.#runtime.log.debug({ reason: messageOf(error) }, 'the seats of a watched sale cannot be read now');
      this.#again ??= this.#runtime.timers.after(RETRY_MS, () => {
        this.#again = null;
        this.touch();
      });
    }
  }

  #saw(now: BoardRow): void {
    this.#seen = now;
    if (this.#stopped) return;
    // A sale may get seats while it is watched.
    if (this.#seats === null && now.sale.items.some(({ kind }) => kind === 'seated')) this.#seats = this.#watchSeats();
    this.#waitForWindow();
  }

  #waitForWindow(): void {
    this.#cancelWindow?.();
    const { sale } = this.#seen;
    const window = {
      opensAtMs: Date.parse(sale.opensAt),
      closesAtMs: Date.parse(sale.closesAt),
      paused: sale.state === 'paused',
      closed: sale.state === 'closed',
    };
    const nowMs = this.#runtime.clock.now();
    const nextMs = nextWindowChangeMs(window, nowMs);
    if (nextMs !== null) this.#cancelWindow = this.#runtime.timers.after(nextMs - nowMs + 1, () => this.touch());
  }
}

function answerOf(row: BoardRow): PublicAnswer {
  row.answer ??= publicAnswer(JSON.stringify(row.sale));
  return row.answer;
}

function snapshotEvents({ state, items }: Sale, id: string): SaleEvent[] {
  return [
    { type: 'state', id, state },
    ...items.map((item): SaleEvent => ({ type: 'stock', id, item: stockOf(item) })),
  ];
}

function stockOf({ description: _, image: __, metadata: ___, ...stock }: Item): Stock {
  return stock;
}

function changes(before: BoardRow, now: BoardRow, id: string): SaleEvent[] {
  const events: SaleEvent[] = [];
  for (const [index, whole] of now.sale.items.entries()) {
    const item = stockOf(whole);
    const was = before.sale.items[index];
    if (was === undefined || JSON.stringify(item) !== JSON.stringify(stockOf(was))) {
      events.push({ type: 'stock', id, item });
    }
  }
  if (before.sale.state !== now.sale.state) events.push({ type: 'state', id, state: now.sale.state });
  return events;
}

function isSameStamp(a: SaleStamp, b: SaleStamp): boolean {
  return a.epoch === b.epoch && a.rev === b.rev && a.version === b.version;
}

/** Makes room for one more: the oldest goes. */
function bound(kept: Set<string> | Map<string, unknown>, max: number): void {
  if (kept.size < max) return;
  for (const oldest of kept.keys()) {
    kept.delete(oldest);
    return;
  }
}
