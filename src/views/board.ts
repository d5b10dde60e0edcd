import { RetryableError, unavailable } from '../base/errors.ts';
import { Few } from '../base/few.ts';
import { type During, Paced } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep, within } from '../base/timers.ts';
import type { Gate, ItemView } from '../gate/port.ts';
import type { SaleLedger } from '../ledger/port.ts';
import { nextWindowChangeMs, type SaleRecord, type SaleStamp, stampOf } from '../model/sale.ts';
import { type Item, presentSale, type Sale } from './present.ts';
import { type PublicAnswer, publicAnswer } from './public-answer.ts';

/** Public counts may lag by a second; a tenth costs the ledger ten reads a second and a sale, whatever the crowd. */
const FRESH_MS = 100;
const KEPT_SALES_MAX = 1000;
const READ_MS_MAX = 1000;
/** Watched sales that are read at the same time, however many have changed. */
const LOOKS_AT_ONCE = 4;
/** Of the event loop's time, telling watchers takes at most a quarter, however many there are. */
const PAUSE_FACTOR = 3;
/** Stamps do not show what waits in the pipe: each round also reads so many sales with queued units, and as many others. */
const ROTATED = 8;
/** A sale that is over can only change by a refund. */
const OVER_EVERY_ROUNDS = 10;
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

export type SaleEvent = { type: 'stock'; id: string; item: Item } | { type: 'state'; id: string; state: Sale['state'] };

/** All who watch get the same array: whoever writes it as text does so once. */
export type HearSale = (events: readonly SaleEvent[]) => void;

interface BoardRow {
  sale: Sale;
  eventId: string;
  stamp: SaleStamp;
  readAtMs: number;
  /** Written when it is asked for. */
  answer: PublicAnswer | null;
  /** The whole sale as events, made when a watcher needs it. */
  snapshot: readonly SaleEvent[] | null;
}

/**
 * The board: what anybody may see of a sale, read at most ten times a second and shared by all who look, and the
 * stream of its changes. Events carry absolute counts, so one that is missed is repaired by the next.
 *
 * An event's id is `epoch.rev`, where rev sums the revs of the items, four times the sale's version, and how far its
 * window has come (0 before, 1 open, 2 over): the sum only grows, so it names one state of the whole sale, also across
 * restarts and when only time has passed.
 */
export class Board {
  readonly #runtime: Runtime;
  readonly #ledger: SaleLedger;
  readonly #gate: Gate;
  readonly #entries = new Map<string, BoardRow>();
  readonly #reading = new Map<string, Promise<BoardRow | null>>();
  readonly #watchers = new Map<string, Watched>();
  readonly #pace: Pace;
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

  constructor(runtime: Runtime, ledger: SaleLedger, gate: Gate) {
    this.#runtime = runtime;
    this.#ledger = ledger;
    this.#gate = gate;
    this.#pace = new Pace(runtime);
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
    if (record === null) return null;
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
    if (this.#known.has(saleId)) return this.#reads.run((during) => this.#readInTime(saleId, during));
    const missingUntilMs = this.#missing.get(saleId) ?? 0;
    if (this.#runtime.clock.monotonic() < missingUntilMs) return null;
    const changes = this.#changes;
    const found = (await this.#exists(saleId)) ? await this.#pace.read(() => this.readNow(saleId)) : null;
    if (found === null && changes === this.#changes) {
      bound(this.#missing, MISSING_MAX);
      this.#missing.set(saleId, this.#runtime.clock.monotonic() + MISSING_MS);
    }
    return found;
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
      if (watched === undefined || stamp === undefined) continue;
      if (!isSameStamp(stamp, watched.seen.stamp)) due.add(watched);
      else if (!watched.isOver) same.push(watched);
    }
    same.sort((a, b) => a.seen.readAtMs - b.seen.readAtMs);
    for (const isQueued of [true, false]) {
      for (const watched of same.filter((each) => each.isQueued === isQueued).slice(0, ROTATED)) due.add(watched);
    }
    await Promise.all([...due].map((watched) => watched.look()));
  }

  /** Calls `hear` with changes until the returned function is called. `from` is the state the watcher already has. */
  async watch(saleId: string, from: string | null, hear: HearSale): Promise<(() => void) | null> {
    let watched = this.#watchers.get(saleId);
    if (watched === undefined) {
      const touches = this.#touches;
      const now = await this.#readAny(saleId);
      if (now === null) return null;
      watched = this.#watchers.get(saleId);
      if (watched === undefined) {
        watched = new Watched(this.#runtime, this.#pace, now, () => this.readNow(saleId));
        this.#watchers.set(saleId, watched);
        // Counts that moved while it was read may not show yet, and there was no watcher to tell.
        if (touches !== this.#touches) watched.touch();
      }
    }
    const { seen } = watched;
    seen.snapshot ??= snapshotEvents(seen);
    if (from !== seen.eventId) hear(seen.snapshot);
    watched.listeners.add(hear);
    return () => {
      watched.listeners.delete(hear);
      if (watched.listeners.size === 0) {
        watched.stop();
        if (this.#watchers.get(saleId) === watched) this.#watchers.delete(saleId);
      }
    };
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

/** How the board shares the ledger and the event loop among all sales that are watched. */
class Pace {
  readonly #runtime: Runtime;
  readonly #reads = new Few(LOOKS_AT_ONCE, Number.POSITIVE_INFINITY, 'sales are read');
  #tellFromMs = 0;

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  read<T>(read: () => Promise<T>): Promise<T> {
    return this.#reads.run(read);
  }

  /** After each telling, of whatever sale, there is a pause by what it has cost. */
  async tell(tell: () => void): Promise<void> {
    const { clock, timers } = this.#runtime;
    for (;;) {
      const waitMs = this.#tellFromMs - clock.monotonic();
      if (waitMs < 1) break;
      await sleep(timers, Math.ceil(waitMs));
    }
    const startedMs = clock.monotonic();
    tell();
    const endedMs = clock.monotonic();
    this.#tellFromMs = Math.max(this.#tellFromMs, endedMs) + PAUSE_FACTOR * (endedMs - startedMs);
  }
}

/** A sale that somebody watches: reads it when touched, and when its window opens or closes. */
class Watched {
  readonly listeners = new Set<HearSale>();
  readonly #runtime: Runtime;
  readonly #pace: Pace;
  readonly #read: () => Promise<BoardRow | null>;
  #seen: BoardRow;
  #looking: Promise<void> | null = null;
  #stopped = false;
  #cancelRead: (() => void) | null = null;
  #cancelWindow: (() => void) | null = null;

  constructor(runtime: Runtime, pace: Pace, seen: BoardRow, read: () => Promise<BoardRow | null>) {
    this.#runtime = runtime;
    this.#pace = pace;
    this.#seen = seen;
    this.#read = read;
    this.#waitForWindow();
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

  async #look(): Promise<void> {
    const now = await this.#pace.read(async () => (this.#stopped ? null : this.#read()));
    if (now === null || this.#stopped) return;
    const events = changes(this.#seen, now);
    if (events.length === 0) return this.#saw(now);
    await this.#pace.tell(() => {
      this.#saw(now);
      for (const hear of this.listeners) hear(events);
    });
  }

  #saw(now: BoardRow): void {
    this.#seen = now;
    if (!this.#stopped) this.#waitForWindow();
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

function snapshotEvents({ sale, eventId }: BoardRow): SaleEvent[] {
  return [
    { type: 'state', id: eventId, state: sale.state },
    ...sale.items.map((item): SaleEvent => ({ type: 'stock', id: eventId, item })),
  ];
}

function changes(before: BoardRow, now: BoardRow): SaleEvent[] {
  const events: SaleEvent[] = [];
  for (const [index, item] of now.sale.items.entries()) {
    if (JSON.stringify(item) !== JSON.stringify(before.sale.items[index])) {
      events.push({ type: 'stock', id: now.eventId, item });
    }
  }
  if (before.sale.state !== now.sale.state) events.push({ type: 'state', id: now.eventId, state: now.sale.state });
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
