export interface KeyLedger {
  /** What a call's key is bound to, if that is younger than 24 hours. */
  findKey(scope: KeyScope): Promise<KeyBinding | null>;
  /** The order that a key is bound to (base/idempotency.ts), if that is younger than 24 hours. */
  findOrderKey(scope: OrderKeyScope): Promise<OrderKeyBinding | null>;
  /**
   * Up to this id, orders were placed when keys did not yet say who used them; null: there are none. The key of whoever acted
   * for a buyer then stands among the buyer's own, for as long as it is kept.
   */
  readonly unscopedUpTo: string | null;
  /** Binds a key to the answer that a repeat gets. A key that is bound already keeps its first answer. */
  bindAnswer(call: KeyedCall, answer: string): Promise<void>;
  /**
   * Forgets some of the keys that were bound more than `olderMs` ago, oldest first. Returns how many rows it went through, keys
   * and orders without one; 0 when nothing is left.
   */
  pruneKeys(olderMs: number): Promise<number>;
}

/** Whose a key is, and for what: outside of its scope the same key is another one. All of it is compared bytewise. */
export interface KeyScope {
  /** `buyer:ann`, `admin:alice`. */
  caller: string;
  /** The buyer whom an admin acts for. */
  actingFor: string | null;
  /** `order.cancel` */
  operation: string;
  /** What is operated on: an id; empty where something is made. */
  subject: string;
  key: string;
}

/** A call with a key. */
export interface KeyedCall extends KeyScope {
  /** What its body says (base/idempotency.ts): with another one the key is refused. */
  fingerprint: string;
}

export interface KeyBinding {
  fingerprint: string;
  answer: string;
}

/** The scope of an order's key: the operation is placing it, and the key itself says who used it. */
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
