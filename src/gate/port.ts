import type { OrderMessage } from '../model/order.ts';
import type { Refusal } from '../model/outcome.ts';
import type { SaleSnapshot, SaleValues } from '../model/snapshot.ts';

/**
 * The gate decides admission in one atomic step and keeps a hold per admitted order.
 *
 * Guarantees: key, window, limit and stock are judged and taken together or not at all (P1, P2, P5); an order id that
 * was admitted is answered the same again and takes nothing; settle, release and withdraw act on a hold and do
 * nothing without one (P4); absolute values from the ledger are applied only if newer than what is in force.
 * It does not guarantee durability: the ledger is the truth, and a gate is rebuilt from it.
 */
export interface Gate {
  /** Installs a sale from the ledger, replacing what is there only if `snapshot.epoch` is higher. */
  install(snapshot: SaleSnapshot): Promise<void>;
  /** Takes a sale out; its orders then meet `stale`. */
  remove(saleId: string): Promise<void>;

  admit(request: AdmitRequest): Promise<Verdict>;

  /** The ledger has stored the order as reserved: it is out of the pipe. */
  settle(saleId: string, orderId: string): Promise<void>;
  /** The ledger has committed that the units are free again (cancel, expiry, refund): the hold ends. */
  release(saleId: string, orderId: string): Promise<void>;
  /** The order never came into being (the ledger did not take it): the hold ends and its key is free again. */
  withdraw(saleId: string, orderId: string): Promise<void>;

  /** The sale's own values at `version`; an older version changes nothing. */
  applySale(saleId: string, values: SaleValues): Promise<void>;
  /** The item's total at `rev`; an older rev changes nothing. */
  applyTotal(saleId: string, itemId: string, total: number, rev: number): Promise<void>;
  /** Takes free units as a hold of the house, before the ledger lowers the total. False: not that many are free. */
  holdForHouse(saleId: string, itemId: string, units: number, holdId: string): Promise<boolean>;
  /** Ends a hold of the house, if it is there; the lowered total comes into force in the same step. */
  dropHouseHold(
    saleId: string,
    itemId: string,
    holdId: string,
    lowered?: { total: number; rev: number },
  ): Promise<void>;

  /** Counts of an item as the gate sees them, or null if it does not hold the sale. */
  view(saleId: string): Promise<ItemView[] | null>;
  /** Forgets keys bound before `beforeMs`: the ledger keeps them for 24 hours too. */
  pruneKeys(beforeMs: number): Promise<void>;
}

export interface AdmitRequest {
  saleId: string;
  orderId: string;
  itemCode: string;
  buyer: string;
  quantity: number;
  key: string | null;
  fingerprint: string;
}

/** The accepted order's message went into the pipe in the same step as the admission. */
export type Verdict =
  | { outcome: 'admitted'; message: OrderMessage }
  | { outcome: 'replayed'; orderId: string }
  | { outcome: 'sale_not_open' | 'sale_closed' | 'sale_paused'; opensAtMs: number; closesAtMs: number }
  | { outcome: 'limit_reached'; orderIds: string[]; perBuyer: number }
  | { outcome: Exclude<Refusal, 'limit_reached' | 'sale_not_open' | 'sale_closed' | 'sale_paused'> }
  | { outcome: 'stale' };

export interface ItemView {
  itemId: string;
  code: string;
  total: number;
  free: number;
  /** Admitted, not yet decided by the ledger. */
  queued: number;
  /** Held by live orders that the ledger has stored. */
  held: number;
  house: number;
  blocked: number;
  rev: number;
}
