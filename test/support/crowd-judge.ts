import { isDeepStrictEqual } from 'node:util';
import type { Order, Sale } from '../../src/views/present.ts';
import type { Try } from './crowd-record.ts';
import type { TestServer } from './server.ts';

/**
 * The judges. Each compares what buyers were told with what the ledger says, and returns the faults in words. An empty list
 * means that the promise was kept. They do not know how the crowd was made.
 */

/** Faults that are shown; of the others only the number. */
const SHOWN_MAX = 5;

function verdict(faults: string[]): string[] {
  return faults.length <= SHOWN_MAX ? faults : [...faults.slice(0, SHOWN_MAX), `… ${faults.length} in all`];
}

function isLive(order: Order): boolean {
  return order.status === 'reserved' || order.status === 'paid';
}

/** All orders of a sale from the admin's list, newest first. */
export async function ledgerOrders({ call }: Pick<TestServer, 'call'>, saleId: string): Promise<Order[]> {
  const orders: Order[] = [];
  let cursor: string | null = null;
  do {
    const path: string = `/v1/orders?saleId=${saleId}&limit=200${cursor ? `&cursor=${cursor}` : ''}`;
    const answer = await call('GET', path, { admin: true });
    if (answer.status !== 200) throw new Error(`no list: ${answer.status} ${JSON.stringify(answer.body)}`);
    orders.push(...(answer.body.data as Order[]));
    cursor = answer.body.nextCursor;
  } while (cursor !== null);
  return orders;
}

let unusedCursor = 2n ** 62n;

export async function saleNow({ call }: Pick<TestServer, 'call'>, saleId: string): Promise<Sale> {
  // Public counts may lag, but a page that was never requested is not cached.
  const answer = await call('GET', `/v1/sales?limit=200&cursor=${unusedCursor--}`);
  const sale = answer.status === 200 && (answer.body.data as Sale[]).find(({ id }) => id === saleId);
  if (!sale) throw new Error(`no sale: ${answer.status} ${JSON.stringify(answer.body)}`);
  return sale;
}

/** P9, as far as a reader can see it: the five counts of every item add up to its total, and none is negative. */
export function countFaults(sale: Sale): string[] {
  return sale.items.flatMap(({ code, total, free, queued, reserved, sold, blocked }) => {
    const parts = [free, queued, reserved, sold, blocked];
    const whole = parts.every((part) => part >= 0) && parts.reduce((sum, part) => sum + part) === total;
    return whole ? [] : [`${code}: ${parts.join(' + ')} is not ${total}`];
  });
}

/** P1: no item has more units in live orders than its total, and the sale's counts say the same as its orders. */
export function oversellFaults(sale: Sale, orders: readonly Order[]): string[] {
  return sale.items.flatMap((item) => {
    const live = orders.filter((order) => order.item === item.code && isLive(order));
    const units = live.reduce((sum, order) => sum + order.quantity, 0);
    const faults: string[] = [];
    if (units > item.total) faults.push(`${item.code}: ${units} units in orders, ${item.total} in all`);
    if (units !== item.reserved + item.sold) {
      faults.push(`${item.code}: orders hold ${units} units, the sale says ${item.reserved} + ${item.sold}`);
    }
    return faults;
  });
}

/** P2: no buyer has more live units in the sale than `perBuyer`. */
export function limitFaults(orders: readonly Order[], perBuyer: number): string[] {
  const units = new Map<string, number>();
  for (const order of orders) {
    if (isLive(order)) units.set(order.buyer, (units.get(order.buyer) ?? 0) + order.quantity);
  }
  return verdict([...units].flatMap(([buyer, n]) => (n > perBuyer ? [`${buyer} has ${n} units of ${perBuyer}`] : [])));
}

/**
 * P3: the ledger contains every order that a buyer was told of, with that content; and no order that nobody was told of, unless
 * it may belong to a request whose answer was lost (or was a 503). An order that was answered 202 is decided by now; see
 * `undecided` for those that are not.
 */
export function lossFaults(tries: readonly Try[], orders: readonly Order[]): string[] {
  const stored = new Map(orders.map((order) => [order.id, order]));
  const faults: string[] = [];
  const told = new Set<string>();
  const unanswered = new Map<string, number>();
  const claim = (buyer: string, item: string, quantity: number): string => JSON.stringify([buyer, item, quantity]);
  for (const { order, status, buyer, item, quantity } of tries) {
    if (order === null) {
      const name = claim(buyer, item, quantity);
      if (status === 0 || status >= 500) unanswered.set(name, (unanswered.get(name) ?? 0) + 1);
      continue;
    }
    if (told.has(order.id)) continue;
    told.add(order.id);
    const found = stored.get(order.id);
    if (order.status === 'queued') {
      const same =
        found && found.buyer === order.buyer && found.item === order.item && found.quantity === order.quantity;
      if (found && !same) faults.push(`order ${order.id} was told as ${JSON.stringify(order)}, stored otherwise`);
      continue;
    }
    if (found === undefined) faults.push(`order ${order.id} of ${order.buyer} is lost`);
    else if (!isDeepStrictEqual(found, order)) {
      faults.push(`order ${order.id} was told as ${JSON.stringify(order)}, stored as ${JSON.stringify(found)}`);
    }
  }
  for (const { id, buyer, item, quantity, status } of orders) {
    if (told.has(id) || status === 'rejected') continue;
    const name = claim(buyer, item, quantity);
    const left = unanswered.get(name) ?? 0;
    if (left === 0) faults.push(`order ${id} of ${buyer} is in the ledger, and nobody was told`);
    else unanswered.set(name, left - 1);
  }
  return verdict(faults);
}

/**
 * P5: all requests with one key that got an order got the same order, byte for byte; at most one of them was not a replay; and
 * none was refused after another had got it. `strict`: nothing in this run gives units back or reopens a sale, so concurrent
 * requests must also have got the same answer.
 */
export function keyFaults(
  tries: readonly Try[],
  { strict, orders = [] }: { strict: boolean; orders?: readonly Order[] },
): string[] {
  // A key is free again once its order is rejected.
  const rejected = new Set(orders.filter(({ status }) => status === 'rejected').map(({ id }) => id));
  const byKey = new Map<string, Try[]>();
  for (const one of tries) {
    if (one.key === undefined || one.code === 'overloaded') continue;
    const name = `${one.saleId} ${one.buyer} ${one.key}`;
    const same = byKey.get(name);
    if (same) same.push(one);
    else byKey.set(name, [one]);
  }
  const faults: string[] = [];
  for (const [name, same] of byKey) {
    const got = same.filter((one) => one.order !== null && !rejected.has(one.order.id));
    const first = got.find((one) => one.status === 201) ?? got[0];
    if (first === undefined) continue;
    for (const one of got) {
      // After a 202 a replay shows the current order: only its id must be the same.
      const queued = one.status === 202 || first.status === 202;
      if (queued ? one.order!.id !== first.order!.id : !isDeepStrictEqual(one.order, first.order)) {
        faults.push(`${name}: ${JSON.stringify(first.order)} and ${JSON.stringify(one.order)}`);
      }
    }
    const firsts = got.filter((one) => !one.replayed).length;
    if (firsts > 1) faults.push(`${name}: ${firsts} answers say they are the first`);
    for (const one of same) {
      if (one.status !== 409) continue;
      const after = got.some(({ answeredAtMs }) => answeredAtMs < one.sentAtMs);
      if (after || strict) faults.push(`${name}: ${one.code} although it has order ${first.order!.id}`);
    }
  }
  return verdict(faults);
}

/** P1, P2, P3, P5 and P9 of one sale at once, for runs that test something else. */
export function allFaults(
  sale: Sale,
  orders: readonly Order[],
  tries: readonly Try[],
  perBuyer: number,
): { counts: string[]; oversold: string[]; overLimit: string[]; lost: string[]; keys: string[] } {
  const ofSale = tries.filter(({ saleId }) => saleId === sale.id);
  return {
    counts: countFaults(sale),
    oversold: oversellFaults(sale, orders),
    overLimit: limitFaults(orders, perBuyer),
    lost: lossFaults(ofSale, orders),
    keys: keyFaults(ofSale, { strict: false, orders }),
  };
}

/** Ids of orders that were answered 202 and that the ledger does not contain. */
export function undecided(tries: readonly Try[], orders: readonly Order[]): string[] {
  const stored = new Set(orders.map(({ id }) => id));
  const queued = tries.filter(({ status, order }) => status === 202 && !stored.has(order!.id));
  return [...new Set(queued.map(({ order }) => order!.id))];
}

export const NO_FAULTS = { counts: [], oversold: [], overLimit: [], lost: [], keys: [] };
