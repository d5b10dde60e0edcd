import {
  BOUNDS,
  type ItemPatch,
  type ItemRecord,
  isSoldAs,
  ledgerFree,
  type NewItem,
  type SalePatch,
  type SaleRecord,
  windowFaults,
} from '../../model/sale.ts';
import { type SeatMap, saleSeatFaults } from '../../model/seat-map.ts';
import type { SaleChange } from '../port/sales.ts';

export type Refused = Exclude<SaleChange, { outcome: 'changed' | 'replayed' }>;

/** What a change writes, and what the audit says of it. */
export interface Decided {
  readonly outcome: 'decided';
  readonly action: string;
  readonly detail: unknown;
  /** What differs in the row of the sale; its version rises with it. Null: it stays as it is. */
  readonly sale: Partial<ChangeableSale> | null;
  /** The new total of an item. */
  readonly stock?: { readonly itemId: string; readonly total: number };
  /** An item as it reads from now on; its counts stay as they are. */
  readonly item?: ItemRecord;
}

/** Texts that are null are taken away. */
export type ChangeableSale = Required<
  Pick<SalePatch, 'name' | 'opensAtMs' | 'closesAtMs' | 'perBuyer' | 'payWithinSeconds'>
> &
  Pick<SalePatch, 'description' | 'image' | 'metadata' | 'startsAtMs' | 'venue'> &
  Pick<SaleRecord, 'paused' | 'closed' | 'itemsEpoch'>;

export function patched(sale: SaleRecord, patch: SalePatch, version: number): Refused | Decided {
  if (sale.version !== version) return { outcome: 'version_conflict' };
  if (sale.closed) return { outcome: 'sale_closed' };
  const { opensAtMs, closesAtMs } = { ...sale, ...patch };
  const fault = windowFaults(opensAtMs, closesAtMs)[0];
  if (fault) return { outcome: 'invalid_request', ...fault };
  return { outcome: 'decided', action: 'sale.patch', detail: patch, sale: patch };
}

/** `item` as read under its own lock: writers of orders change its counts without the sale's lock. */
export function restocked(sale: SaleRecord, item: ItemRecord | null, add: number): Refused | Decided {
  if (item === null) return { outcome: 'not_found' };
  if (sale.closed) return { outcome: 'sale_closed' };
  if (item.kind !== 'counted') {
    return { outcome: 'invalid_request', path: '/add', message: 'a seated item has no stock to add to' };
  }
  const total = item.total + add;
  if (total > BOUNDS.stockMax) {
    return { outcome: 'invalid_request', path: '/add', message: `would lift the total above ${BOUNDS.stockMax}` };
  }
  if (add < 0 && ledgerFree(item) < -add) return { outcome: 'insufficient_free' };
  const detail = { item: item.code, add, total };
  return { outcome: 'decided', action: 'sale.stock', detail, sale: null, stock: { itemId: item.id, total } };
}

/** To pause a paused sale changes nothing, and so does not raise its version. */
export function paused(sale: SaleRecord, on: boolean): Refused | Decided {
  if (sale.closed) return { outcome: 'sale_closed' };
  const change = sale.paused === on ? null : { paused: on };
  return { outcome: 'decided', action: on ? 'sale.pause' : 'sale.resume', detail: {}, sale: change };
}

export function closed(sale: SaleRecord): Decided {
  return { outcome: 'decided', action: 'sale.close', detail: {}, sale: sale.closed ? null : { closed: true } };
}

/** `maps`: the seats of the items that the sale has. */
export function withItem(sale: SaleRecord, item: NewItem, maps: Iterable<SeatMap>): Refused | Decided {
  if (sale.closed) return { outcome: 'sale_closed' };
  if (sale.items.length >= BOUNDS.itemsMax) {
    return { outcome: 'invalid_request', path: '', message: `a sale has at most ${BOUNDS.itemsMax} items` };
  }
  if (sale.items.some(({ code }) => code === item.code)) {
    const message = `another item has the code "${item.code}" already`;
    return { outcome: 'invalid_request', path: '/code', message };
  }
  if (item.seats !== undefined) {
    // The new item last: then every fault is its own.
    const all = [...maps, item.seats].map(({ rows }) => ({ path: '/seats', seats: rows }));
    const fault = saleSeatFaults(all)[0];
    if (fault) return { outcome: 'invalid_request', ...fault };
  }
  const detail = { item: item.code, name: item.name, price: item.price, stock: item.stock };
  return { outcome: 'decided', action: 'sale.add_item', detail, sale: { itemsEpoch: epochOf(sale) } };
}

/** That of the sale's items: a rebuild raises all of them to one. */
export function epochOf({ items }: Pick<SaleRecord, 'items'>): number {
  return Math.max(...items.map(({ epoch }) => epoch));
}

/** The version is the sale's: an item has none of its own. */
export function patchedItem(
  sale: SaleRecord,
  item: ItemRecord | null,
  patch: ItemPatch,
  version: number,
): Refused | Decided {
  if (item === null) return { outcome: 'not_found' };
  if (sale.version !== version) return { outcome: 'version_conflict' };
  if (sale.closed) return { outcome: 'sale_closed' };
  const { description, image, metadata, ...bare } = item;
  const texts = { description, image, metadata, ...patch };
  const { description: d, image: i, metadata: m, ...rest } = texts;
  const next: ItemRecord = {
    ...bare,
    ...rest,
    ...(typeof d === 'string' && { description: d }),
    ...(typeof i === 'string' && { image: i }),
    ...(m && { metadata: m }),
  };
  const detail = { item: item.code, ...patch };
  // A gate that sells the item as it is needs no rebuild for the sake of a text.
  const change = isSoldAs(item, next) ? {} : { itemsEpoch: epochOf(sale) };
  return { outcome: 'decided', action: 'sale.patch_item', detail, sale: change, item: next };
}
