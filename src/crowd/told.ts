import { isLive, ORDER_STATUSES, type OrderStatus } from '../model/order.ts';
import type { BuyerAnswer, Evidence, OrderView } from './evidence.ts';

/** An order that a buyer got by a 201 or a 202, and what became of it. */
export interface Told {
  order: OrderView;
  /** Every key that got this order; more than one is a fault. */
  by: { buyer: string; key: string }[];
  /** A 201 said that it is committed. */
  confirmed: boolean;
  /** A 202 said that it is queued, before any 201. */
  queued: boolean;
  /** As its owner saw it decided; null: not followed, or never seen decided. */
  seen: OrderView | null;
  /** As the admin's list has it. */
  stored: OrderView | null;
  fate: Fate;
}

/** `sold`: its buyer may rely on it, or could until it expired. A 201 always means `sold`, whatever the list says. */
export type Fate = 'sold' | 'rejected' | 'undecided';

export type ToldOrders = ReadonlyMap<string, Told>;

export function toldOrders({ answers, orders, following }: Evidence): ToldOrders {
  const told = new Map<string, Told>();
  for (const answer of answers) if (answer.order !== null) hear(told, answer, answer.order);
  for (const { id, end } of following.orders) {
    const entry = told.get(id);
    if (entry !== undefined) entry.seen = end;
  }
  for (const order of orders) {
    const entry = told.get(order.id);
    if (entry !== undefined) entry.stored = order;
  }
  for (const entry of told.values()) entry.fate = fateOf(entry);
  return told;
}

function hear(told: Map<string, Told>, { buyer, key, status }: BuyerAnswer, order: OrderView): void {
  let entry = told.get(order.id);
  if (entry === undefined) {
    entry = { order, by: [], confirmed: false, queued: false, seen: null, stored: null, fate: 'undecided' };
    told.set(order.id, entry);
  }
  if (status !== 202) entry.confirmed = true;
  else if (!entry.confirmed) entry.queued = true;
  if (!entry.by.some((one) => one.buyer === buyer && one.key === key)) entry.by.push({ buyer, key });
}

/** The list decides, because it is read last. verdict.ts checks whether it contradicts what the owner saw. */
function fateOf({ confirmed, seen, stored }: Told): Fate {
  if (confirmed) return 'sold';
  const end = stored !== null && stored.status !== 'queued' ? stored : seen;
  if (end === null) return 'undecided';
  return end.status === 'rejected' ? 'rejected' : 'sold';
}

/** True if the buyer was promised an order that the list does not contain. It counts as having taken units. */
export function isMissing({ confirmed, seen, stored }: Told): boolean {
  return stored === null && (confirmed || (seen !== null && live(seen)));
}

export function live({ status }: OrderView): boolean {
  return (ORDER_STATUSES as readonly string[]).includes(status) && isLive(status as OrderStatus);
}
