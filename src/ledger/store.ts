import type { OrderMessage, OrderRecord } from '../model/order.ts';
import type { AuditNote } from './port/audit.ts';
import type { OrderKeyBinding, OrderKeyScope } from './port/keys.ts';
import type { OrderFilter, StoredOrder } from './port/orders.ts';
import type { Page } from './port/page.ts';
import type { GateRow } from './works/gate-pages.ts';
import type { LifeDialect, Work } from './works/work.ts';

/**
 * A database as the ledger needs it. Whatever is the same on all of them is work (work.ts), and the ledger brings it; a driver
 * does it, and has a way of its own for the batched insert of orders, which is what a crowd waits for.
 *
 * Every method fails with a RetryableError when the database cannot serve now: nothing was stored.
 */
export interface Store {
  readonly shopId: string;
  /** See `KeyLedger`. */
  readonly unscopedUpTo: string | null;
  readonly dialect: LifeDialect;
  /** How many transactions of one kind are worth having under way: 1 where there is one writer. */
  readonly atOnce: number;
  /**
   * One transaction, durable when its promise resolves. Each statement sees what was committed before it. Work that collides
   * with another transaction is begun anew, which is why it is made here; it awaits nothing but its own rounds.
   */
  change<T>(work: () => Work<T>): Promise<T>;
  /** Work that only reads, or whose every statement is right by itself. */
  look<T>(work: () => Work<T>): Promise<T>;
  /** As `change`, when nothing that an outage has interrupted can be committed any more once the work has its first locks. */
  atRest<T>(work: () => Work<T>): Promise<T>;
  /** Requests that come together are one piece of work, of which each gets its own answer. */
  together<Q, A>(work: (batch: readonly Q[]) => Work<A[]>, how: Together<Q>): (request: Q) => Promise<A>;
  readonly orders: OrderStore;
  /** Fails if the database could not store anything now. */
  probe(): Promise<void>;
  close(): Promise<void>;
}

export type Together<Q> =
  /** They only read. */
  | { readonly as: 'look' }
  /** A few statements serve any number of them, and each statement is right by itself. */
  | { readonly as: 'statements' }
  /** They share a transaction. `about`: which row; those of one row are not separated from each other. */
  | { readonly as: 'change'; readonly about: (request: Q) => string };

/** Orders as the batched writer stores them. */
export interface OrderStore {
  /** `keepEvents`: with an event for each that is stored as reserved. */
  commit(batch: readonly OrderMessage[], keepEvents: boolean): Promise<StoredOrder[]>;
  reject(
    batch: readonly OrderMessage[],
    reason: 'admission_lost' | 'undeliverable',
    note: AuditNote | undefined,
  ): Promise<StoredOrder[]>;
  list(filter: OrderFilter, page: Page): Promise<OrderRecord[]>;
  findKey(scope: OrderKeyScope): Promise<OrderKeyBinding | null>;
  /** The next orders of the sale by id, whatever became of them: see gate-pages.ts. */
  page(saleId: string, afterId: string): Promise<GateRow[]>;
  /** Orders that are committed and not yet in the tables that are ordered by buyer: none, but on SQLite (the tail). */
  readonly tail: OrderTail | null;
}

export interface OrderTail {
  /** How much work is waiting for `fold`. */
  readonly backlog: number;
  /** For at most about `budgetMs`. True: there is more. */
  fold(budgetMs: number): boolean;
  /** Live orders of a buyer that are in the tail only. */
  liveOf(buyer: string): readonly { readonly orderId: string; readonly saleId: string }[];
}
