import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { seededRandom } from '../../src/base/random.ts';
import { signatureFault } from '../../src/base/signature.ts';
import { WEBHOOK_EVENTS } from '../../src/model/webhook.ts';
import { until } from '../support/fault-wait.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { type Answer, cleanUp, createSale, startServer, temporaryFolder } from '../support/server.ts';
import {
  type Behaviour,
  openWebhookShop,
  QUICK,
  type Received,
  type Receiver,
  startReceiver,
  type WebhookShop,
} from '../support/webhooks.ts';

/** Outgoing webhooks: a shop with HTTP, and receivers as real HTTP servers on this machine. */
let world: WebhookShop;
let sale: string;
const receivers: Receiver[] = [];
const endpoints: string[] = [];
let buyers = 0;

beforeAll(async () => {
  world = await openWebhookShop(temporaryFolder());
  sale = await createSale(world, { stock: 10_000 });
});
afterAll(async () => {
  await world.close();
  await cleanUp();
});
afterEach(async () => {
  for (const id of endpoints.splice(0)) await admin('DELETE', `/v1/ops/webhooks/${id}`);
  await Promise.all(receivers.splice(0).map((each) => each.close()));
});

const admin = (method: string, path: string, body?: unknown, key?: string): Promise<Answer> =>
  world.call(method, path, { admin: true, body, ...(key !== undefined && { key }) });

async function receiver(behaviour?: Behaviour): Promise<Receiver> {
  const one = await startReceiver(behaviour);
  receivers.push(one);
  return one;
}

async function subscribe(
  url: string,
  events: readonly string[] = WEBHOOK_EVENTS,
): Promise<{ id: string; secret: string }> {
  const answer = await admin('POST', '/v1/ops/webhooks', { url, events });
  expect(answer.status, JSON.stringify(answer.body)).toBe(201);
  endpoints.push(answer.body.id);
  return answer.body;
}

// biome-ignore lint/suspicious/noExplicitAny: a test reads whatever came
async function reserve(buyer = `buyer${++buyers}`): Promise<any> {
  const answer = await world.call('POST', `/v1/sales/${sale}/orders`, { buyer, body: { item: 'voucher' } });
  expect(answer.status).toBe(201);
  return answer.body;
}

async function move(orderId: string, what: 'pay' | 'cancel' | 'refund'): Promise<Answer> {
  const amount = { amount: 8000, currency: 'CNY' };
  const answer =
    what === 'pay'
      ? await admin('POST', `/v1/orders/${orderId}/confirm`, { reference: `receipt-${orderId}`, amount })
      : await admin('POST', `/v1/orders/${orderId}/${what}`);
  expect(answer.status, JSON.stringify(answer.body)).toBe(200);
  return answer.body;
}

const deliveries = async (id: string) => (await admin('GET', `/v1/ops/webhooks/${id}/deliveries`)).body.data;

async function arrived(one: Receiver, count: number): Promise<void> {
  await until(`${count} have arrived`, 5000, () => one.received.length >= count);
}

async function settled(id: string): Promise<void> {
  await until('everything is settled', 5000, async () => {
    const all = await deliveries(id);
    return all.length > 0 && all.every(({ state }: { state: string }) => state !== 'pending');
  });
}

function faultOf(secret: string, { text, headers }: Received): string | null {
  return signatureFault([secret], text, headers['doorbuster-signature'] as string, Date.now());
}

describe('what an endpoint is sent', () => {
  it('the order as it was then, signed with its own secret', async () => {
    const [one, two] = [await receiver(), await receiver()];
    const [first, second] = [await subscribe(one.url), await subscribe(two.url)];
    const order = await reserve();
    const paid = await move(order.id, 'pay');
    const refunded = await move(order.id, 'refund');
    await Promise.all([arrived(one, 3), arrived(two, 3)]);
    const offer = { sale: { name: 'Vouchers' }, item: { name: '100 off' } };
    expect(one.received.map(({ body }) => body)).toEqual([
      { id: `${order.id}-1`, type: 'order.reserved', at: order.updatedAt, order, ...offer },
      { id: `${order.id}-2`, type: 'order.paid', at: (paid as never as typeof order).updatedAt, order: paid, ...offer },
      {
        id: `${order.id}-3`,
        type: 'order.refunded',
        at: (refunded as never as typeof order).updatedAt,
        order: refunded,
        ...offer,
      },
    ]);
    expect(paid).toMatchObject({ status: 'paid', payment: { state: 'captured', provider: 'confirm' } });
    for (const each of one.received) {
      expect(each.headers).toMatchObject({
        'content-type': 'application/json; charset=utf-8',
        host: `127.0.0.1:${one.port}`,
      });
      expect(faultOf(first.secret, each)).toBeNull();
      expect(faultOf(second.secret, each)).toBe('the signature is wrong');
    }
    expect(two.received.map(({ text }) => text)).toEqual(one.received.map(({ text }) => text));
    expect(faultOf(second.secret, two.received[0]!)).toBeNull();
    await settled(first.id);
    const listed = await deliveries(first.id);
    expect(listed.map(({ eventId }: { eventId: string }) => eventId)).toEqual([3, 2, 1].map((n) => `${order.id}-${n}`));
    expect(listed[0]).toEqual({
      id: expect.stringMatching(/^\d+$/),
      eventId: `${order.id}-3`,
      type: 'order.refunded',
      orderId: order.id,
      state: 'delivered',
      tries: 1,
      lastStatus: 204,
      lastError: null,
      nextAt: null,
      createdAt: expect.stringMatching(/Z$/),
      doneAt: expect.stringMatching(/Z$/),
    });
  });

  it('only what it subscribed to, and nothing that happened before', async () => {
    const [all, some] = [await receiver(), await receiver()];
    await subscribe(all.url);
    const before = await reserve();
    await until('it is told', 5000, () => all.received.length === 1);
    const { id } = await subscribe(some.url, ['order.expired', 'order.cancelled']);
    await move((await reserve()).id, 'pay');
    const cancelled = await reserve();
    await move(cancelled.id, 'cancel');
    await move(before.id, 'cancel');
    await arrived(all, 6);
    await arrived(some, 2);
    await settled(id);
    expect(some.received.map(({ body }) => body.id).toSorted()).toEqual(
      [`${before.id}-2`, `${cancelled.id}-2`].toSorted(),
    );
    expect(await deliveries(id)).toHaveLength(2);
  });

  it('the events of one order in sequence, whatever fails; byte for byte the same at every attempt', async () => {
    const random = seededRandom(7);
    const flaky = await receiver(() => (random.fraction() < 0.5 ? 204 : 503));
    const { id, secret } = await subscribe(flaky.url);
    const orders = await Promise.all(Array.from({ length: 8 }, () => reserve()));
    await Promise.all(
      orders.map(async (order) => {
        await move(order.id, 'pay');
        await move(order.id, 'refund');
      }),
    );
    const taken = () => new Set(flaky.received.filter(({ status }) => status === 204).map(({ body }) => body.id));
    await until('all are delivered', 10_000, () => taken().size === 24);
    await settled(id);
    expect(flaky.received.length, 'some failed').toBeGreaterThan(24);
    for (const order of orders) {
      const of = flaky.received.filter(({ body }) => body.order.id === order.id);
      // One after the other, each until it was accepted.
      let newest = 0;
      for (const { body, status } of of) {
        expect(body.order.version).toBe(newest + 1);
        if (status === 204) newest++;
      }
      expect(newest).toBe(3);
    }
    const texts = new Map<string, string>();
    for (const each of flaky.received) {
      expect(each.text).toBe(texts.get(each.body.id) ?? each.text);
      texts.set(each.body.id, each.text);
      expect(faultOf(secret, each)).toBeNull();
    }
  });
});

describe('an endpoint that', () => {
  it('fails is tried again', async () => {
    const answers = [500, 404, 200];
    const one = await receiver((_, count) => answers[count]!);
    const { id } = await subscribe(one.url, ['order.reserved']);
    await reserve();
    await until('it is to be tried again', 5000, async () => (await deliveries(id))[0]?.tries > 0);
    await settled(id);
    expect(one.received.map(({ status }) => status)).toEqual(answers);
    expect(new Set(one.received.map(({ text }) => text)).size).toBe(1);
    expect(await deliveries(id)).toMatchObject([{ state: 'delivered', tries: 3, lastStatus: 200, lastError: null }]);
  });

  it('does not answer in time is tried again: the same event, once more', async () => {
    const impatient = await openWebhookShop(temporaryFolder(), { ...QUICK, timeoutMs: 250 });
    try {
      const one = await receiver((_, count) => (count === 0 ? null : 200));
      const body = { url: one.url, events: ['order.reserved'] };
      const { id } = (await impatient.call('POST', '/v1/ops/webhooks', { admin: true, body })).body;
      const its = await createSale(impatient);
      await impatient.call('POST', `/v1/sales/${its}/orders`, { buyer: 'ann', body: { item: 'voucher' } });
      const path = `/v1/ops/webhooks/${id}/deliveries`;
      const read = async () => (await impatient.call('GET', path, { admin: true })).body.data[0];
      await until('it is delivered', 5000, async () => (await read())?.state === 'delivered');
      expect(await read()).toMatchObject({ lastStatus: 200, lastError: null });
      expect((await read()).tries).toBeGreaterThan(1);
      expect(new Set(one.received.map(({ text }) => text)).size).toBe(1);
    } finally {
      await impatient.close();
    }
  });

  it('hangs or is not there does not hold up another', async () => {
    const hanging = await receiver(() => null);
    const well = await receiver();
    const lost = await subscribe('http://127.0.0.1:9/', ['order.reserved']);
    await subscribe(hanging.url, ['order.reserved']);
    await subscribe(well.url, ['order.reserved']);
    await Promise.all(Array.from({ length: 30 }, () => reserve()));
    await arrived(well, 30);
    await arrived(hanging, 8);
    expect(hanging.received.length, 'at most so many at once').toBe(8);
    await until('it says why', 5000, async () => {
      const errors = (await deliveries(lost.id)).map(({ lastError }: { lastError: string }) => lastError);
      return errors.join().includes('ECONNREFUSED');
    });
  });

  it('answers 410 is unsubscribed: it stays in the list, and gets nothing any more', async () => {
    const one = await receiver((_, count) => (count === 0 ? 200 : 410));
    const { id } = await subscribe(one.url, ['order.reserved', 'order.cancelled']);
    const order = await reserve();
    await settled(id);
    const [first] = await deliveries(id);
    await Promise.all([reserve(), reserve(), move(order.id, 'cancel')]);
    await until('it is gone', 5000, async () => {
      const { data } = (await admin('GET', '/v1/ops/webhooks')).body;
      return data.find((each: { id: string }) => each.id === id).state === 'gone';
    });
    await settled(id);
    const { data } = (await admin('GET', '/v1/ops/webhooks')).body;
    expect(data.find((each: { id: string }) => each.id === id)).toMatchObject({
      state: 'gone',
      reason: 'the endpoint answered 410 Gone',
    });
    const states = (await deliveries(id)).map(({ state }: { state: string }) => state);
    expect(states).toEqual(['failed', 'failed', 'failed', 'delivered']);
    const count = one.received.length;
    await reserve();
    expectProblem(await admin('POST', `/v1/ops/webhooks/deliveries/${first.id}/redeliver`), 409, 'webhook_gone');
    await new Promise((resolve) => setTimeout(resolve, 60));
    expect(one.received.length).toBe(count);
  });

  it('redirects is not followed', async () => {
    const other = await receiver();
    const one = await receiver((_received, _count, response) => {
      response.setHeader('location', other.url);
      return 307;
    });
    const { id } = await subscribe(one.url, ['order.reserved']);
    await reserve();
    await until('it was tried', 5000, async () => (await deliveries(id))[0]?.tries > 0);
    expect(await deliveries(id)).toMatchObject([
      { state: 'pending', lastStatus: 307, lastError: 'a redirect, which is not followed' },
    ]);
    one.behave(() => 200);
    await settled(id);
    expect(other.received).toEqual([]);
  });

  it('sends an endless answer is not read to its end', async () => {
    const one = await receiver((_, count, response) => {
      response.writeHead(200);
      // One at once, one in drops: neither is read to its end, and both count as delivered.
      if (count === 0) response.write(Buffer.alloc(4 * 1024 * 1024));
      else response.write('.');
      return null;
    });
    const { id } = await subscribe(one.url, ['order.reserved']);
    await reserve();
    await reserve();
    await settled(id);
    expect(await deliveries(id)).toMatchObject([
      { state: 'delivered', tries: 1 },
      { state: 'delivered', tries: 1 },
    ]);
  });
});

describe('an admin', () => {
  it('sees a secret once: when the endpoint is made', async () => {
    const one = await receiver();
    const made = await admin(
      'POST',
      '/v1/ops/webhooks',
      { url: one.url, events: ['order.paid', 'order.reserved'] },
      'key-1',
    );
    endpoints.push(made.body.id);
    const { secret, ...shown } = made.body;
    expect(secret).toMatch(/^whsec_[0-9a-f]{64}$/);
    expect(shown).toEqual({
      id: expect.stringMatching(/^\d+$/),
      url: one.url,
      events: ['order.reserved', 'order.paid'],
      state: 'active',
      reason: null,
      createdAt: expect.stringMatching(/Z$/),
    });
    expect((await admin('GET', '/v1/ops/webhooks')).body).toEqual({ data: [shown], nextCursor: null });
    await reserve();
    await settled(shown.id);
    const audit = await admin('GET', `/v1/ops/audit?subject=webhook:${shown.id}`);
    for (const answer of [audit, await admin('GET', `/v1/ops/webhooks/${shown.id}/deliveries`)]) {
      expect(JSON.stringify(answer.body)).not.toContain(secret.slice(6));
    }
    expect(audit.body.data).toMatchObject([
      { action: 'webhook.create', actor: 'admin:alice', origin: '127.0.0.1', detail: { events: shown.events } },
    ]);
    expect(audit.body.data[0].detail.url, 'without its query').toBe(one.url.split('?')[0]);

    // A client that lost the answer retries with the same key, and gets the same answer and the same endpoint.
    const again = await admin(
      'POST',
      '/v1/ops/webhooks',
      { url: one.url, events: ['order.paid', 'order.reserved'] },
      'key-1',
    );
    expect(again.body).toEqual(made.body);
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    const other = await admin('POST', '/v1/ops/webhooks', { url: one.url, events: ['order.paid'] }, 'key-1');
    expectProblem(other, 422, 'idempotency_key_reused');
    expect((await admin('GET', '/v1/ops/webhooks')).body.data).toHaveLength(1);
  });

  it('lists endpoints in pages, and deletes one: nothing is sent to it any more', async () => {
    const one = await receiver();
    const [first, second] = [await subscribe(one.url), await subscribe(one.url)];
    const page = (await admin('GET', '/v1/ops/webhooks?limit=1')).body;
    expect(page).toMatchObject({ data: [{ id: second.id }], nextCursor: second.id });
    const next = (await admin('GET', `/v1/ops/webhooks?limit=1&cursor=${page.nextCursor}`)).body;
    expect(next).toMatchObject({ data: [{ id: first.id }], nextCursor: null });
    for (const { id } of [first, second]) expect((await admin('DELETE', `/v1/ops/webhooks/${id}`)).status).toBe(204);
    expectProblem(await admin('DELETE', `/v1/ops/webhooks/${first.id}`), 404, 'not_found');
    expectProblem(await admin('GET', `/v1/ops/webhooks/${first.id}/deliveries`), 404, 'not_found');
    expect((await admin('GET', '/v1/ops/webhooks')).body.data).toEqual([]);
    await reserve();
    await new Promise((resolve) => setTimeout(resolve, 60));
    expect(one.received).toEqual([]);
  });

  it('has a delivery sent again: the same event, under the same id', async () => {
    const one = await receiver();
    const { id, secret } = await subscribe(one.url, ['order.reserved']);
    await reserve();
    await settled(id);
    const [delivery] = await deliveries(id);
    const answer = await admin('POST', `/v1/ops/webhooks/deliveries/${delivery.id}/redeliver`);
    expect([answer.status, answer.body]).toEqual([202, {}]);
    await arrived(one, 2);
    expect(one.received[1]!.text).toBe(one.received[0]!.text);
    expect(faultOf(secret, one.received[1]!)).toBeNull();
    await settled(id);
    expect(await deliveries(id)).toMatchObject([{ id: delivery.id, state: 'delivered', tries: 1 }]);
    const audit = (await admin('GET', `/v1/ops/audit?subject=webhook:${id}`)).body.data;
    expect(audit[0]).toMatchObject({ action: 'webhook.redeliver', detail: { delivery: delivery.id } });
    expectProblem(await admin('POST', '/v1/ops/webhooks/deliveries/77/redeliver'), 404, 'not_found');
  });

  it('and nobody else', async () => {
    const calls = [
      ['GET', '/v1/ops/webhooks'],
      ['POST', '/v1/ops/webhooks'],
      ['DELETE', '/v1/ops/webhooks/1'],
      ['GET', '/v1/ops/webhooks/1/deliveries'],
      ['POST', '/v1/ops/webhooks/deliveries/1/redeliver'],
    ] as const;
    for (const [method, path] of calls) {
      expectProblem(await world.call(method, path), 401, 'unauthenticated');
      expectProblem(await world.call(method, path, { buyer: 'bob' }), 403, 'forbidden');
    }
  });

  it('is told what is wrong with an endpoint', async () => {
    const wrong = async (body: unknown): Promise<string> => {
      const answer = await admin('POST', '/v1/ops/webhooks', body);
      expectProblem(answer, 422, 'invalid_request');
      return `${answer.body.errors[0].path} ${answer.body.errors[0].message}`;
    };
    const events = ['order.paid'];
    expect(await wrong({ url: 'https://u:p@shop.example/', events })).toBe('/url must not contain a user or password');
    expect(await wrong({ url: 'ftp://shop.example/', events })).toBe('/url must be https: or http:');
    expect(await wrong({ url: 'shop', events })).toBe('/url must be a URL');
    expect(await wrong({ url: 'https://shop.example/', events: [] })).toContain('/events');
    expect(await wrong({ url: 'https://shop.example/', events: ['order.paid', 'order.paid'] })).toContain('/events');
    expect(await wrong({ url: 'https://shop.example/', events: ['order.rejected'] })).toContain(
      '/events/0 must be one of',
    );
    expect(await wrong({ url: 'https://shop.example/', events, colour: 'red' })).toBe('/colour is not a known field');
  });
});

describe('addresses that are not public', () => {
  const dns: Record<string, string> = {};
  const resolve = async (hostname: string) => [{ address: dns[hostname]!, family: 4 }];
  let guarded: WebhookShop;
  const make = (url: string): Promise<Answer> =>
    guarded.call('POST', '/v1/ops/webhooks', { admin: true, body: { url, events: ['order.reserved'] } });

  beforeAll(async () => {
    guarded = await openWebhookShop(temporaryFolder(), { ...QUICK, allowPrivate: false, resolve });
  });
  afterAll(() => guarded.close());

  it('are refused when an endpoint is made', async () => {
    dns['inside.example'] = '10.0.0.5';
    for (const url of ['http://inside.example/', 'http://127.0.0.1:1234/', 'http://[::1]/', 'http://2130706433/']) {
      const answer = await make(url);
      expectProblem(answer, 422, 'invalid_request');
      expect(answer.body.detail).toMatch(/^\/url: .* not a public address \(.*\); WEBHOOKS_PRIVATE=on would allow it$/);
    }
    expect((await guarded.call('GET', '/v1/ops/webhooks', { admin: true })).body.data).toEqual([]);
  });

  it('are refused again when something is sent, because a name may resolve to another address by then', async () => {
    const inside = await receiver();
    dns['shop.example'] = '93.184.215.14';
    const made = await make(`http://shop.example:${inside.port}/`);
    expect(made.status).toBe(201);
    dns['shop.example'] = '127.0.0.1';
    const its = await createSale(guarded, { stock: 5 });
    const order = { buyer: 'ann', body: { item: 'voucher' } };
    expect((await guarded.call('POST', `/v1/sales/${its}/orders`, order)).status).toBe(201);
    const path = `/v1/ops/webhooks/${made.body.id}/deliveries`;
    const read = async () => (await guarded.call('GET', path, { admin: true })).body.data[0];
    await until('it was tried twice', 5000, async () => (await read())?.tries >= 2);
    expect(await read()).toMatchObject({ state: 'pending', lastStatus: null });
    expect((await read()).lastError).toContain('127.0.0.1, which is not a public address (loopback)');
    expect(inside.received).toEqual([]);
  });

  it('a connection goes to the address that was checked: the name is not resolved a second time', async () => {
    const one = await receiver();
    const asked: string[] = [];
    // No other resolver knows this name.
    const own = await openWebhookShop(temporaryFolder(), {
      ...QUICK,
      resolve: async (hostname) => {
        asked.push(hostname);
        return [{ address: '127.0.0.1', family: 4 }];
      },
    });
    try {
      const body = { url: `http://hooks.test:${one.port}/in`, events: ['order.reserved'] };
      expect((await own.call('POST', '/v1/ops/webhooks', { admin: true, body })).status).toBe(201);
      const its = await createSale(own, { stock: 5 });
      await own.call('POST', `/v1/sales/${its}/orders`, { buyer: 'ann', body: { item: 'voucher' } });
      await arrived(one, 1);
      expect(one.received[0]!.headers.host).toBe(`hooks.test:${one.port}`);
      expect(asked).toEqual(['hooks.test', 'hooks.test']);
    } finally {
      await own.close();
    }
  });
});

it('a server that is killed while it delivers loses nothing: all is delivered after its restart', async () => {
  const data = temporaryFolder();
  const env = { WEBHOOKS_PRIVATE: 'on' };
  const first = await startServer({ data, env });
  const killed = Promise.withResolvers<void>();
  // It dies while the first delivery runs, and the others are taken over or running.
  const one = await receiver((_, count) => {
    if (count === 0) killed.resolve(first.kill());
    return null;
  });
  const body = { url: one.url, events: ['order.reserved'] };
  const { secret } = (await first.call('POST', '/v1/ops/webhooks', { admin: true, body })).body;
  const its = await createSale(first, { stock: 20 });
  const orders = await Promise.all(
    Array.from({ length: 20 }, async (_, at) => {
      const order = { buyer: `b${at}`, body: { item: 'voucher' } };
      const answer = await first.call('POST', `/v1/sales/${its}/orders`, order).catch(() => null);
      return answer?.status === 201 ? (answer.body.id as string) : null;
    }),
  );
  await killed.promise;
  const before = one.received.length;
  one.behave(() => 200);
  const second = await startServer({ data, env });
  const accepted = orders.filter((id) => id !== null);
  expect(accepted.length).toBeGreaterThan(0);
  const after = () => new Set(one.received.slice(before).map(({ body: { order } }) => order.id));
  await until('all have arrived', 10_000, () => accepted.every((id) => after().has(id)));
  for (const each of one.received.slice(before)) expect(faultOf(secret, each)).toBeNull();
  await second.stop();
});
