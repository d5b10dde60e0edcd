/**
 * What a crowd brings home: every answer its buyers were given, and what the admin's lists say afterwards. The verdict
 * (verdict.ts) is computed from this and from nothing else.
 */
export interface Evidence {
  /** Every buyer of this crowd has an id that begins with it, and nobody else has. */
  buyerPrefix: string;
  /** What each buyer asked for, every time. */
  item: string;
  quantity: number;
  answers: readonly Answer[];
  /** What became of the orders that were answered 202. */
  following: Following;
  /** The sale as the crowd came (after a top-up), and once it was quiet again. */
  before: SaleView;
  after: SaleView;
  /** The admin's list: every order of the sale, whoever placed it. */
  orders: readonly OrderView[];
  /** False: the counts still moved while the list was read, since others are ordering too. */
  quiet: boolean;
}

/**
 * The answer to one request. `sentAt` and `answeredAt` are ticks of one counter over the whole crowd, so that "sent
 * after the buyer had seen that answer" can be told from "at the same time" without trusting a clock.
 */
export interface Answer {
  buyer: string;
  key: string;
  sentAt: number;
  answeredAt: number;
  /** Null: the connection broke, and what became of the order is unknown. */
  status: number | null;
  /** The problem's stable word. */
  code: string | null;
  /** The order of a 201 or a 202. */
  order: OrderView | null;
  /** `Idempotent-Replayed: true` */
  replayed: boolean;
}

export interface OrderView {
  id: string;
  buyer: string;
  item: string;
  quantity: number;
  status: string;
  /** Why it was rejected; null otherwise. */
  reason: string | null;
}

/** Orders that were answered 202, looked at by their owners until they were decided. */
export interface Following {
  orders: readonly Followed[];
  /** Answers to these looks that the contract does not have, in words. */
  odd: Readonly<Record<string, number>>;
  /** So long after the last buyer they were followed at most. */
  boundMs: number;
  /** False: interrupted before the bound was over, so that an order without an end is nobody's fault. */
  waited: boolean;
}

export interface Followed {
  id: string;
  /** What the last look before its end found: `unheard`, if none was answered. */
  last: 'queued' | 'missing' | 'unheard';
  /** The order as it was when it was first seen decided; null: it never was. */
  end: OrderView | null;
  /** From the 202 to that look. */
  tookMs: number | null;
}

export interface ItemView {
  code: string;
  kind: string;
  total: number;
  free: number;
  queued: number;
  reserved: number;
  sold: number;
  blocked: number;
}

export interface SaleView {
  id: string;
  name: string;
  state: string;
  perBuyer: number;
  items: ItemView[];
}

export const IN_FLIGHT = 'idempotency_in_flight';

/** Not an answer to the order itself: the same key is tried again. */
export function isComeBack({ status, code }: Pick<Answer, 'status' | 'code'>): boolean {
  return status === 429 || status === 503 || (status === 409 && code === IN_FLIGHT);
}
