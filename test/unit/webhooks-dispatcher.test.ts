import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Seldom } from '../../src/base/seldom.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderRecord } from '../../src/model/order.ts';
import { presentOffer } from '../../src/views/present.ts';
import { DISPATCHER_DEFAULTS, Dispatcher, type DispatcherOptions } from '../../src/webhooks/dispatcher.ts';
import type { Sent } from '../../src/webhooks/sender.ts';
import { settled, T0 } from '../contract/manual.ts';
import { newSale } from '../support/new-sale.ts';
import { type SqliteUnderTest, sqliteUnderTest } from '../support/sqlite-ledger.ts';

/** The dispatcher on a real ledger, with a manual clock and a fake endpoint. */
const BY = actor('system', 'test');
const DAY_MS = 24 * 3600 * 1000;
const OK: Sent = { status: 200, error: null };
const DOWN: Sent = { status: 503, error: null };

let world: SqliteUnderTest;
let lastId: number;
let outcomes: string[];
const ends: (() => Promise<void>)[] = [];

const id = (): string => String(++lastId);
const ids = { next: async () => id() };
const ALL = { limit: 100, before: null };

beforeEach(async () => {
  world = sqliteUnderTest();
  lastId = 1000;
  outcomes = [];
  const items = [{ code: 'v', name: 'V', price: { amount: 1, currency: 'CNY' }, stock: 1000 }];
  const sale = newSale({ opensAtMs: T0, closesAtMs: T0 + 100 * DAY_MS, items });
  const call = { by: actor('admin', 'admin'), auditId: id(), keyed: null, answer: () => '' };
  await world.ledger.createSale({ ...sale, id: '5', itemIds: ['6'] }, call);
  world.ledger.keepEvents = true;
});

afterEach(async () => {
  for (const end of ends.splice(0)) await end();
  await world.close();
});

async function subscribe(): Promise<string> {
  const endpoint = { id: id(), url: 'http://shop.example/', events: ['order.reserved', 'order.cancelled'] as const };
  await world.ledger.webhooks.createEndpoint({ ...endpoint, secret: 'whsec', madeWith: null }, BY, id());
  return endpoint.id;
}

async function reserve(buyers: readonly string[]): Promise<OrderRecord[]> {
  const stored = await world.ledger.commitOrders(
    buyers.map((buyer) => ({
      orderId: id(),
      saleId: '5',
      itemId: '6',
      itemCode: 'v',
      buyer,
      quantity: 1,
      slots: [1],
      price: { amount: 1, currency: 'CNY' },
      payWithinSeconds: 60,
      epoch: 1,
      key: null,
      fingerprint: 'v x1',
    })),
  );
  return stored.map(({ order }) => order);
}

type Send = (url: string, body: { id: string }, tries: number) => Promise<Sent>;

/** Returns what was sent, by event id. */
function dispatch(send: Send, options: Partial<DispatcherOptions> = {}): { sent: string[]; end(): Promise<void> } {
  const sent: string[] = [];
  const dispatcher = new Dispatcher(
    {
      runtime: world.runtime,
      ledger: world.ledger,
      sender: {
        send: async (url, _secret, text) => {
          const body = JSON.parse(text) as { id: string };
          const tries = sent.filter((each) => each === body.id).length;
          sent.push(body.id);
          return await send(url, body, tries);
        },
      },
      deliveryIds: ids,
      auditIds: ids,
      present: (order) => order,
      presentOffer,
      seldom: new Seldom(world.runtime.clock),
      told: (outcome) => outcomes.push(outcome),
    },
    { ...DISPATCHER_DEFAULTS, ...options },
  );
  const ended = new AbortController();
  const running = dispatcher.run(ended.signal, false);
  let ending: Promise<void> | null = null;
  const end = async (): Promise<void> => {
    ended.abort();
    ending ??= running;
    for (let turn = 0; turn < 5; turn++) {
      await world.runtime.timers.turn();
      await world.runtime.timers.advance(1000);
    }
    await ending;
  };
  ends.push(end);
  return { sent, end };
}

async function pass(ms: number): Promise<void> {
  await settled();
  await world.runtime.timers.advance(ms);
}

it('says what an order is for, as it reads when the event is taken over, and the same at every try', async () => {
  await subscribe();
  const call = { by: BY, auditId: id(), keyed: null, answer: () => '' };
  const said = { startsAtMs: T0, venue: 'Hall', metadata: { a: 'b' }, description: 'long', image: 'https://i' };
  await world.ledger.patchSale('5', said, 1, call);
  const bodies: Record<string, unknown>[] = [];
  dispatch(async (_url, body) => {
    bodies.push(body);
    if (bodies.length > 1) return OK;
    await world.ledger.patchItem('5', 'v', { name: 'W', metadata: { c: 'd' } }, 2, { ...call, auditId: id() });
    return DOWN;
  });
  await reserve(['ann']);
  await pass(60_000);
  const [first, second] = bodies;
  expect(Object.keys(first!)).toEqual(['id', 'type', 'at', 'order', 'sale', 'item']);
  const startsAt = new Date(T0).toISOString();
  expect(first).toMatchObject({ order: { buyer: 'ann' }, item: { name: 'V' } });
  expect(first!.sale).toEqual({ name: 'Vouchers', startsAt, venue: 'Hall', metadata: { a: 'b' } });
  expect(second).toEqual(first);
  await reserve(['bob']);
  await pass(60_000);
  expect(bodies[2]).toMatchObject({ order: { buyer: 'bob' }, item: { name: 'W', metadata: { c: 'd' } } });
});

it('tries again after a time that grows, with jitter', async () => {
  const alert = vi.spyOn(world.runtime.log, 'error');
  const endpointId = await subscribe();
  const triedAtMs: number[] = [];
  dispatch(
    async () => {
      triedAtMs.push(world.clock.now());
      return DOWN;
    },
    { pollMs: 1000 },
  );
  await reserve(['ann']);
  await pass(30 * 60_000);
  const waits = triedAtMs.slice(1).map((at, n) => at - triedAtMs[n]!);
  for (const [n, wait] of waits.entries()) {
    // Up to a second more until the next poll.
    expect(wait).toBeGreaterThanOrEqual(5000 * 2 ** n * 0.75);
    expect(wait).toBeLessThanOrEqual(5000 * 2 ** n * 1.25 + 1100);
  }
  expect(waits.length).toBeGreaterThan(5);
  expect(new Set(waits.map((wait, n) => Math.round((wait / 5000 / 2 ** n) * 100))).size, 'jitter').toBeGreaterThan(3);
  const [delivery] = (await world.ledger.webhooks.listDeliveries(endpointId, ALL))!;
  expect(delivery).toMatchObject({ state: 'pending', lastStatus: 503, tries: triedAtMs.length });
  expect(alert).not.toHaveBeenCalled();
});

it('gives up after three days: the delivery has failed, and the log says so', async () => {
  const alert = vi.spyOn(world.runtime.log, 'error');
  const endpointId = await subscribe();
  const triedAtMs: number[] = [];
  const { sent } = dispatch(
    async () => {
      triedAtMs.push(world.clock.now());
      return DOWN;
    },
    { pollMs: 120_000 },
  );
  const [order] = await reserve(['ann']);
  await pass(3 * DAY_MS + 3600_000);
  const [delivery] = (await world.ledger.webhooks.listDeliveries(endpointId, ALL))!;
  expect(delivery).toMatchObject({ state: 'failed', tries: sent.length, nextAtMs: null });
  const spanMs = triedAtMs.at(-1)! - triedAtMs[0]!;
  expect(spanMs).toBeGreaterThan(3 * DAY_MS - 2 * 3600_000);
  expect(spanMs).toBeLessThanOrEqual(3 * DAY_MS);
  expect(sent.length).toBeGreaterThan(50);
  expect(alert).toHaveBeenCalledTimes(1);
  expect(alert.mock.calls[0]![0]).toMatchObject({ endpointId, eventId: `${order!.id}-1`, lastStatus: 503 });
  expect(outcomes.filter((outcome) => outcome === 'failed')).toHaveLength(1);
  expect(outcomes.filter((outcome) => outcome === 'retried')).toHaveLength(sent.length - 1);
});

it('the successor of a dead process sends what that had taken over; the dead one changes nothing', async () => {
  const endpointId = await subscribe();
  const answers: ((sent: Sent) => void)[] = [];
  const dead = dispatch(() => new Promise((resolve) => answers.push(resolve)));
  const orders = await reserve(Array.from({ length: 20 }, (_, at) => `b${at}`));
  await pass(300);
  expect(await world.ledger.outgoingEvents(10), 'it has taken over').toEqual([]);
  expect(dead.sent, 'so many are under way at once').toHaveLength(8);
  const live = dispatch(async () => OK);
  await pass(1000);
  expect(live.sent.toSorted()).toEqual(orders.map((order) => `${order.id}-1`).toSorted());
  // Its answers come too late.
  for (const answer of answers) answer(DOWN);
  await pass(1000);
  const all = (await world.ledger.webhooks.listDeliveries(endpointId, ALL))!;
  expect(all.map(({ state, tries, lastStatus }) => [state, tries, lastStatus])).toEqual(
    Array.from({ length: 20 }, () => ['delivered', 1, 200]),
  );
});

it('an endpoint that is down is tried carefully: one at a time until it answers', async () => {
  await subscribe();
  let [busy, most] = [0, 0];
  let answer = DOWN;
  const { sent } = dispatch(async () => {
    most = Math.max(most, ++busy);
    await new Promise<void>((resolve) => world.runtime.timers.after(100, resolve));
    busy--;
    return answer;
  });
  await reserve(Array.from({ length: 60 }, (_, at) => `b${at}`));
  await pass(500);
  expect(most).toBe(8);
  most = 0;
  await pass(1500);
  expect(most).toBe(1);
  answer = OK;
  await pass(2 * 60_000);
  expect(most).toBe(8);
  expect(new Set(sent).size).toBe(60);
  expect(outcomes.filter((outcome) => outcome === 'delivered')).toHaveLength(60);
});

it('goes on after the ledger was out, and sends nothing twice because of it', async () => {
  await subscribe();
  const { sent } = dispatch(async () => OK);
  const settle = vi.spyOn(world.ledger.webhooks, 'settleDeliveries').mockRejectedValue(new Error('the disk is full'));
  await reserve(['ann', 'bob']);
  await pass(5000);
  expect(sent).toHaveLength(2);
  expect(outcomes).toEqual([]);
  settle.mockRestore();
  await reserve(['cid']);
  await pass(2000);
  expect(sent).toHaveLength(3);
  expect(outcomes).toEqual(['delivered', 'delivered', 'delivered']);
});

it('when it stops it waits a little for running requests, and settles them', async () => {
  const endpointId = await subscribe();
  const { sent, end } = dispatch(async () => {
    await new Promise<void>((resolve) => world.runtime.timers.after(500, resolve));
    return OK;
  });
  await reserve(Array.from({ length: 12 }, (_, at) => `b${at}`));
  await pass(300);
  expect(sent).toHaveLength(8);
  await end();
  const states = (await world.ledger.webhooks.listDeliveries(endpointId, ALL))!.map(({ state }) => state);
  expect(states.toSorted()).toEqual([...Array(8).fill('delivered'), ...Array(4).fill('pending')]);
});
