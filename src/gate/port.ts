import type { Money } from '../model/money.ts';
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
  /**
   * Installs a sale from the ledger, replacing what is there only if `snapshot.epoch` is higher. `latest` is asked when
   * the gate is in place and before it opens: what was changed since the snapshot found no gate to tell, and is told now.
   */
  install(snapshot: SaleSnapshot, latest?: () => Promise<Latest | null>): Promise<void>;
  /**
   * Stops admission: until a higher epoch is installed, orders meet `stale`. Holds stay, to be settled. An epoch above
   * `upTo` is left as it is.
   */
  shut(saleId: string, upTo?: number): Promise<void>;
  /** Takes a finished sale out, with all that was kept for it; its orders then meet `stale`. */
  remove(saleId: string): Promise<void>;

  admit(request: AdmitRequest): Promise<Verdict>;

  /** The ledger has stored these orders as reserved: they are out of the pipe. */
  settle(saleId: string, holds: readonly HoldRef[]): Promise<void>;
  /** The ledger has committed that the units are free again (cancel, expiry, refund): the hold ends. */
  release(saleId: string, hold: HoldRef): Promise<void>;
  /** The order never came into being (the ledger did not take it): the hold ends and its key is free again. */
  withdraw(saleId: string, hold: HoldRef & { readonly key: string | null }): Promise<void>;
  /** The hold as it stands; null: there is none, or the gate does not hold the sale. */
  holdOf(saleId: string, hold: HoldRef): Promise<Held | null>;
  /** The epoch in force, or null while the gate is stale: orders of this sale would meet `stale`. */
  epochOf(saleId: string): Promise<number | null>;

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
  /** Forgets keys that were bound longer ago than so long, by the gate's clock: the ledger keeps them for 24 hours too. */
  pruneKeys(olderMs: number): Promise<void>;
}

/** A gate that outlives the process, and that somebody must keep tidy. */
export interface SharedGate extends Gate {
  /** Sales that something is kept for. */
  saleIds(): Promise<string[]>;
  /** These are among them, should the list have been lost. */
  enlist(saleIds: readonly string[]): Promise<void>;
  /** Takes a sale out if it is shut and nothing of it is in the pipe or among the dead letters, judged in the same step. */
  retire(saleId: string): Promise<boolean>;
  /** Units that the house has taken out. */
  houseHolds(saleId: string): Promise<HouseHold[]>;
}

export interface HouseHold {
  readonly holdId: string;
  readonly itemId: string;
  /** By the gate's clock. */
  readonly ageMs: number;
}

/** What the ledger has now, as far as a gate must know. */
export interface Latest extends SaleValues {
  readonly items: readonly { readonly id: string; readonly total: number; readonly rev: number }[];
}

/** An order's hold stands in its buyer's name: with both it is found in one step, without an index of its own. */
export interface HoldRef {
  readonly orderId: string;
  readonly buyer: string;
}

/** What the gate knows of an order that holds units. */
export interface Held {
  /** Not yet decided by the ledger, as far as the gate has heard. */
  readonly queued: boolean;
  readonly itemId: string;
  readonly itemCode: string;
  readonly quantity: number;
  readonly slots: number[];
  readonly price: Money;
  readonly epoch: number;
}

/** An AbortSignal, or anything else that knows whether somebody has left. */
export interface Leaving {
  readonly aborted: boolean;
}

export interface AdmitRequest {
  saleId: string;
  orderId: string;
  itemCode: string;
  buyer: string;
  quantity: number;
  key: string | null;
  fingerprint: string;
  /** Aborted before the request was sent to the gate, it is not sent any more: whoever asked has left. */
  signal?: Leaving | undefined;
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
