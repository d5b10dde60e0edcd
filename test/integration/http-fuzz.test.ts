import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import {
  BUYERS,
  Contract,
  type Document,
  isCostly,
  type Operation,
  operationsOf,
  type Plan,
  plans,
  send,
  sentOf,
  type Told,
  type World,
} from '../support/openapi-fuzz.ts';
import { CALM } from '../support/openapi-wire.ts';
import { cleanUp, createSale, saleBody, startServer, type TestServer } from '../support/server.ts';

/**
 * Sends requests that are generated from the live OpenAPI document to each of its routes: no answer is 5xx, no answer is
 * undocumented, and no request succeeds that the document does not allow. The seed is printed;
 * FC_SEED replays it.
 */

const REQUESTS = 1500 * (LONG ? 20 : 1);
const SEED = Number(process.env.FC_SEED ?? Math.floor(Math.random() * 2 ** 31));

let server: TestServer;
let document: Document;
let operations: Operation[];
const contract = new Contract();
const world: World = { sales: [], orders: [], webhooks: [], deliveries: [], posts: [], comments: [] };

beforeAll(async () => {
  // The demo has one more route. A busy machine must not look overloaded.
  server = await startServer({
    args: ['--demo'],
    env: { ...CALM, RATE_LIMIT_BUYER: '100000' },
  });
  document = (await server.call('GET', '/openapi.json')).body;
  operations = operationsOf(document);
  // One endpoint stays, for deliveries to redeliver.
  const lasting = await subscribe();
  await refresh();
  await until('there is a delivery', 5_000, async () => {
    const { data } = (await server.call('GET', `/v1/ops/webhooks/${lasting}/deliveries`, { admin: true })).body;
    world.deliveries = data.map(({ id }: { id: string }) => id);
    return world.deliveries.length > 0;
  });
});
afterAll(cleanUp);

async function subscribe(): Promise<string> {
  const body = { url: 'http://127.0.0.1:9/', events: ['order.reserved'] };
  return (await server.call('POST', '/v1/ops/webhooks', { admin: true, body })).body.id;
}

/** The number of endpoints is limited: deletes all but the oldest first. */
async function newWebhooks(): Promise<string[]> {
  const { data } = (await server.call('GET', '/v1/ops/webhooks', { admin: true })).body;
  for (const { id } of data.slice(0, -1)) await server.call('DELETE', `/v1/ops/webhooks/${id}`, { admin: true });
  return [await subscribe(), await subscribe(), await subscribe()];
}

/** New sales of each kind, and orders in them, because the earlier ones may be closed by now. */
async function refresh(): Promise<void> {
  const rich = saleBody({ stock: 1000, perBuyer: 100 });
  rich.items[0]!.price.amount = 10 ** 12;
  rich.items.push({ ...rich.items[0]!, code: 'other', stock: 2 });
  const row = { ...rich.items[0]!, code: 'row', stock: undefined, seats: [{ section: 'S', row: 'R', from: 1, to: 9 }] };
  const body = { ...rich, items: [...rich.items, row] };
  const { id } = (await server.call('POST', '/v1/sales', { admin: true, body })).body;
  const soldOut = await createSale(server, { stock: 0 });
  const scheduled = await createSale(server, { opensAt: '2098-01-01T00:00:00.000Z' });
  world.sales = [id, id, id, soldOut, scheduled, id];
  world.webhooks = await newWebhooks();
  world.orders = await Promise.all(
    BUYERS.map(async (buyer) => {
      const body = { item: 'voucher', quantity: 2 };
      return (await server.call('POST', `/v1/sales/${id}/orders`, { buyer, body })).body.id;
    }),
  );
  // One that can be moved.
  const seats = { buyer: BUYERS[0]!, body: { seats: ['S/R/9'] } };
  world.orders.push((await server.call('POST', `/v1/sales/${id}/orders`, seats)).body.id);
  const post = async (): Promise<string> =>
    (await server.call('POST', '/v1/posts', { buyer: BUYERS[0]!, body: { title: 'Queue', content: 'Long.' } })).body.id;
  world.posts = [await post(), await post(), await post()];
  const comment = { buyer: BUYERS[0]!, body: { content: 'Yes.' } };
  world.comments = await Promise.all(
    world.posts.map(async (one) => (await server.call('POST', `/v1/posts/${one}/comments`, comment)).body.id),
  );
  // One that can be refunded.
  const paid = { buyer: BUYERS[0]!, body: { method: 'sandbox' } };
  await server.call('POST', `/v1/orders/${world.orders[0]}/pay`, paid);
}

/** With another method the answer must be that of its own operation, or the documented 405. */
function judgeOf(operation: Operation, method: string): Operation {
  return operations.find((other) => other.path === operation.path && other.method === method) ?? operation;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

const seen = new Map<string, Map<number, number>>();

async function judge(operation: Operation, plan: Plan): Promise<void> {
  const sent = sentOf(operation, plan, world);
  const told = await send(server.url, sent);
  const by = judgeOf(operation, plan.method);
  const name = `${by.method} ${by.path}`;
  const statuses = seen.get(name) ?? new Map<number, number>();
  seen.set(name, statuses.set(told.status, (statuses.get(told.status) ?? 0) + 1));
  const fault =
    contract.fault(by, told) ??
    (told.status < 300 && by.method === plan.method && !contract.allows(by, plan)
      ? `${told.status}, but the document does not allow this request`
      : null);
  if (fault === null) return;
  const { authorization: _, ...headers } = sent.headers;
  const shown = { ...sent, body: sent.body?.slice(0, 500) ?? null, headers, auth: plan.auth };
  throw new Error(`${fault}\n  sent ${JSON.stringify(shown)}\n  told ${told.text.slice(0, 500)}`);
}

/** Rounds of requests to one operation until one succeeds. */
const ROUNDS_MAX = 20;

/** True if random requests can succeed. */
function canWork(operation: string): boolean {
  // An embedded shop has no dead letters: see distributed-dead-letters.test.ts.
  if (operation.includes('/dead-letters/{id}')) return false;
  // It needs the password of an account: see accounts.test.ts.
  if (operation.endsWith('/v1/sessions')) return false;
  // They need the order's exact amount, or a signature: see life.test.ts.
  return !/\/confirm$|\/webhooks\/payments\//.test(operation);
}

function hasWorked(operation: string): boolean {
  return [...(seen.get(operation)?.keys() ?? [])].some((status) => status < 300);
}

it(`${REQUESTS} requests made of the document, over all its routes`, { timeout: LONG ? 600_000 : 60_000 }, async () => {
  console.log(`fuzz of ${operations.length} operations, seed ${SEED}: replay with FC_SEED=${SEED}`);
  const weights = operations.map((operation) => {
    const { body, parameters } = operation;
    return isCostly(operation) ? 1 : 1 + (body ? 3 : 0) + (parameters.length > 0 ? 1 : 0);
  });
  const all = weights.reduce((sum, weight) => sum + weight, 0);
  const faults: string[] = [];
  for (const [index, operation] of operations.entries()) {
    const numRuns = Math.ceil((REQUESTS * weights[index]!) / all);
    const property = fc
      .asyncProperty(plans(operation), (plan) => judge(operation, plan))
      .beforeEach(async () => {
        // Otherwise all sales would soon be closed.
        if (fresh++ % 100 === 0) await refresh();
      });
    let fresh = 0;
    const name = `${operation.method} ${operation.path}`;
    // Each operation must also succeed, or this would prove little. Random requests may need more rounds for that.
    for (let more = 0; more === 0 || (more < ROUNDS_MAX && canWork(name) && !hasWorked(name)); more++) {
      const limits = { seed: SEED + more, numRuns, interruptAfterTimeLimit: LONG ? 120_000 : 8_000 };
      const result = await fc.check(property, limits);
      if (result.failed) faults.push(`${name}: ${messageOf(result.errorInstance)}`);
    }
  }
  expect(faults.join('\n\n')).toBe('');

  const names = operations.map(({ method, path }) => `${method} ${path}`);
  expect(names.filter((name) => canWork(name) && !hasWorked(name))).toEqual([]);
  const requests = [...seen.values()]
    .flatMap((statuses) => [...statuses.values()])
    .reduce((sum, count) => sum + count, 0);
  const total = new Map<number, number>();
  for (const statuses of seen.values()) {
    for (const [status, count] of statuses) total.set(status, (total.get(status) ?? 0) + count);
  }
  const shown = [...total].sort(([a], [b]) => a - b).map(([status, count]) => `${status}: ${count}`);
  console.log(`fuzz: ${requests} requests; answers ${shown.join(', ')}`);
});

it('after it the shop is well: ready, nothing logged as an error, no backstop needed, every count adds up (P9)', async () => {
  expect((await server.call('GET', '/readyz')).body.status).toBe('ok');
  const metrics = String((await server.call('GET', '/metrics')).body);
  expect(metrics).not.toMatch(/^doorbuster_backstop_rejections_total\{/m);
  expect(metrics).not.toMatch(/status="500"/);
  expect(server.output()).not.toMatch(/"level":(50|60)/);
  let cursor: string | null = null;
  do {
    const page: { data: { items: Record<string, number>[] }[]; nextCursor: string | null } = (
      await server.call('GET', `/v1/sales?limit=200${cursor === null ? '' : `&cursor=${cursor}`}`)
    ).body;
    for (const { items } of page.data) {
      for (const { total, free, queued, reserved, sold, blocked } of items) {
        expect(free! + queued! + reserved! + sold! + blocked!).toBe(total);
      }
    }
    cursor = page.nextCursor;
  } while (cursor !== null);
});

describe('the fuzz itself fails when something is not documented', () => {
  const told = async (method: string, path: string, body?: unknown): Promise<Told> =>
    send(server.url, {
      method,
      path,
      headers: { authorization: 'Bearer test-admin-key', 'content-type': 'application/json' },
      body: body === undefined ? null : JSON.stringify(body),
    });
  /** The operation according to a changed document. */
  const changed = (method: string, path: string, change: (operation: Operation) => void): Operation => {
    const operation = operationsOf(structuredClone(document)).find(
      (one) => one.method === method && one.path === path,
    )!;
    change(operation);
    return operation;
  };
  const same = (): void => {};

  it('a status', async () => {
    const answer = await told('POST', '/v1/sales', {});
    expect(answer.status).toBe(422);
    expect(contract.fault(changed('POST', '/v1/sales', same), answer)).toBeNull();
    const without = changed('POST', '/v1/sales', ({ responses }) => delete responses['422']);
    expect(contract.fault(without, answer)).toBe('422 is not documented');
  });

  it('a code, a field, a missing field, a type', async () => {
    const refused = await told('POST', '/v1/sales', {});
    const codes = changed('POST', '/v1/sales', ({ responses }) => {
      responses['422']!.content!['application/problem+json']!.schema!.properties!.code!.enum = ['other'];
    });
    expect(contract.fault(codes, refused)).toContain('/code must be equal to one of the allowed values');

    const created = await told('POST', '/v1/sales', saleBody());
    const schemaOf = ({ responses }: Operation) => responses['201']!.content!['application/json']!.schema!;
    expect(contract.fault(changed('POST', '/v1/sales', same), created)).toBeNull();
    const fewer = changed('POST', '/v1/sales', (operation) => {
      const schema = schemaOf(operation);
      delete schema.properties!.payWithin;
      schema.required = schema.required!.filter((field) => field !== 'payWithin');
    });
    expect(contract.fault(fewer, created)).toContain('must NOT have additional properties');
    const more = changed('POST', '/v1/sales', (operation) => void schemaOf(operation).required!.push('colour'));
    expect(contract.fault(more, created)).toContain("must have required property 'colour'");
    const other = changed('POST', '/v1/sales', (operation) => {
      schemaOf(operation).properties!.version = { type: 'string' };
    });
    expect(contract.fault(other, created)).toContain('/version must be string');
  });

  it('a content type', async () => {
    const csv = await send(server.url, {
      method: 'GET',
      path: '/v1/orders',
      headers: { authorization: 'Bearer test-admin-key', accept: 'text/csv' },
      body: null,
    });
    expect(contract.fault(changed('GET', '/v1/orders', same), csv)).toBeNull();
    const json = changed('GET', '/v1/orders', ({ responses }) => delete responses['200']!.content!['text/csv']);
    expect(contract.fault(json, csv)).toBe('200: the content type "text/csv" is not documented');
  });

  it('a failure, documented or not', () => {
    const operation = changed('GET', '/v1/time', same);
    expect(operation.responses['500']).toBeDefined();
    expect(contract.fault(operation, { status: 500, headers: {}, text: '' })).toBe('500: a failure');
  });

  it('a success that the document does not allow', () => {
    const operation = changed('POST', '/v1/sales/{id}/orders', same);
    const plan = { method: 'POST', params: {}, query: [], auth: 'alice', headers: [] };
    expect(contract.allows(operation, { ...plan, body: { json: { item: 'voucher' } } })).toBe(true);
    expect(contract.allows(operation, { ...plan, body: { json: { item: 'voucher', colour: 'red' } } })).toBe(false);
    expect(contract.allows(operation, { ...plan, body: null })).toBe(false);
  });
});
