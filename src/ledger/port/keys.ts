export interface KeyLedger {
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
  /**
   * Forgets some keys that were bound longer ago than so long, oldest first. Returns how much it got done, keys forgotten or
   * orders without a key passed by; 0 when nothing is left.
   */
  pruneKeys(olderMs: number): Promise<number>;
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

/** How long a key stays bound. */
export const KEY_KEPT_MS = 24 * 3600 * 1000;
