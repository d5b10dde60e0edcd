import type { ItemView } from '../gate/port.ts';
import type { CheckName, CheckReport, Finding } from '../model/finding.ts';
import type { Money } from '../model/money.ts';
import type { OrderRecord, OrderStatus } from '../model/order.ts';
import type { RejectReason } from '../model/outcome.ts';
import { type OrderPayment, type PaymentAttempt, paymentStateOf } from '../model/payment.ts';
import {
  type Described,
  type ItemKind,
  ledgerFree,
  type SaleRecord,
  type SaleState,
  saleState,
} from '../model/sale.ts';

/** How sales and orders read, to HTTP and to the library alike. Ids and times are strings. */
export interface Sale extends Described {
  id: string;
  name: string;
  state: SaleState;
  opensAt: string;
  closesAt: string;
  perBuyer: number;
  payWithin: number;
  version: number;
  createdAt: string;
  /** When the event begins that it sells tickets for. */
  startsAt?: string;
  venue?: string;
  items: Item[];
}

/** free + queued + reserved + sold + blocked = total. */
export interface Item extends Described {
  code: string;
  name: string;
  price: Money;
  kind: ItemKind;
  /** False: nobody can order it now, however many are free. */
  onSale: boolean;
  total: number;
  free: number;
  queued: number;
  reserved: number;
  sold: number;
  blocked: number;
}

export interface Order {
  id: string;
  saleId: string;
  buyer: string;
  item: string;
  quantity: number;
  seats: string[];
  amount: Money;
  status: OrderStatus;
  reason: RejectReason | null;
  /** Null: nobody has tried to pay it. */
  payment: OrderPayment | null;
  expiresAt: string | null;
  createdAt: string;
  updatedAt: string;
  version: number;
  /** The order that expired before its money came: this one has it. */
  revives?: string;
}

/** The ledger's rows and the gate's queue. A unit that is queued is not yet in the ledger's `reserved`. */
export function presentSale(sale: SaleRecord, gate: readonly ItemView[] | null, nowMs: number): Sale {
  const queuedOf = new Map(gate?.map(({ itemId, queued }) => [itemId, queued]));
  const items = sale.items.map((item): Item => {
    const { code, name, price, kind, onSale, total, reserved, sold, blocked } = item;
    const ledger = ledgerFree(item);
    // Read at two instants: an order may have been committed between them. Never more than the ledger has free.
    const queued = Math.min(queuedOf.get(item.id) ?? 0, ledger);
    const counts = { total, free: ledger - queued, queued, reserved, sold, blocked };
    return { code, name, price, kind, onSale, ...counts, ...describedOf(item) };
  });
  const free = items.reduce((sum, item) => (item.onSale ? sum + item.free : sum), 0);
  return {
    id: sale.id,
    name: sale.name,
    state: saleState(sale, free, nowMs),
    opensAt: iso(sale.opensAtMs),
    closesAt: iso(sale.closesAtMs),
    perBuyer: sale.perBuyer,
    payWithin: sale.payWithinSeconds,
    version: sale.version,
    createdAt: iso(sale.createdAtMs),
    ...(sale.startsAtMs !== undefined && { startsAt: iso(sale.startsAtMs) }),
    ...(sale.venue !== undefined && { venue: sale.venue }),
    ...describedOf(sale),
    items,
  };
}

function describedOf({ description, image, metadata }: Described): Described {
  return {
    ...(description !== undefined && { description }),
    ...(image !== undefined && { image }),
    ...(metadata !== undefined && { metadata }),
  };
}

/** What an order is for, to programs: description and image are for people, and long. */
export interface Offer {
  sale: Pick<Sale, 'name' | 'startsAt' | 'venue' | 'metadata'>;
  item: Pick<Item, 'name' | 'metadata'>;
}

export function presentOffer({ name, startsAtMs, venue, metadata, items }: SaleRecord, itemCode: string): Offer {
  const item = items.find(({ code }) => code === itemCode)!;
  return {
    sale: {
      name,
      ...(startsAtMs !== undefined && { startsAt: iso(startsAtMs) }),
      ...(venue !== undefined && { venue }),
      ...(metadata !== undefined && { metadata }),
    },
    item: { name: item.name, ...(item.metadata !== undefined && { metadata: item.metadata }) },
  };
}

/** `attempt`: the last one to pay it, if there is any. `seats`: the names of its seats. */
export function presentOrder(
  order: OrderRecord,
  attempt: PaymentAttempt | null = null,
  seats: readonly string[] = [],
): Order {
  return {
    id: order.id,
    saleId: order.saleId,
    buyer: order.buyer,
    item: order.itemCode,
    quantity: order.quantity,
    seats: [...seats],
    amount: order.amount,
    status: order.status,
    reason: order.reason,
    payment: attempt && presentPayment(attempt),
    expiresAt: order.expiresAtMs === null ? null : iso(order.expiresAtMs),
    createdAt: iso(order.createdAtMs),
    updatedAt: iso(order.updatedAtMs),
    version: order.version,
    ...(order.revives !== null && { revives: order.revives }),
  };
}

function presentPayment({ state, provider, reference, amount, refunded }: PaymentAttempt): OrderPayment {
  // Attempts that were refunded before partial refunds existed have no figure of their own.
  const back = state === 'refunded' ? amount.amount : refunded;
  return {
    state: paymentStateOf(state),
    provider,
    reference,
    refunded: back === 0 ? null : { amount: back, currency: amount.currency },
  };
}

/** All orders of a commit have the same two times: formatting them again for each costs more than this lookup. */
const remembered = new Map<number, string>();

export function iso(ms: number): string {
  let text = remembered.get(ms);
  if (text === undefined) {
    text = new Date(ms).toISOString();
    if (remembered.size >= 64) remembered.clear();
    remembered.set(ms, text);
  }
  return text;
}

/** Stuck stock, unsettled payments and wrong counts. */
export interface Consistency {
  checkedAt: string;
  status: 'consistent' | 'inconsistent';
  /** What was looked at. */
  checks: readonly CheckName[];
  findings: readonly Finding[];
  /** There are more than a report holds. */
  more: boolean;
  /** Give this to the next check, which goes on with the counts; null: all were checked. */
  next: string | null;
}

export function presentReport({ checkedAtMs, checks, findings, more, next }: CheckReport): Consistency {
  const status = findings.length === 0 ? 'consistent' : 'inconsistent';
  return { checkedAt: iso(checkedAtMs), status, checks, findings, more, next };
}
