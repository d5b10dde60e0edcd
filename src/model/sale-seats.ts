import { rowName, type SeatMap, seatName, seatNumbered } from './seat-map.ts';

/** The seats of a sale as the edge knows them: which item has which, and what they are called. */
export class SaleSeats {
  readonly saleId: string;
  /** In the order of the sale. */
  readonly items: readonly SeatedItem[];
  /** How many seats the sale has. */
  readonly size: number;
  readonly #byCode: ReadonlyMap<string, SeatedItem>;
  readonly #byId: ReadonlyMap<string, SeatedItem>;
  readonly #counted: ReadonlySet<string>;
  /** The items that have a row of that name, made when a seat is looked for: a sale may have 200 items. */
  #rows: Map<string, SeatedItem[]> | null = null;

  /** `items`: all of the sale; one without a map is counted. */
  constructor(
    saleId: string,
    items: readonly { readonly id: string; readonly code: string; readonly map: SeatMap | null }[],
  ) {
    this.saleId = saleId;
    this.items = items.filter((item): item is SeatedItem => item.map !== null);
    this.size = this.items.reduce((sum, { map }) => sum + map.size, 0);
    this.#byCode = new Map(this.items.map((item) => [item.code, item]));
    this.#byId = new Map(this.items.map((item) => [item.id, item]));
    this.#counted = new Set(items.filter(({ map }) => map === null).map(({ code }) => code));
  }

  coded(code: string): SeatedItem | null {
    return this.#byCode.get(code) ?? null;
  }

  isCounted(code: string): boolean {
    return this.#counted.has(code);
  }

  /** A seated item by its id. */
  item(itemId: string): SeatedItem | null {
    return this.#byId.get(itemId) ?? null;
  }

  /** The names of an item's seats. */
  names(itemId: string, seats: readonly number[]): string[] {
    const item = this.item(itemId);
    if (item === null) throw new RangeError(`sale ${this.saleId} has no seated item ${itemId}`);
    return seats.map((seat) => seatName(item.map, seat));
  }

  /** Null: the sale has no such seat. Two items may share a row, but no seat. */
  find(name: string): { readonly item: SeatedItem; readonly seat: number } | null {
    this.#rows ??= rowsOf(this.items);
    for (const item of this.#rows.get(name.slice(0, name.lastIndexOf('/'))) ?? []) {
      const seat = seatNumbered(item.map, name);
      if (seat !== null) return { item, seat };
    }
    return null;
  }

  /** Named seats by item, each item's ascending. `unknown`: names that the sale does not have. No name is given twice. */
  findAll(names: readonly string[]): { found: SeatsFound[]; unknown: string[] } {
    const byItem = new Map<SeatedItem, number[]>();
    const unknown: string[] = [];
    for (const name of names) {
      const found = this.find(name);
      if (found === null) {
        unknown.push(name);
        continue;
      }
      const seats = byItem.get(found.item);
      if (seats) seats.push(found.seat);
      else byItem.set(found.item, [found.seat]);
    }
    const found = [...byItem].map(([item, seats]) => ({ item, seats: seats.sort((a, b) => a - b) }));
    return { found, unknown };
  }
}

export interface SeatedItem {
  readonly id: string;
  readonly code: string;
  readonly map: SeatMap;
}

export interface SeatsFound {
  readonly item: SeatedItem;
  /** Ascending. */
  readonly seats: number[];
}

function rowsOf(items: readonly SeatedItem[]): Map<string, SeatedItem[]> {
  const rows = new Map<string, SeatedItem[]>();
  for (const item of items) {
    for (const row of item.map.rows) {
      const name = rowName(row);
      const those = rows.get(name);
      if (those) those.push(item);
      else rows.set(name, [item]);
    }
  }
  return rows;
}

/** The first name that is given a second time: where it stands; null: none is. */
export function namedTwice(names: readonly string[]): number | null {
  const seen = new Set<string>();
  for (const [index, name] of names.entries()) {
    if (seen.has(name)) return index;
    seen.add(name);
  }
  return null;
}
