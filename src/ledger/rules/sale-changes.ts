import {
  BOUNDS,
  type ItemRecord,
  ledgerFree,
  type SalePatch,
  type SaleRecord,
  windowFaults,
} from '../../model/sale.ts';
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
}

export type ChangeableSale = Pick<
  SaleRecord,
  'name' | 'opensAtMs' | 'closesAtMs' | 'perBuyer' | 'payWithinSeconds' | 'paused' | 'closed'
>;

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
