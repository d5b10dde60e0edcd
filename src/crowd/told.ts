import { isLive, ORDER_STATUSES, type OrderStatus } from '../model/order.ts';
import type { Answer, Evidence, OrderView } from './evidence.ts';

/** An order that buyers were told of, by a 201 or a 202, and what became of it. */
export interface Told {
  order: OrderView;
  /** Each key under which it was told; one, if all is well. */
  by: { buyer: string; key: string }[];
  /** A 201 has said that it is committed. */
  confirmed: boolean;
  /** A 202 has said that it is queued, before any 201. */
  queued: boolean;
  /** As its owner saw it when it was decided; null: it was not followed, or never seen decided. */
  seen: OrderView | null;
  /** As the admin's list has it. */
  stored: OrderView | null;
  fate: Fate;
}

/** `sold`: its buyer may rely on it, or could until it expired. A 201 is never anything else, whatever the list says. */
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

function hear(told: Map<string, Told>, { buyer, key, status }: Answer, order: OrderView): void {
  let entry = told.get(order.id);
  if (entry === undefined) {
    entry = { order, by: [], confirmed: false, queued: false, seen: null, stored: null, fate: 'undecided' };
    told.set(order.id, entry);
  }
  if (status !== 202) entry.confirmed = true;
  else if (!entry.confirmed) entry.queued = true;
  if (!entry.by.some((one) => one.buyer === buyer && one.key === key)) entry.by.push({ buyer, key });
}

/** The list is read last and has the last word; whether it contradicts what the owner saw is judged elsewhere. */
function fateOf({ confirmed, seen, stored }: Told): Fate {
  if (confirmed) return 'sold';
  const end = stored !== null && stored.status !== 'queued' ? stored : seen;
  if (end === null) return 'undecided';
  return end.status === 'rejected' ? 'rejected' : 'sold';
}

/** Its buyer holds a yes that the list does not know of: it took units all the same. */
export function isMissing({ confirmed, seen, stored }: Told): boolean {
  return stored === null && (confirmed || (seen !== null && live(seen)));
}

export function live({ status }: OrderView): boolean {
  return (ORDER_STATUSES as readonly string[]).includes(status) && isLive(status as OrderStatus);
}
