import type { Money } from './money.ts';
import type { SaleWindow } from './sale.ts';

/** The values of a sale that the gate judges by; `version` says which of two is newer. */
export interface SaleValues extends SaleWindow {
  version: number;
  perBuyer: number;
  payWithinSeconds: number;
}

/** What a gate is built from: read from the ledger in the transaction that raised the epoch. */
export interface SaleSnapshot extends SaleValues {
  saleId: string;
  epoch: number;
  items: { id: string; code: string; price: Money; total: number; blocked: number; rev: number }[];
  /** Live orders: their units are not free, their slots are taken. */
  holds: { orderId: string; itemId: string; buyer: string; slots: number[] }[];
  /** Keys younger than 24 hours, oldest first. */
  keys: { buyer: string; key: string; fingerprint: string; orderId: string; boundAtMs: number }[];
}

export function saleValues(from: SaleValues): SaleValues {
  const { version, opensAtMs, closesAtMs, paused, closed, perBuyer, payWithinSeconds } = from;
  return { version, opensAtMs, closesAtMs, paused, closed, perBuyer, payWithinSeconds };
}
