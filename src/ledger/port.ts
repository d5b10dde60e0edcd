import type { IdBlock, IdKind } from '../base/ids.ts';
import type { Actor } from '../model/actor.ts';
import type { OrderMessage, OrderRecord, OrderStatus } from '../model/order.ts';
import type { NewSale, SalePatch, SaleRecord, SaleStamp } from '../model/sale.ts';
import type { SaleSnapshot } from '../model/snapshot.ts';
import type { AuditNote, LifeLedger } from './life.ts';
import type { SandboxBook } from './sandbox.ts';
import type { WebhookLedger } from './webhooks.ts';

/**
 * The ledger: the SQL truth. Every method is one transaction and is durable when its promise resolves.
 *
 * What it enforces by itself, whatever the gate said (docs/guarantees.md, P1 and P2): an order id is inserted once, and
 * the same id with other content is a fault; units of an item never exceed its total (P1); a live unit has a slot of
 * its own under the buyer's limit (P2); a key is bound to one order (P5); an admission of an older epoch is rejected.
 * It fails with a RetryableError when it cannot serve now (disk full, read-only, I/O error): nothing was stored.
 *
 * Its clock is the database's own, so that processes whose clocks differ agree on what is old, over or due. SQLite has no
 * clock but that of its only process.
 */
export interface Ledger extends LifeLedger, SandboxBook {
  /** Which shop this is, drawn when the ledger was made. A copy of a database has the same. */
  readonly shopId: string;
  /** How many transactions of one kind are worth having under way: 1 where there is one writer. */
  readonly atOnce: number;
  /** Who is told of orders, and what each has yet to be told. */
  readonly webhooks: WebhookLedger;
  /**
   * Stores a batch of admitted orders in one transaction and says what is stored now for each, in the same order. An order
   * that somebody placed for its buyer has its audit row in the same transaction.
   */
  commitOrders(batch: readonly OrderMessage[]): Promise<StoredOrder[]>;
  /**
   * Stores orders as rejected that will never be decided otherwise: lost with the gate, or undeliverable. An order that
   * is stored already stays as it is. Says what is stored now for each, in the same order. `note`: whose decision it was.
   */
  rejectOrders(
    batch: readonly OrderMessage[],
    reason: 'admission_lost' | 'undeliverable',
    note?: AuditNote,
  ): Promise<StoredOrder[]>;
  /** Which of these order ids are stored now. */
  storedAmong(orderIds: readonly string[]): Promise<Map<string, OrderRecord>>;
  /**
   * Which of these are stored, asked after a commit whose outcome is unknown: no commit of them can be under way any more,
   * and one that arrives late has no effect. Fails while that cannot be said.
   */
  storedAtRest(batch: readonly OrderMessage[]): Promise<Map<string, OrderRecord>>;

  createSale(sale: NewSale & SaleIds, call: AdminCall): Promise<SaleChange>;
  patchSale(saleId: string, patch: SalePatch, version: number, call: AdminCall): Promise<SaleChange>;
  /** `add` may be negative: down to what is free in the ledger. */
  addStock(saleId: string, itemCode: string, add: number, call: AdminCall): Promise<SaleChange>;
  setPaused(saleId: string, paused: boolean, call: AdminCall): Promise<SaleChange>;
  closeSale(saleId: string, call: AdminCall): Promise<SaleChange>;

  getSale(saleId: string): Promise<SaleRecord | null>;
  /** Whether these sales were changed, in one query for all of them. One that does not exist has no stamp. */
  saleStamps(saleIds: readonly string[]): Promise<Map<string, SaleStamp>>;
  /** The same when no change of it can be under way any more: asked after one whose outcome is unknown. */
  saleAtRest(saleId: string): Promise<SaleRecord | null>;
  listSales(page: Page): Promise<SaleRecord[]>;
  getOrder(orderId: string): Promise<OrderRecord | null>;
  listOrders(filter: OrderFilter, page: Page): Promise<OrderRecord[]>;
  /** What a call's key is bound to, if that is younger than 24 hours. */
  findKey(scope: KeyScope): Promise<KeyBinding | null>;
  /** The order that a key is bound to (base/idempotency.ts), if that is younger than 24 hours. */
  findOrderKey(scope: OrderKeyScope): Promise<OrderKeyBinding | null>;
  /**
   * Orders up to this id were placed when keys did not yet say who used them; null: there are none. Whoever acts for a buyer
   * may find their key among the buyer's own there, for as long as it is kept.
   */
  readonly unscopedUpTo: string | null;
  /** Binds a key to the answer that a repeat gets. One that is bound to an answer already keeps the first. */
  bindAnswer(scope: KeyScope & { fingerprint: string }, answer: string): Promise<void>;

  /** Ids of sales that may still admit (not closed, window not over): those the gate must hold. */
  openSaleIds(): Promise<string[]>;
  /**
   * Raises the epoch of the sale's items, above that of a gate that may be in force (a ledger that was restored from a
   * backup is behind it), and reads the sale, in one transaction. What the gate holds is read afterwards, page by page and
   * outside of any transaction: nobody waits for it. `note` is written unless this is the first gate of the sale.
   */
  rebuildSnapshot(saleId: string, above?: number, note?: Rebuilding): Promise<SaleSnapshot | null>;

  /**
   * Changes of sales that were committed longer ago than so long and have not been confirmed by `finishTask`: whoever made
   * them may have died, or lost the answer, before the gate heard of them. Always empty where a failed commit is known to
   * have left nothing, and the gate dies with the process (SQLite).
   */
  unfinishedTasks(olderMs: number): Promise<GateTask[]>;
  finishTask(auditId: string): Promise<void>;

  takeIdBlock(kind: IdKind, size: number): Promise<IdBlock>;
  /** Fails if the ledger could not store anything now. */
  probe(): Promise<void>;
  /** Does a little of the work that can wait, for at most about `budgetMs`. True: there is more. */
  maintain(budgetMs: number): Promise<boolean>;
  /** How much work is waiting for `maintain`. */
  readonly backlog: number;
  /**
   * Forgets some keys that were bound longer ago than so long, oldest first. Returns how much it got done, keys forgotten or
   * orders without a key passed by; 0 when nothing is left.
   */
  pruneKeys(olderMs: number): Promise<number>;
  close(): Promise<void>;
}

/** Who has a gate built anew. */
export type Rebuilding = Pick<AuditNote, 'auditId' | 'by'>;

/** A change of a sale that the gate has yet to hear of. */
export interface GateTask {
  auditId: string;
  saleId: string;
}

export interface SaleIds {
  id: string;
  itemIds: string[];
}

/** What stands stored for a message now; `inserted` is false for a repeat of a message stored before. */
export interface StoredOrder {
  order: OrderRecord;
  inserted: boolean;
}

/** Whose a key is, and for what: a key binds nothing outside of its scope. All of it is compared bytewise. */
export interface KeyScope {
  /** `buyer:ann`, `admin:alice`. */
  caller: string;
  /** The buyer whom an admin acts for. */
  actingFor: string | null;
  /** `order.cancel` */
  operation: string;
  /** What is operated on: an id; nothing, where something is made. */
  subject: string;
  key: string;
}

export interface KeyBinding {
  fingerprint: string;
  answer: string;
}

/** The scope of an order's key: the operation is placing it, and who used it stands in the key. */
export interface OrderKeyScope {
  saleId: string;
  buyer: string;
  key: string;
}

export interface OrderKeyBinding {
  fingerprint: string;
  orderId: string;
}

/** An administrative change: who, when it is keyed under what, and how its answer reads. */
export interface AdminCall {
  by: Actor;
  auditId: string;
  keyed: (KeyScope & { fingerprint: string }) | null;
  /** Writes the answer that a repeat of the key gets; called inside the transaction. */
  answer: (sale: SaleRecord) => string;
}

export type SaleChange =
  | { outcome: 'changed'; sale: SaleRecord; answer: string }
  | { outcome: 'replayed'; answer: string }
  | { outcome: 'not_found' | 'version_conflict' | 'insufficient_free' | 'sale_closed' | 'idempotency_key_reused' }
  | { outcome: 'invalid_request'; path: string; message: string };

/** Newest first: rows with an id below `before`. */
export interface Page {
  limit: number;
  before: string | null;
}

export interface OrderFilter {
  saleId?: string;
  status?: OrderStatus;
  buyer?: string;
}

/** How long a key stays bound. */
export const KEY_KEPT_MS = 24 * 3600 * 1000;

/** How long a release that the gate has had is remembered: longer than any gate takes to be built. */
export const RELEASES_KEPT_MS = 3600 * 1000;

export type { Actor } from '../model/actor.ts';
export type * from './life.ts';
export type * from './sandbox.ts';
export type * from './webhooks.ts';
