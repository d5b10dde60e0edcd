import type { Money } from './money.ts';
import type { SaleWindow } from './sale.ts';

/** The values by which the gate judges orders of a sale; `version` says which of two is newer. */
export interface SaleValues extends SaleWindow {
  version: number;
  perBuyer: number;
  payWithinSeconds: number;
}

/** What a gate is built from: `content` in pages, all else read in the transaction that raised the epoch. */
export interface SaleSnapshot extends SaleValues {
  saleId: string;
  epoch: number;
  /** Not closed and its window not over, by the ledger's clock: otherwise it needs no gate. */
  mayAdmit: boolean;
  items: {
    id: string;
    code: string;
    price: Money;
    total: number;
    blocked: number;
    rev: number;
    /** False: nobody can order it now. Absent: it is on sale. */
    onSale?: false;
    /** Its seat map as `encodeSeatMap` writes it, and the seat numbers that are blocked. Absent: the item is counted. */
    seats?: { map: string; blocked: number[] };
  }[];
  /**
   * Can be read once. No order is added after the epoch was raised: older admissions are rejected, and those of this epoch come
   * only when its gate is open. An order that ends meanwhile may be in a page or not: its release follows.
   */
  content: AsyncIterable<SnapshotPage> | Iterable<SnapshotPage>;
}

export interface SnapshotPage {
  /** Live orders: their units are not free, their slots are taken. */
  readonly holds: readonly {
    orderId: string;
    itemId: string;
    buyer: string;
    slots: number[];
    /** The seat numbers that it has now. Absent: the item is counted. */
    seats?: number[];
    /** Its seats are shown as sold. */
    paid?: boolean;
  }[];
  /** Keys younger than 24 hours, oldest first: exactly so within a page, and nearly so from page to page. */
  readonly keys: readonly { buyer: string; key: string; fingerprint: string; orderId: string; boundAtMs: number }[];
}

export function saleValues(from: SaleValues): SaleValues {
  const { version, opensAtMs, closesAtMs, paused, closed, perBuyer, payWithinSeconds } = from;
  return { version, opensAtMs, closesAtMs, paused, closed, perBuyer, payWithinSeconds };
}
