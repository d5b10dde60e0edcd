import { isLive, type OrderStatus } from '../../model/order.ts';
import type { SaleRecord } from '../../model/sale.ts';
import { type SaleSnapshot, type SnapshotPage, saleValues } from '../../model/snapshot.ts';
import { KEY_KEPT_MS } from '../port/keys.ts';
import { parseSeats } from '../rules/seats.ts';

/** Orders in one page: some milliseconds of the event loop, and about a megabyte. */
export const PAGE_ORDERS = 2000;

/** An order as a gate is built from it. */
export interface GateRow {
  readonly orderId: string;
  readonly itemId: string;
  readonly buyer: string;
  /** As stored: '1' or '1,2'. */
  readonly slots: string;
  /** As stored: '12.13'; null: its item is counted. */
  readonly seats: string | null;
  readonly status: OrderStatus;
  readonly key: string | null;
  readonly fingerprint: string;
  readonly boundAtMs: number;
}

/** By item: of those that are seated. */
export type SeatsByItem = ReadonlyMap<string, NonNullable<SaleSnapshot['items'][number]['seats']>>;

/** The sale as it was when its epoch was raised, with the pages of what its gate holds. */
export function snapshotOf(
  sale: SaleRecord,
  seats: SeatsByItem,
  nowMs: number,
  read: (afterId: string) => Promise<GateRow[]>,
): SaleSnapshot {
  return {
    saleId: sale.id,
    epoch: Math.max(...sale.items.map((item) => item.epoch)),
    mayAdmit: !sale.closed && sale.closesAtMs > nowMs,
    ...saleValues(sale),
    items: sale.items.map((item) => itemOf(item, seats.get(item.id))),
    content: gatePages(read, nowMs),
  };
}

function itemOf(
  { id, code, price, total, blocked, rev, onSale }: SaleRecord['items'][number],
  seats: SaleSnapshot['items'][number]['seats'],
): SaleSnapshot['items'][number] {
  const item = { id, code, price, total, blocked, rev };
  return { ...item, ...(!onSale && { onSale: false }), ...(seats !== undefined && { seats }) };
}

/**
 * What a gate is built from, page by page. `read` returns the next PAGE_ORDERS orders of the sale by id, ended ones too: a page
 * is bounded by the rows it reads and not by those it finds, so that none takes long in a sale most of whose orders have
 * ended. The next page is read while the caller works on this one.
 */
export async function* gatePages(
  read: (afterId: string) => Promise<GateRow[]>,
  nowMs: number,
): AsyncGenerator<SnapshotPage> {
  let next: Promise<GateRow[]> | null = read('0');
  while (next !== null) {
    const rows: GateRow[] = await next;
    next = rows.length < PAGE_ORDERS ? null : read(rows.at(-1)!.orderId);
    // A caller that stops early never awaits it: its failure must not be unhandled.
    next?.catch(() => undefined);
    if (rows.length > 0) yield pageOf(rows, nowMs);
  }
}

function pageOf(rows: readonly GateRow[], nowMs: number): SnapshotPage {
  const holds: SnapshotPage['holds'][number][] = [];
  const keys: SnapshotPage['keys'][number][] = [];
  for (const { orderId, itemId, buyer, slots, seats, status, key, fingerprint, boundAtMs } of rows) {
    if (status === 'rejected') continue;
    if (isLive(status)) {
      const hold = { orderId, itemId, buyer, slots: parseSlots(slots) };
      holds.push(seats === null ? hold : { ...hold, seats: parseSeats(seats), paid: status === 'paid' });
    }
    if (key !== null && boundAtMs > nowMs - KEY_KEPT_MS) keys.push({ buyer, key, fingerprint, orderId, boundAtMs });
  }
  // Ids are handed out before the commit: an older one may have come later.
  keys.sort((a, b) => a.boundAtMs - b.boundAtMs);
  return { holds, keys };
}

function parseSlots(slots: string): number[] {
  return slots.length === 1 ? [Number(slots)] : slots.split(',').map(Number);
}
