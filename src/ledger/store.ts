import type { OrderMessage, OrderRecord } from '../model/order.ts';
import type { AuditNote } from './port/audit.ts';
import type { OrderKeyBinding, OrderKeyScope } from './port/keys.ts';
import type { OrderFilter, StoredOrder } from './port/orders.ts';
import type { Page } from './port/page.ts';
import type { GateRow } from './works/gate-pages.ts';
import type { LifeDialect, Work } from './works/work.ts';

/**
 * A database as the ledger needs it. What all databases do alike is work (works/work.ts): the ledger passes it in, and the
 * driver runs it. Only the batched insert of orders, which a crowd waits for, is written for each driver.
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
   * One transaction, durable when its promise resolves. Each statement sees what was committed before it. If it collides with
   * another transaction it starts again, with fresh work from `work`. Work awaits nothing but its own rounds.
   */
  change<T>(work: () => Work<T>): Promise<T>;
  /**
   * As `change`, for changes that buyers or anybody may ask for in any number. Where a commit is a disk write on the event loop
   * (SQLite), those of one turn share it; one for each would hold up every order.
   */
  changeShared<T>(work: () => Work<T>): Promise<T>;
  /** Work that only reads, or whose every statement is right by itself. */
  look<T>(work: () => Work<T>): Promise<T>;
  /** As `change`, for work that deletes rows after it has seen that nothing refers to them. */
  remove<T>(work: () => Work<T>): Promise<T>;
  /** As `look`, for a few queries that may take long: they never stop the event loop. */
  lookElsewhere<T>(work: () => Work<T>): Promise<T>;
  /** As `change`; once the work holds its first locks, no transaction that an outage interrupted can still commit. */
  atRest<T>(work: () => Work<T>): Promise<T>;
  /** Requests that come together share one piece of work; each gets its own answer. */
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
  /** They share a transaction. `about`: which row a request changes; requests for one row are committed in the order they came in. */
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
  /** Committed orders that are not yet in the tables ordered by buyer (SQLite's tail). Null: the driver has no tail. */
  readonly tail: OrderTail | null;
}

export interface OrderTail {
  /** How much work is waiting for `fold`. */
  readonly backlog: number;
  /** For at most about `budgetMs`. True: there is more. */
  fold(budgetMs: number): boolean;
  /** Live orders of a buyer that are in the tail only. */
  liveOf(buyer: string): readonly { readonly orderId: string; readonly saleId: string }[];
  /** Of these seats, those that live orders in the tail have, with the order. */
  takersOf(itemId: string, seats: readonly number[]): [seat: number, orderId: string][];
}
