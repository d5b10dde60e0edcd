import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bodyFingerprint } from '../../src/base/idempotency.ts';
import { CALM, expectProblem } from '../support/openapi-wire.ts';
import {
  type Answer,
  allOrders,
  type CallOptions,
  cleanUp,
  createSale,
  startServer,
  type TestServer,
} from '../support/server.ts';

/**
 * The scope of an Idempotency-Key (P5): caller, buyer acted for, operation, subject. Nobody gets another's answer by using the
 * same key, and nobody's order is taken for the repeat of another's.
 */
const ALICE = 'key-of-alice-0123456789';
const BOB = 'key-of-bob-0123456789-bob';
const ENV = { ...CALM, DOORBUSTER_ADMIN_KEY: `alice:${ALICE},bob:${BOB}`, PAYMENTS_SANDBOX: 'on' };

let server: TestServer;
beforeAll(async () => {
  server = await startServer({ env: ENV });
});
afterAll(cleanUp);

/** An admin who acts for a buyer. */
const acting = (bearer: string, buyer: string, key?: string): CallOptions => ({
  bearer,
  headers: { 'doorbuster-buyer': buyer },
  ...(key !== undefined && { key }),
});
const asAlice = { call: (method: string, path: string, options: CallOptions) => server.call(method, path, options) };
const newSale = (perBuyer: number): Promise<string> =>
  createSale(
    { call: (method, path, options) => asAlice.call(method, path, { ...options, admin: false, bearer: ALICE }) },
    { stock: 50, perBuyer },
  );
const place = (sale: string, options: CallOptions, body: unknown = { item: 'voucher' }): Promise<Answer> =>
  server.call('POST', `/v1/sales/${sale}/orders`, { body, ...options });
const cancel = (id: string, options: CallOptions): Promise<Answer> =>
  server.call('POST', `/v1/orders/${id}/cancel`, { body: {}, ...options });
const boundTo = async (operation: string, key: string): Promise<unknown> => {
  const db = new DatabaseSync(join(server.data, 'ledger.sqlite'), { readOnly: true });
  const row = db.prepare('SELECT fingerprint FROM call_keys WHERE operation = ? AND "key" = ?').get(operation, key);
  db.close();
  return row?.fingerprint;
};
const replayed = ({ headers }: Answer): boolean => headers.get('idempotent-replayed') === 'true';

describe('a key that moved an order', () => {
  it('does not give its answer to a caller who may not see the order', async () => {
    const sale = await newSale(1);
    const { body: order } = await place(sale, { buyer: 'ann' });
    const first = await cancel(order.id, acting(ALICE, 'ann', 'K1'));
    expect([first.status, first.body.status]).toEqual([200, 'cancelled']);
    expect(replayed(await cancel(order.id, acting(ALICE, 'ann', 'K1')))).toBe(true);
    expectProblem(await cancel(order.id, acting(ALICE, 'eve', 'K1')), 404, 'not_found');
    expectProblem(await cancel(order.id, { buyer: 'eve', key: 'K1' }), 404, 'not_found');
  });

  it('repeats the answer of an older version byte for byte, though an order has more members today', async () => {
    const sale = await newSale(1);
    const { body: order } = await place(sale, { buyer: 'ann' });
    const pay = (): Promise<Answer> =>
      server.call('POST', `/v1/orders/${order.id}/pay`, { buyer: 'ann', key: 'P1', body: { method: 'sandbox' } });
    const first = await pay();
    expect([first.status, first.body.payment.refunded]).toEqual([200, null]);
    const db = new DatabaseSync(join(server.data, 'ledger.sqlite'));
    const kept = `UPDATE call_keys SET answer = replace(answer, ',"refunded":null', '') WHERE subject = ?`;
    expect(db.prepare(kept).run(order.id).changes).toBe(1);
    db.close();
    const again = await pay();
    const { refunded: _, ...payment } = first.body.payment;
    expect([again.status, replayed(again), again.body]).toEqual([200, true, { ...first.body, payment }]);
    expect(again.headers.get('content-type')).toBe('application/json; charset=utf-8');
  });

  it('is a different key for another admin, for the buyer, and for an admin who acts for nobody', async () => {
    const sale = await newSale(1);
    const { body: order } = await place(sale, { buyer: 'ann' });
    expect((await cancel(order.id, acting(ALICE, 'ann', 'K2'))).status).toBe(200);
    for (const other of [acting(BOB, 'ann', 'K2'), { buyer: 'ann', key: 'K2' }, { bearer: ALICE, key: 'K2' }]) {
      const answer = await cancel(order.id, other);
      // Cancelling again has no effect; what matters is that this is not a replay of the first answer.
      expect([answer.status, replayed(answer)], JSON.stringify(other)).toEqual([200, false]);
    }
  });

  it('knows a body by what it says, and not by the order of its members', async () => {
    const sale = await newSale(1);
    const { body: order } = await place(sale, { buyer: 'ann' });
    const pay = (raw: string): Promise<Answer> =>
      server.call('POST', `/v1/orders/${order.id}/pay`, {
        buyer: 'ann',
        key: 'K3',
        raw,
        headers: { 'content-type': 'application/json' },
      });
    expect((await pay('{"method":"sandbox","token":"ok"}')).status).toBe(200);
    const again = await pay('{ "token": "ok", "method": "sandbox" }');
    expect([again.status, replayed(again)]).toEqual([200, true]);
    expectProblem(await pay('{"method":"sandbox","token":"slow"}'), 422, 'idempotency_key_reused');
  });
});

describe('a key that changed a sale', () => {
  it('is stored as earlier versions did, by what a new sale says and not by how it was written', async () => {
    const item = { code: 'voucher', name: 'V', price: { amount: 100, currency: 'EUR' }, stock: 3 };
    const create = (opensAt: string): Promise<Answer> =>
      server.call('POST', '/v1/sales', {
        ...{ bearer: ALICE, key: 'S2' },
        body: { name: 'S', opensAt, closesAt: '2030-01-01T00:00:00Z', perBuyer: 1, payWithin: 60, items: [item] },
      });
    const first = await create('2020-01-01T00:00:00Z');
    expect(first.status).toBe(201);
    const again = await create('2020-01-01T01:00:00+01:00');
    expect([again.status, replayed(again), again.body]).toEqual([201, true, first.body]);
    expect(await boundTo('sale.create', 'S2')).toBe(
      bodyFingerprint({
        ...{ name: 'S', opensAtMs: 1577836800000, closesAtMs: 1893456000000, perBuyer: 1, payWithinSeconds: 60 },
        items: [item],
      }),
    );
  });
});

describe('a key that was bound before an update', () => {
  it('is still the same call, though its fingerprint was another then', async () => {
    const sale = await newSale(1);
    const { body: order } = await place(sale, { buyer: 'ann' });
    const sent = { token: 'ok', method: 'sandbox' };
    const pay = (body: unknown): Promise<Answer> =>
      server.call('POST', `/v1/orders/${order.id}/pay`, { buyer: 'ann', key: 'P2', body });
    const first = await pay(sent);
    expect(first.status).toBe(200);
    const former = createHash('sha256').update(JSON.stringify(sent)).digest('hex');
    const db = new DatabaseSync(join(server.data, 'ledger.sqlite'));
    const bound = 'UPDATE call_keys SET fingerprint = ? WHERE subject = ?';
    expect(db.prepare(bound).run(former, order.id).changes).toBe(1);
    db.close();
    const again = await pay(sent);
    expect([again.status, replayed(again), again.body]).toEqual([200, true, first.body]);
    expectProblem(await pay({ ...sent, token: 'slow' }), 422, 'idempotency_key_reused');
  });
});

describe('a key that placed an order', () => {
  it('is the buyer’s, or that of the admin who acted for the buyer: each has an order of their own', async () => {
    const sale = await newSale(3);
    const own = await place(sale, { buyer: 'ann', key: 'K' });
    const alices = await place(sale, acting(ALICE, 'ann', 'K'));
    const bobs = await place(sale, acting(BOB, 'ann', 'K'));
    expect([own, alices, bobs].map(({ status }) => status)).toEqual([201, 201, 201]);
    expect(new Set([own, alices, bobs].map(({ body }) => body.id)).size).toBe(3);
    // A used-up limit refuses no retry because of its own first attempt.
    for (const [first, by] of [
      [own, { buyer: 'ann', key: 'K' }],
      [alices, acting(ALICE, 'ann', 'K')],
      [bobs, acting(BOB, 'ann', 'K')],
    ] as const) {
      const again = await place(sale, by);
      expect([again.status, again.body, replayed(again)]).toEqual([201, first.body, true]);
    }
    expectProblem(
      await place(sale, acting(ALICE, 'ann', 'K'), { item: 'voucher', quantity: 2 }),
      422,
      'idempotency_key_reused',
    );
  });

  it('is still theirs after a restart, folded or not', async () => {
    const sale = await newSale(2);
    const long = 'x'.repeat(255);
    const own = await place(sale, { buyer: 'ann', key: long });
    const alices = await place(sale, acting(ALICE, 'ann', long));
    expect(await server.stop()).toBe(0);
    server = await startServer({ env: ENV, data: server.data });
    const again = [await place(sale, { buyer: 'ann', key: long }), await place(sale, acting(ALICE, 'ann', long))];
    expect(again.map(({ body }) => body.id)).toEqual([own.body.id, alices.body.id]);
    expect(again.every(replayed)).toBe(true);
    expectProblem(await place(sale, acting(BOB, 'ann', long)), 409, 'limit_reached');
    expect(
      await allOrders({ call: (method, path) => server.call(method, path, { bearer: ALICE }) }, sale),
    ).toHaveLength(2);
  });
});
