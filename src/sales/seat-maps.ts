import { Few } from '../base/few.ts';
import type { Runtime } from '../base/runtime.ts';
import type { SaleLedger, SeatLedger } from '../ledger/port.ts';
import { SaleSeats } from '../model/sale-seats.ts';

/** Of all kept maps together. A map of 100 000 seats has about 2 MB. */
const SEATS_KEPT_MAX = 1_000_000;
/** A sale without seats is kept, too: it is a few hundred bytes, and whoever asks again must not cost a read. */
const SALES_KEPT_MAX = 2000;
/** Reading a map of 100 000 seats takes the event loop for some 20 ms. */
const READS_AT_ONCE = 2;
const READS_WAITING_MAX = 500;
/** How often it is looked whether a sale has got a further item, when something is not found in what is kept. */
const LOOK_EVERY_MS = 1000;

export interface SeatMapsDependencies {
  readonly runtime: Runtime;
  readonly ledger: Pick<SaleLedger, 'getSale'> & Pick<SeatLedger, 'seatMaps'>;
  /** Whether there is such a sale, at a price that anybody may cause who makes up ids. */
  exists(saleId: string): Promise<boolean>;
}

interface Kept {
  readonly seats: SaleSeats;
  readonly itemIds: string;
  lookedAtMs: number;
  looking: Promise<void> | null;
}

/**
 * Seat maps by sale, read from the ledger once and kept: a map never changes. A sale may get further items, though. So what is kept
 * is compared with the sale when somebody asks for what it lacks, at most once a second.
 */
export class SeatMaps {
  readonly #on: SeatMapsDependencies;
  /** The most recently used last. */
  readonly #kept = new Map<string, Kept>();
  readonly #reading = new Map<string, Promise<Kept | null>>();
  readonly #reads = new Few(READS_AT_ONCE, READS_WAITING_MAX, 'seat maps are being read');
  #seats = 0;

  constructor(dependencies: SeatMapsDependencies) {
    this.#on = dependencies;
  }

  /** What is kept of it; null: nothing. For a crowd that orders counted items: it costs them one look into a map. */
  peek(saleId: string): SaleSeats | null {
    return this.#kept.get(saleId)?.seats ?? null;
  }

  /** Null: there is no such sale. `has`: if the kept maps lack what is asked for, the sale may have got it since. */
  async of(saleId: string, has: (seats: SaleSeats) => boolean = () => true): Promise<SaleSeats | null> {
    const kept = this.#kept.get(saleId);
    if (kept === undefined) return (await this.#read(saleId))?.seats ?? null;
    // It was used just now.
    this.#kept.delete(saleId);
    this.#kept.set(saleId, kept);
    if (has(kept.seats) || this.#on.runtime.clock.monotonic() - kept.lookedAtMs < LOOK_EVERY_MS) return kept.seats;
    kept.looking ??= this.#look(saleId, kept).finally(() => {
      kept.looking = null;
    });
    await kept.looking;
    return this.peek(saleId) ?? (await this.of(saleId));
  }

  /** Of an order or an event that exists, so that its sale does. */
  async ofItem(saleId: string, itemId: string): Promise<SaleSeats | null> {
    const seats = await this.of(saleId, (kept) => kept.item(itemId) !== null);
    if (seats?.item(itemId)) return seats;
    // The item was added since the last look, which was just now.
    this.#drop(saleId);
    return (await this.#read(saleId))?.seats ?? null;
  }

  /** The sale was changed by this process: what it lacks is looked for at once. */
  changed(saleId: string): void {
    const kept = this.#kept.get(saleId);
    if (kept !== undefined) kept.lookedAtMs = Number.NEGATIVE_INFINITY;
  }

  async #look(saleId: string, kept: Kept): Promise<void> {
    const { ledger, runtime } = this.#on;
    const lookedAtMs = runtime.clock.monotonic();
    const sale = await ledger.getSale(saleId);
    if (sale !== null && idsOf(sale) === kept.itemIds) kept.lookedAtMs = lookedAtMs;
    else if (this.#kept.get(saleId) === kept) this.#drop(saleId);
  }

  /** One read serves all who wait. */
  #read(saleId: string): Promise<Kept | null> {
    let reading = this.#reading.get(saleId);
    if (reading === undefined) {
      reading = this.#readNow(saleId).finally(() => this.#reading.delete(saleId));
      this.#reading.set(saleId, reading);
    }
    return reading;
  }

  async #readNow(saleId: string): Promise<Kept | null> {
    const { ledger, runtime } = this.#on;
    if (!(await this.#on.exists(saleId))) return null;
    return await this.#reads.run(async () => {
      const lookedAtMs = runtime.clock.monotonic();
      // The sale first: an item that is added in between has a map, and is looked for again.
      const sale = await ledger.getSale(saleId);
      if (sale === null) return null;
      const isSeated = sale.items.some(({ kind }) => kind === 'seated');
      const maps = isSeated ? await ledger.seatMaps(saleId) : new Map();
      const items = sale.items.map(({ id, code }) => ({ id, code, map: maps.get(id) ?? null }));
      const kept = { seats: new SaleSeats(saleId, items), itemIds: idsOf(sale), lookedAtMs, looking: null };
      this.#keep(saleId, kept);
      return kept;
    });
  }

  #keep(saleId: string, kept: Kept): void {
    this.#drop(saleId);
    this.#kept.set(saleId, kept);
    this.#seats += kept.seats.size;
    for (const oldest of this.#kept.keys()) {
      // The one that was just read stays, whatever its size.
      if ((this.#seats <= SEATS_KEPT_MAX && this.#kept.size <= SALES_KEPT_MAX) || oldest === saleId) return;
      this.#drop(oldest);
    }
  }

  #drop(saleId: string): void {
    const kept = this.#kept.get(saleId);
    if (kept === undefined) return;
    this.#kept.delete(saleId);
    this.#seats -= kept.seats.size;
  }
}

function idsOf({ items }: { readonly items: readonly { readonly id: string }[] }): string {
  return items.map(({ id }) => id).join(' ');
}
