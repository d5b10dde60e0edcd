import { invariant } from '../../base/errors.ts';
import type { Described, DescribedPatch, ItemKind, ItemRecord, NewItem, SaleRecord } from '../../model/sale.ts';
import { decodeSeatMap, encodeSeatMap, type SeatMap } from '../../model/seat-map.ts';
import { HOUSE } from '../rules/seats.ts';
import type { SeatsByItem } from './gate-pages.ts';
import { type Cells, query, type Result, type Row, type Step, type Work, type Writes } from './work.ts';

/** Items as they are stored: a short row that every commit of orders changes, and apart from it their texts and seat maps. */

const COUNTS = 'total, reserved, sold, blocked, epoch, rev';
const SELECT_ITEMS = `SELECT i.sale_id, i.id, i.code, i.name, i.amount, i.currency, i.kind, i.on_sale, i.total, i.reserved,
  i.sold, i.blocked, i.epoch, i.rev, t.description, t.image, t.metadata
  FROM items i LEFT JOIN item_texts t ON t.item_id = i.id`;

/** Characters of a seat map in one row: with other than ASCII letters a statement is six times as long, and still fits a packet. */
const PART_LENGTH_MAX = 50_000;

export function itemsOf(saleIds: readonly string[]): Step {
  return query(`${SELECT_ITEMS} WHERE i.sale_id IN (?) ORDER BY i.position`, saleIds.map(BigInt));
}

/** Locked until the end of the transaction: writers of orders change its counts without the lock of the sale. */
export function* lockedItem(
  sale: SaleRecord,
  itemCode: string,
  { forUpdate }: { forUpdate: string },
): Work<ItemRecord | null> {
  const item = sale.items.find(({ code }) => code === itemCode);
  if (item === undefined) return null;
  const [found] = yield [query(`SELECT ${COUNTS} FROM items WHERE id = ? ${forUpdate}`, BigInt(item.id))];
  return { ...item, ...countsOf(found!.rows[0]!) };
}

export function itemOfRow(row: Row): ItemRecord {
  return {
    id: row.id as string,
    code: row.code as string,
    name: row.name as string,
    price: { amount: Number(row.amount), currency: row.currency as string },
    kind: row.kind as ItemKind,
    onSale: Number(row.on_sale) === 1,
    ...countsOf(row),
    ...describedOf(row),
  };
}

function countsOf(row: Row): Pick<ItemRecord, 'total' | 'reserved' | 'sold' | 'blocked' | 'epoch' | 'rev'> {
  return {
    total: Number(row.total),
    reserved: Number(row.reserved),
    sold: Number(row.sold),
    blocked: Number(row.blocked),
    epoch: Number(row.epoch),
    rev: Number(row.rev),
  };
}

export function describedOf({ description, image, metadata }: Row): Described {
  return {
    ...(description !== null && { description: description as string }),
    ...(image !== null && { image: image as string }),
    ...(metadata !== null && { metadata: JSON.parse(metadata as string) as Record<string, string> }),
  };
}

/** In the order of these columns. */
export const DESCRIBED = ['description', 'image', 'metadata'] as const;

export function cellsOfDescribed({ description, image, metadata }: DescribedPatch): Cells {
  return [description ?? null, image ?? null, metadata ? JSON.stringify(metadata) : null];
}

/** An item that is new in its sale. */
export interface PlacedItem {
  readonly id: string;
  readonly position: number;
  readonly epoch: number;
  readonly item: NewItem;
}

export function addItems(writes: Writes, saleId: string, items: readonly PlacedItem[]): void {
  writes.addRows({
    do: 'insert',
    table: 'items',
    columns: ['id', 'sale_id', 'position', 'code', 'name', 'amount', 'currency', 'kind', 'total', 'epoch'],
    rows: items.map(({ id, position, epoch, item: { code, name, price, stock, seats } }) => {
      invariant(
        seats === undefined || seats.size === stock,
        `item ${code} has ${seats?.size} seats and a stock of ${stock}`,
      );
      const kind: ItemKind = seats === undefined ? 'counted' : 'seated';
      return [BigInt(id), BigInt(saleId), position, code, name, price.amount, price.currency, kind, stock, epoch];
    }),
  });
  // Each text is a statement of its own: together they might not fit into a packet.
  for (const { id, item } of items) {
    const texts = cellsOfDescribed(item);
    if (texts.some((text) => text !== null)) writes.add(textsStep(id, texts), null);
    if (item.seats !== undefined) for (const step of mapSteps(id, item.seats)) writes.add(step, 1);
  }
}

/** Writes them over those that there are. */
export function textsStep(itemId: string, texts: Cells): Step {
  const columns = ['item_id', ...DESCRIBED];
  return { do: 'insert', table: 'item_texts', columns, rows: [[BigInt(itemId), ...texts]], overwrite: ['item_id'] };
}

function mapSteps(itemId: string, map: SeatMap): Step[] {
  const columns = ['item_id', 'part', 'content'];
  return partsOf(encodeSeatMap(map)).map((content, part): Step => {
    return { do: 'insert', table: 'seat_maps', columns, rows: [[BigInt(itemId), part, content]] };
  });
}

/** Whole lines: a character must not be cut in two. Joined by line feeds they are the text. */
function partsOf(text: string): string[] {
  const parts: string[] = [];
  for (const line of text.split('\n')) {
    const last = parts.at(-1);
    if (last === undefined || last.length + line.length > PART_LENGTH_MAX) parts.push(line);
    else parts[parts.length - 1] = `${last}\n${line}`;
  }
  return parts;
}

/** Reads the maps of items for `mapTexts`. */
export function selectMaps(itemIds: readonly string[]): Step {
  return query(
    'SELECT item_id, content FROM seat_maps WHERE item_id IN (?) ORDER BY item_id, part',
    itemIds.map(BigInt),
  );
}

/** By item, as `encodeSeatMap` wrote them. */
export function mapTexts({ rows }: Result): Map<string, string> {
  const parts = Map.groupBy(rows, ({ item_id }) => item_id as string);
  return new Map([...parts].map(([itemId, own]) => [itemId, own.map(({ content }) => content).join('\n')]));
}

export function* seatMaps(saleId: string): Work<Map<string, SeatMap>> {
  const [items] = yield [query("SELECT id FROM items WHERE sale_id = ? AND kind = 'seated'", BigInt(saleId))];
  const ids = items!.rows.map(({ id }) => id as string);
  if (ids.length === 0) return new Map();
  const [found] = yield [selectMaps(ids)];
  return new Map([...mapTexts(found!)].map(([itemId, text]) => [itemId, decodeSeatMap(text)]));
}

/** What a gate needs to know of the seats of these items beside their orders. While the items are locked, none is blocked. */
export function* seatsToGate(items: readonly ItemRecord[]): Work<SeatsByItem> {
  const ids = items.filter(({ kind }) => kind === 'seated').map(({ id }) => id);
  if (ids.length === 0) return new Map();
  const [maps, claims] = yield [
    selectMaps(ids),
    query(
      'SELECT item_id, seat FROM seat_claims WHERE item_id IN (?) AND order_id = ? ORDER BY item_id, seat',
      ids.map(BigInt),
      BigInt(HOUSE),
    ),
  ];
  const blocked = Map.groupBy(claims!.rows, ({ item_id }) => item_id as string);
  const seatsOf = (itemId: string): number[] => (blocked.get(itemId) ?? []).map(({ seat }) => Number(seat));
  return new Map([...mapTexts(maps!)].map(([itemId, map]) => [itemId, { map, blocked: seatsOf(itemId) }]));
}
