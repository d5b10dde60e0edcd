import type { IdBlock, IdKind } from '../base/ids.ts';
import type { AccountLedger } from './port/accounts.ts';
import type { AuditLedger } from './port/audit.ts';
import type { EventLedger } from './port/events.ts';
import type { KeyLedger } from './port/keys.ts';
import type { LikeLedger } from './port/likes.ts';
import type { OrderLedger } from './port/orders.ts';
import type { PaymentLedger } from './port/payments.ts';
import type { ReleaseLedger } from './port/releases.ts';
import type { SaleLedger } from './port/sales.ts';
import type { SandboxBook } from './port/sandbox.ts';
import type { SeatLedger } from './port/seats.ts';
import type { SocialLedger } from './port/social.ts';
import type { WebhookLedger } from './port/webhooks.ts';

/**
 * The ledger: the SQL truth. Every method is one transaction and is durable when its promise resolves.
 *
 * What it enforces by itself, whatever the gate said (docs/guarantees.md, P1 and P2): an order id is inserted once, and
 * the same id with other content is a fault; units of an item never exceed its total, and a seat has at most one live order
 * (P1); a live unit has a slot of its own under the buyer's limit (P2); a key is bound to one order (P5); an admission of an older epoch is rejected.
 * It fails with a RetryableError when it cannot serve now (disk full, read-only, I/O error): nothing was stored.
 *
 * Its clock is the database's own, so that processes whose clocks differ agree on what is old, over or due. SQLite has no
 * clock but that of its only process.
 */
export interface Ledger
  extends OrderLedger,
    SaleLedger,
    SeatLedger,
    PaymentLedger,
    ReleaseLedger,
    EventLedger,
    KeyLedger,
    AuditLedger,
    SandboxBook,
    IdBlocks,
    Upkeep {
  /** Webhook endpoints, and the deliveries each has yet to get. */
  readonly webhooks: WebhookLedger;
  /** Accounts that people register themselves. */
  readonly accounts: AccountLedger;
  /** Posts and comments. */
  readonly social: SocialLedger;
  readonly likes: LikeLedger;
}

export interface IdBlocks {
  takeIdBlock(kind: IdKind, size: number): Promise<IdBlock>;
}

/** The store itself. */
export interface Upkeep {
  /** Which shop this is, drawn when the ledger was made. A copy of a database has the same. */
  readonly shopId: string;
  /** How many transactions of one kind are worth having under way: 1 where there is one writer. */
  readonly atOnce: number;
  /** Fails if the ledger could not store anything now. */
  probe(): Promise<void>;
  /** Does a little of the work that can wait, for at most about `budgetMs`. True: there is more. */
  maintain(budgetMs: number): Promise<boolean>;
  /** How much work is waiting for `maintain`. */
  readonly backlog: number;
  close(): Promise<void>;
}

export type { Actor } from '../model/actor.ts';
export type * from './port/accounts.ts';
export type * from './port/audit.ts';
export type * from './port/events.ts';
export * from './port/keys.ts';
export type * from './port/likes.ts';
export type * from './port/orders.ts';
export type * from './port/page.ts';
export * from './port/payments.ts';
export * from './port/releases.ts';
export type * from './port/sales.ts';
export type * from './port/sandbox.ts';
export * from './port/seats.ts';
export type * from './port/social.ts';
export type * from './port/webhooks.ts';
