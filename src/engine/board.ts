import type { Runtime } from '../base/runtime.ts';
import { within } from '../base/timers.ts';
import type { Gate } from '../gate/port.ts';
import type { Ledger } from '../ledger/port.ts';
import { nextWindowChangeMs, type SaleRecord } from '../model/sale.ts';
import { type Item, presentSale, type Sale } from './present.ts';
import { type PublicAnswer, publicAnswer } from './public-answer.ts';

/** Public counts may lag by a second; a tenth costs the ledger ten reads a second and a sale, whatever the crowd. */
const FRESH_MS = 100;
const KEPT_SALES_MAX = 1000;
const READ_MS_MAX = 1000;

export type SaleEvent = { type: 'stock'; id: string; item: Item } | { type: 'state'; id: string; state: Sale['state'] };

interface Entry {
  sale: Sale;
  eventId: string;
  readAtMs: number;
  /** Written when it is asked for. */
  answer: PublicAnswer | null;
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
  readonly #ledger: Ledger;
  readonly #gate: Gate;
  readonly #entries = new Map<string, Entry>();
  readonly #reading = new Map<string, Promise<Entry | null>>();
  readonly #watchers = new Map<string, Watched>();
  /** Raised by every change of a sale: what was read before it is not kept. */
  #changes = 0;

  constructor(runtime: Runtime, ledger: Ledger, gate: Gate) {
    this.#runtime = runtime;
    this.#ledger = ledger;
    this.#gate = gate;
  }

  async read(saleId: string): Promise<Entry | null> {
    const kept = this.#entries.get(saleId);
    if (kept && this.#runtime.clock.monotonic() - kept.readAtMs < FRESH_MS) return kept;
    // One look serves all who wait.
    let reading = this.#reading.get(saleId);
    if (!reading) {
      const mine = this.readNow(saleId).finally(() => {
        if (this.#reading.get(saleId) === mine) this.#reading.delete(saleId);
      });
      reading = mine;
      this.#reading.set(saleId, reading);
    }
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
    entry.answer ??= publicAnswer(JSON.stringify(entry.sale));
    return entry.answer;
  }

  async readNow(saleId: string): Promise<Entry | null> {
    const changes = this.#changes;
    const record = await this.#ledger.getSale(saleId);
    return record && this.#keep(record, await this.present(record), changes);
  }

  async present(record: SaleRecord): Promise<Sale> {
    // A gate that is out does not hide the sale: what waits in the pipe then counts as free.
    const view = await this.#gate.view(record.id).catch(() => null);
    return presentSale(record, view, this.#runtime.clock.now());
  }

  /** The sale itself was changed: whoever did it must see it at once. */
  changed(saleId: string): void {
    this.#changes++;
    this.#entries.delete(saleId);
    // A look that began before may not show it: whoever asks from now on does not wait for that.
    this.#reading.delete(saleId);
    this.touch(saleId);
  }

  /** Its counts have moved: watchers hear of it within FRESH_MS. */
  touch(saleId: string): void {
    this.#watchers.get(saleId)?.touch();
  }

  /** Where counts move in other processes: everything that is watched is looked at. */
  touchAll(): void {
    for (const watched of this.#watchers.values()) watched.touch();
  }

  /** Calls `hear` with changes until the returned function is called. `from` is the state the watcher already has. */
  async watch(saleId: string, from: string | null, hear: (event: SaleEvent) => void): Promise<(() => void) | null> {
    const now = await this.readNow(saleId);
    if (now === null) return null;
    if (from !== now.eventId) for (const event of snapshotEvents(now)) hear(event);
    let watched = this.#watchers.get(saleId);
    if (watched === undefined) {
      watched = new Watched(this.#runtime, now, () => this.readNow(saleId));
      this.#watchers.set(saleId, watched);
    }
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

  #keep(record: SaleRecord, sale: Sale, changes: number): Entry {
    const epoch = Math.max(...record.items.map((item) => item.epoch));
    const nowMs = this.#runtime.clock.now();
    const phase = nowMs < record.opensAtMs ? 0 : nowMs < record.closesAtMs ? 1 : 2;
    const rev = record.items.reduce((sum, item) => sum + item.rev, 4 * record.version + phase);
    const entry = { sale, eventId: `${epoch}.${rev}`, readAtMs: this.#runtime.clock.monotonic(), answer: null };
    if (changes !== this.#changes) return entry;
    if (this.#entries.size >= KEPT_SALES_MAX) this.#entries.clear();
    this.#entries.set(record.id, entry);
    return entry;
  }
}

type Seen = { sale: Sale; eventId: string };

/** A sale that somebody watches: reads it when touched, and when its window opens or closes. */
class Watched {
  readonly listeners = new Set<(event: SaleEvent) => void>();
  readonly #runtime: Runtime;
  readonly #read: () => Promise<Seen | null>;
  #seen: Seen;
  #cancelRead: (() => void) | null = null;
  #cancelWindow: (() => void) | null = null;

  constructor(runtime: Runtime, seen: Seen, read: () => Promise<Seen | null>) {
    this.#runtime = runtime;
    this.#seen = seen;
    this.#read = read;
    this.#waitForWindow();
  }

  touch(): void {
    this.#cancelRead ??= this.#runtime.timers.after(FRESH_MS, () => {
      this.#cancelRead = null;
      this.#look().catch((error: unknown) => this.#runtime.log.warn({ err: error }, 'a watched sale cannot be read'));
    });
  }

  stop(): void {
    this.#cancelRead?.();
    this.#cancelWindow?.();
  }

  async #look(): Promise<void> {
    const now = await this.#read();
    if (now === null) return;
    const before = this.#seen;
    this.#seen = now;
    for (const event of changes(before, now)) for (const hear of this.listeners) hear(event);
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

function snapshotEvents({ sale, eventId }: Seen): SaleEvent[] {
  return [
    { type: 'state', id: eventId, state: sale.state },
    ...sale.items.map((item): SaleEvent => ({ type: 'stock', id: eventId, item })),
  ];
}

function changes(before: Seen, now: Seen): SaleEvent[] {
  const events: SaleEvent[] = [];
  for (const [index, item] of now.sale.items.entries()) {
    if (JSON.stringify(item) !== JSON.stringify(before.sale.items[index])) {
      events.push({ type: 'stock', id: now.eventId, item });
    }
  }
  if (before.sale.state !== now.sale.state) events.push({ type: 'state', id: now.eventId, state: now.sale.state });
  return events;
}
