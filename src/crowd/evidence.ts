/**
 * The evidence of a crowd: every answer that its buyers got, and what the admin's lists say afterwards. The verdict
 * (verdict.ts) is computed from this alone.
 */
export interface Evidence {
  /** The ids of this crowd's buyers begin with it, and nobody else's do. */
  buyerPrefix: string;
  /** The item that every buyer orders. */
  item: string;
  quantity: number;
  answers: readonly BuyerAnswer[];
  /** What became of the orders that were answered 202. */
  following: Following;
  /** The sale before the crowd entered (after a top-up), and after everything had settled. */
  before: SaleView;
  after: SaleView;
  /** The admin's list: every order of the sale, whoever placed it. */
  orders: readonly OrderView[];
  /** False: the counts still changed while the list was read, because others are ordering, too. */
  quiet: boolean;
}

/**
 * The answer to one request. `sentAt` and `answeredAt` are ticks of one counter for the whole crowd. They tell "sent after the
 * buyer had seen that answer" from "at the same time" without trusting a clock.
 */
export interface BuyerAnswer {
  buyer: string;
  key: string;
  sentAt: number;
  answeredAt: number;
  /** Null: the connection broke, and the outcome of the order is unknown. */
  status: number | null;
  /** The problem's code. */
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

/** Orders that were answered 202, read by their owners until they were decided. */
export interface Following {
  orders: readonly Followed[];
  /** Answers to these reads that the contract does not allow, and how often. */
  odd: Readonly<Record<string, number>>;
  /** How long after the last buyer they were followed at most. */
  boundMs: number;
  /** False: interrupted before that, so that an undecided order is not a fault. */
  waited: boolean;
}

export interface Followed {
  id: string;
  /** What the last read before the decision found; `unheard`: no read was answered. */
  last: 'queued' | 'missing' | 'unheard';
  /** The order when it was first seen decided; null: never. */
  end: OrderView | null;
  /** From the 202 to that read. */
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

/** True if the server asks the client to come back later: the same key is sent again. */
export function isComeBack({ status, code }: Pick<BuyerAnswer, 'status' | 'code'>): boolean {
  return status === 429 || status === 503 || (status === 409 && code === IN_FLIGHT);
}
