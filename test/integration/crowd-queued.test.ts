import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, describe, expect, it } from 'vitest';
import { ADMIN_KEY, AUTH_SECRET, cleanUp, run } from '../support/server.ts';

const KEYS = { DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET };
const STOCK = 20;
const BUYERS = 60;

interface FakeOrder {
  id: string;
  buyer: string;
  item: string;
  quantity: number;
  status: 'queued' | 'reserved' | 'rejected';
  reason: string | null;
  key: string;
  looks: number;
}

/** How the shop behaves. It is honest, except for what is called a vice. */
interface Manners {
  /** Every n-th order is committed at once and answered 201. */
  commitsEvery?: number;
  /** Every n-th order ends rejected. */
  rejectsEvery?: number;
  /** Every n-th read is answered 503, and the one after it is cut off. */
  stumblesEvery?: number;
  /** The first read of an order is answered 404, because that process does not know it yet. */
  knowsLate?: boolean;
  /** The second process dies after this many orders. */
  diesAfter?: number;
  /** Vice: every n-th order is never decided. */
  neverDecidesEvery?: number;
  /** Vice: every n-th order is forgotten after the 202. */
  forgetsEvery?: number;
  /** Vice: every n-th order is shown as reserved and is not in the list. */
  hidesEvery?: number;
  /** Vice: the key of a queued order is not known, nor is the limit. */
  blind?: boolean;
  /** Vice: sells this many units above the stock. */
  oversells?: number;
}

const DECIDED_MS = 300;
const servers: Server[] = [];

afterAll(async () => {
  for (const server of servers) server.close().closeAllConnections();
  await cleanUp();
});

/** A minimal distributed shop: any of its processes answers orders 202, and they are decided a little later. */
class FakeShop {
  readonly urls: string[] = [];
  readonly asked: number[] = [];
  readonly #manners: Manners;
  readonly #orders: FakeOrder[] = [];
  readonly #keys = new Map<string, FakeOrder>();
  #looks = 0;

  static async open(processes: number, manners: Manners = {}): Promise<FakeShop> {
    const shop = new FakeShop(manners);
    for (let at = 0; at < processes; at++) await shop.#listen(at);
    return shop;
  }

  private constructor(manners: Manners) {
    this.#manners = manners;
  }

  async #listen(at: number): Promise<void> {
    const server = createServer((request, response) => void this.#serve(at, server, request, response));
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    this.asked[at] = 0;
    this.urls.push(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  }

  async #serve(at: number, server: Server, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url!, 'http://shop');
    if (request.method === 'POST') {
      let text = '';
      for await (const chunk of request) text += chunk;
      this.asked[at]!++;
      const placed = this.#place(request, JSON.parse(text));
      if (at === 1 && this.asked[1]! >= (this.#manners.diesAfter ?? Infinity)) server.close().closeAllConnections();
      else answer(response, placed);
    } else if (url.pathname.startsWith('/v1/orders/')) {
      const shown = this.#show(request, url.pathname.slice('/v1/orders/'.length));
      if (shown === null) response.destroy();
      else answer(response, shown);
    } else if (url.pathname === '/v1/orders') {
      const data = this.#orders.filter((order) => order.status !== 'queued' && !this.#is(order, 'hidesEvery'));
      answer(response, [200, { data: data.map(present), nextCursor: null }]);
    } else {
      answer(response, [200, this.#sale()]);
    }
  }

  #place(request: IncomingMessage, body: { item: string; quantity: number }): Placed {
    const { commitsEvery, blind, oversells = 0 } = this.#manners;
    const buyer = buyerOf(request);
    const key = `${buyer} ${request.headers['idempotency-key']}`;
    const known = this.#keys.get(key);
    if (known && !blind) return [known.status === 'queued' ? 202 : 201, present(known), true];
    const live = this.#orders.filter(({ status }) => status !== 'rejected');
    if (live.some((order) => order.buyer === buyer) && !blind) return [409, { code: 'limit_reached' }];
    if (live.length >= STOCK + oversells) return [409, { code: 'sold_out' }];
    const id = String(this.#orders.length + 1);
    const order: FakeOrder = { id, buyer, ...body, status: 'queued', reason: null, key, looks: 0 };
    this.#orders.push(order);
    this.#keys.set(key, order);
    if (commitsEvery !== undefined && Number(id) % commitsEvery === 0) order.status = 'reserved';
    else if (!this.#is(order, 'neverDecidesEvery')) setTimeout(() => this.#decide(order), DECIDED_MS).unref();
    return [order.status === 'queued' ? 202 : 201, present(order)];
  }

  #decide(order: FakeOrder): void {
    if (!this.#is(order, 'rejectsEvery')) {
      order.status = 'reserved';
      return;
    }
    order.status = 'rejected';
    order.reason = 'gate_rebuilt';
    this.#keys.delete(order.key);
  }

  /** Null: the connection is cut. */
  #show(request: IncomingMessage, id: string): Placed | null {
    const { stumblesEvery, knowsLate } = this.#manners;
    const look = ++this.#looks;
    if (stumblesEvery !== undefined && look % stumblesEvery === 0) return [503, { code: 'unavailable' }];
    if (stumblesEvery !== undefined && look % stumblesEvery === 1) return null;
    const order = this.#orders.find((one) => one.id === id && one.buyer === buyerOf(request));
    if (!order || this.#is(order, 'forgetsEvery') || (knowsLate && order.looks++ === 0))
      return [404, { code: 'not_found' }];
    return [200, present(order)];
  }

  #sale(): object {
    const units = (status: FakeOrder['status']): number =>
      this.#orders.filter((order) => order.status === status && !this.#is(order, 'hidesEvery')).length;
    const [queued, reserved] = [units('queued'), units('reserved')];
    const free = STOCK - queued - reserved;
    const item = { code: 'voucher', kind: 'counted', total: STOCK, free, queued, reserved, sold: 0, blocked: 0 };
    return { id: '1', name: 'Fake', state: 'open', perBuyer: 1, items: [item] };
  }

  #is({ id }: FakeOrder, trait: 'rejectsEvery' | 'neverDecidesEvery' | 'forgetsEvery' | 'hidesEvery'): boolean {
    const every = this.#manners[trait];
    return every !== undefined && Number(id) % every === 0;
  }
}

type Placed = [status: number, body: object, replayed?: boolean];

function answer(response: ServerResponse, [status, body, replayed]: Placed): void {
  const headers = { 'content-type': 'application/json', 'retry-after': '1' };
  response.writeHead(status, { ...headers, ...(replayed && { 'idempotent-replayed': 'true' }) });
  response.end(JSON.stringify(body));
}

function present({ id, buyer, item, quantity, status, reason }: FakeOrder): object {
  return { id, buyer, item, quantity, status, reason };
}

function buyerOf({ headers }: IncomingMessage): string {
  return JSON.parse(Buffer.from(headers.authorization!.split('.')[1]!, 'base64url').toString()).sub;
}

/** Few at a time and not too fast, so that keys are retried while their orders are queued, and afterwards. */
function crowd(urls: string[], args: string[] = []) {
  const fixed = ['--sale', '1', '--buyers', String(BUYERS), '--seed', '5', '--connections', '6', '--wait', '3'];
  return run(['crowd', ...urls.flatMap((url) => ['--url', url]), ...fixed, ...args], KEYS);
}

// Concurrent, because each test has its own shop and mostly waits.
describe.concurrent('against a shop that answers 202', () => {
  it('every order is followed to its end, through 404, 503 and broken connections', async () => {
    const shop = await FakeShop.open(1, { rejectsEvery: 5, stumblesEvery: 6, knowsLate: true });
    const { code, stdout } = await crowd(shop.urls, ['--rate', '100']);
    expect(stdout).toMatch(
      /queued +\d+ orders answered 202: \d+ reserved later; rejected later: gate_rebuilt \d+; seen/,
    );
    expect(stdout).toMatch(/✓ P3 +every 202 decided: \d+ orders, \d+ reserved, \d+ rejected/);
    expect(stdout.trimEnd().split('\n').at(-1)).toBe('verdict: every promise held');
    expect(code).toBe(0);
  });

  it('--json counts them: queued, reserved, rejected by reason, undecided', async () => {
    const shop = await FakeShop.open(1, { rejectsEvery: 5, commitsEvery: 3 });
    const { code, stdout } = await crowd(shop.urls, ['--rate', '100', '--json']);
    const report = JSON.parse(stdout);
    const { queued, sold, held } = report.verdict;
    expect([code, held]).toEqual([0, true]);
    expect(queued.orders).toBe(queued.reserved + queued.rejected.gate_rebuilt);
    expect(queued).toMatchObject({ undecided: [], rejected: { gate_rebuilt: expect.any(Number) } });
    expect(sold.orders).toBeGreaterThan(queued.reserved);
    expect(sold.orders).toBeLessThanOrEqual(STOCK);
    expect(report.answers['202']).toBeGreaterThanOrEqual(queued.orders);
    expect(report.urls).toEqual([`${shop.urls[0]}/`]);
  });

  it.each<[string, Manners, RegExp]>([
    [
      'never decides some',
      { neverDecidesEvery: 7 },
      /✗ P3 +A 202 WAS NOT DECIDED: 2 faults\n +still queued 3 s .*: 7, 14/,
    ],
    ['forgets some', { forgetsEvery: 7, neverDecidesEvery: 7 }, /✗ P3 +A 202 WAS.*\n +not found \(404\) 3 s .*: 7, 14/],
    [
      'hides some',
      { hidesEvery: 7 },
      /✗ P3 +LOST: 2 faults\n +order 7, (?:told to \S+,|answered 202 to \S+, was seen reserved and) is not in the ledger/,
    ],
    ['does not know keys', { blind: true }, /✗ P5 +A KEY HAD ANOTHER EFFECT/],
    ['sells too much', { oversells: 3 }, /✗ P1 +OVERSOLD.*\n +voucher: 23 units are sold, 3 above its 20/],
  ])('one that %s is caught, exit code 1', async (_, manners, words) => {
    const { code, stdout } = await crowd((await FakeShop.open(1, manners)).urls);
    expect(stdout).toMatch(words);
    expect(stdout.trimEnd().split('\n').at(-1)).toMatch(/^verdict: BROKEN: /);
    expect(code).toBe(1);
  });
});

describe.concurrent('several addresses of one shop', () => {
  it.each([
    ['repeated', (urls: string[]) => urls],
    ['with commas', (urls: string[]) => [urls.join(',')]],
  ])('%s: buyers are spread over them, and keys hold across them', async (_, given) => {
    const shop = await FakeShop.open(2, { rejectsEvery: 5 });
    const { code, stdout } = await crowd(given(shop.urls));
    expect(stdout).toContain('verdict: every promise held');
    expect(code).toBe(0);
    for (const asked of shop.asked) expect(asked).toBeGreaterThan(BUYERS / 2);
  });

  it('one that dies on the way is a lost connection: everybody is served by the other', async () => {
    const shop = await FakeShop.open(2, { diesAfter: 10 });
    const { code, stdout } = await crowd(shop.urls);
    expect(stdout).toMatch(/broken +\d+ connections, retried with the same key/);
    expect(stdout).toContain('20 orders, 20 units, to 20 buyers');
    expect(stdout).not.toContain('never got a final answer');
    expect(stdout).toContain('verdict: every promise held');
    expect(code).toBe(0);
  });

  it('one that does not answer at the start is named, exit code 2', async () => {
    const shop = await FakeShop.open(1);
    const { code, stderr } = await crowd([...shop.urls, 'http://127.0.0.1:1']);
    expect(stderr).toMatch(/no server answers at http:\/\/127\.0\.0\.1:1\/ .*ECONNREFUSED/);
    expect(code).toBe(2);
  });
});
