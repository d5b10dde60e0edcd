import { type ChildProcess, spawn } from 'node:child_process';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as wait } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { UsageError } from '../../src/cli/command.ts';
import { crowd as command } from '../../src/cli/crowd.ts';
import {
  ADMIN_KEY,
  AUTH_SECRET,
  allOrders,
  BIN,
  cleanUp,
  createSale,
  run,
  startServer,
  type TestServer,
} from '../support/server.ts';

const KEYS = { DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET };
/** A demo with its own keys: without those of the environment. */
const NO_KEYS = ['env', '-u', 'DOORBUSTER_ADMIN_KEY', '-u', 'DOORBUSTER_AUTH_SECRET', '-u', 'RATE_LIMIT_BUYER'];

const shops: Server[] = [];
const children: ChildProcess[] = [];
let server: TestServer;

beforeAll(async () => {
  server = await startServer();
});

afterAll(async () => {
  for (const shop of shops) shop.close().closeAllConnections();
  for (const child of children) child.kill('SIGKILL');
  await cleanUp();
});

function crowd(url: string, sale: string, args: string[], env: Record<string, string> = KEYS) {
  return run(['crowd', '--url', url, '--sale', sale, ...args], env);
}

describe('crowd', () => {
  it('works as the demo prints it, twice: P1, P2, P3, P5, P9 hold for 5 000 buyers', { timeout: 90_000 }, async () => {
    const demo = await startServer({ args: ['--demo'], under: NO_KEYS });
    while (!demo.output().includes('--admin-key ')) await wait(10);
    const printed = /npx doorbuster (crowd .*)/.exec(demo.output())![1]!.trim().split(' ');
    for (const total of [100, 200]) {
      const { code, stdout, stderr } = await run(printed);
      expect(stderr).not.toContain('doorbuster crowd:');
      expect(stdout).toContain('100 orders, 100 units, to 100 buyers');
      expect(stdout).toContain(`never oversold: ${total} of ${total} units sold`);
      expect(stdout.trimEnd().split('\n').at(-1)).toBe('verdict: every promise held');
      expect(code).toBe(0);
    }
    await demo.stop();
  });

  it('--json is one object that agrees with the lists; a limit of 2 and a quantity of 2 are honoured', async () => {
    const sale = await createSale(server, { stock: 21, perBuyer: 2 });
    const args = ['--buyers', '100', '--quantity', '2', '--seed', '7', '--attempts', '4', '--json'];
    const { code, stdout, stderr } = await crowd(server.url, sale, args);
    const report = JSON.parse(stdout);
    expect([code, stderr]).toEqual([0, '']);
    expect(report).toMatchObject({
      item: 'voucher',
      buyers: 100,
      entered: 100,
      seed: 7,
      freeBefore: 21,
      endedEarly: null,
    });
    expect(report.verdict).toMatchObject({ held: true, sold: { orders: 10, units: 20, buyers: 10 }, lost: 0 });
    expect(report.verdict.refused).toMatchObject({ sold_out: expect.any(Number), limit_reached: expect.any(Number) });
    expect(report.verdict.replayed).toBeGreaterThan(0);
    expect(report.latencyMs.p50).toBeLessThanOrEqual(report.latencyMs.max);
    expect(await allOrders(server, sale)).toHaveLength(10);
  });

  it('P8: --likes sends likers to new posts, and finds counts, rows and what each was told in agreement', async () => {
    const args = ['crowd', '--url', server.url, '--likes', '--buyers', '40', '--posts', '2', '--seed', '7'];
    const { code, stdout } = await run(args, KEYS);
    expect(stdout).toContain('40 likers, 3 steps each, on 2 new posts');
    for (const line of ['a caller’s like is exact at once', 'counts equal the rows', 'every like stored']) {
      expect(stdout).toContain(`✓ P8  ${line}: `);
    }
    expect(stdout.trimEnd().split('\n').at(-1)).toBe('verdict: every promise held');
    expect(code).toBe(0);
    await expect(command.run([...args.slice(1), '--sale', '1'])).rejects.toThrow('--sale is about orders');
  });

  it('a sale that is sold out already is refused rightly, and tops up on demand', async () => {
    const sale = await createSale(server, { stock: 0 });
    const empty = await crowd(server.url, sale, ['--buyers', '20']);
    expect(empty.stdout).toContain('the item is already sold out: every order will be refused');
    expect([empty.code, empty.stdout.includes('every promise held')]).toEqual([0, true]);
    const filled = await crowd(server.url, sale, [
      '--buyers',
      '20',
      '--top-up',
      '5',
      '--rate',
      '100',
      '--attempts',
      '1',
    ]);
    expect(filled.stdout).toContain('topped up: 5 units added');
    expect(filled.stdout).toContain('5 orders, 5 units, to 5 buyers');
    expect(filled.code).toBe(0);
  });

  it('says that a paused sale refuses everybody', async () => {
    const sale = await createSale(server);
    await server.call('POST', `/v1/sales/${sale}/pause`, { admin: true });
    const { code, stdout } = await crowd(server.url, sale, ['--buyers', '5']);
    expect(stdout).toContain('the sale is paused: every order will be refused');
    expect(stdout).toMatch(/refused +\d+: sale_paused/);
    expect(code).toBe(0);
  });

  it('Ctrl-C ends it with a verdict on what is known', async () => {
    const sale = await createSale(server);
    const args = ['crowd', '--url', server.url, '--sale', sale, '--buyers', '5000', '--rate', '50'];
    const child = spawn(process.execPath, [BIN, ...args], { env: { ...process.env, ...KEYS } });
    children.push(child);
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk;
    });
    child.stderr.on('data', (chunk: Buffer) => {
      stderr += chunk;
    });
    // The first line of progress: the crowd has entered.
    while (!stderr.includes(' of 5 000 buyers: ')) await wait(20);
    child.kill('SIGINT');
    const code = await new Promise((resolve) => child.on('close', resolve));
    expect(stdout).toMatch(/interrupted: \d+ of 5 000 buyers had entered/);
    expect(stdout).toContain('verdict: every promise held, as far as the crowd got');
    expect(code).toBe(130);
  });
});

describe('wrong use is one helpful line and exit code 2', () => {
  const THERE = ['--url', 'http://127.0.0.1:1', '--sale', '1', '--admin-key', 'k'];

  it.each<[string, string[], RegExp]>([
    ['no url', ['--sale', '1', '--buyers', '1'], /^--url is missing/],
    ['no sale', ['--url', 'http://127.0.0.1:1', '--buyers', '1'], /^--sale is missing/],
    ['no buyers', THERE, /^--buyers is missing/],
    ['a bad number', [...THERE, '--buyers', 'many'], /^--buyers must be a whole number/],
    ['too many', [...THERE, '--buyers', '200001'], /^--buyers must be a whole number from 1 to 200000/],
    ['a bad rate', [...THERE, '--buyers', '1', '--rate', '0'], /^--rate must be/],
    ['a bad url', ['--url', 'localhost', '--sale', '1', '--buyers', '1'], /^--url must be an http/],
    ['one bad url of two', [...THERE, '--url', 'localhost', '--buyers', '1'], /^--url must be .* not localhost$/],
    ['only a comma', ['--url', ',', '--sale', '1', '--buyers', '1'], /^--url is missing/],
    ['a bad wait', [...THERE, '--buyers', '1', '--wait', '0'], /^--wait must be a whole number from 1 to 3600/],
    ['a bad key', [...THERE, '--buyers', '1', '--admin-key', ':'], /^--admin-key must be/],
    ['an unknown flag', ['--people', '4'], /--people/],
    ['nobody there', [...THERE, '--buyers', '1'], /^no server answers at .*ECONNREFUSED/],
  ])('%s', async (_, args, line) => {
    const error = await command.run(args).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(UsageError);
    expect((error as Error).message).toMatch(line);
    expect((error as Error).message).not.toContain('\n');
  });

  it('no or a wrong admin key, an unknown sale, item or secret, no demo tokens', async () => {
    const sale = await createSale(server);
    const one = ['--buyers', '1'];
    const answers = await Promise.all([
      crowd(server.url, sale, [...one, '--admin-key', '-wrong']),
      crowd(server.url, '12345', one),
      crowd(server.url, sale, [...one, '--item', 'nothing']),
      crowd(server.url, sale, one, { ...KEYS, DOORBUSTER_AUTH_SECRET: 'another' }),
      crowd(server.url, sale, one, { ...KEYS, DOORBUSTER_AUTH_SECRET: '' }),
      crowd(server.url, sale, one, { DOORBUSTER_ADMIN_KEY: '' }),
    ]);
    oneLine(answers[0], /does not accept this admin key/);
    oneLine(answers[1], /there is no sale 12345/);
    oneLine(answers[2], /no item nothing; it has voucher/);
    oneLine(answers[3], /does not accept tokens signed with this DOORBUSTER_AUTH_SECRET/);
    oneLine(answers[4], /no demo tokens .*set DOORBUSTER_AUTH_SECRET/);
    oneLine(answers[5], /an admin key is needed/);
  });

  function oneLine({ code, stderr }: { code: number | null; stderr: string }, line: RegExp): void {
    expect(stderr).toMatch(line);
    expect(stderr.trimEnd().split('\n')).toHaveLength(1);
    expect(code).toBe(2);
  }
});

interface TinyOrder {
  id: string;
  buyer: string;
  item: string;
  quantity: number;
  status: string;
}

/** The faults of a minimal shop, on which the verdict is tested. Without any it is honest. */
interface Vice {
  /** Sells this many units more than it has, and hides that in its counts. */
  oversells?: number;
  /** Forgets every n-th order it has confirmed. */
  forgetsEvery?: number;
  /** Ignores the Idempotency-Key and the limit. */
  forgetful?: boolean;
  /** Cuts every n-th connection after it has handled the request. */
  cutsEvery?: number;
  /** Answers the first n orders with 503. */
  overloadedFor?: number;
  /** Answers every order with this status. */
  answers?: number;
  /** Fails to list its orders once there are any. */
  hidesOrders?: boolean;
}

const STOCK = 10;

async function tinyShop(vice: Vice): Promise<string> {
  const orders: TinyOrder[] = [];
  const byKey = new Map<string, TinyOrder>();
  let asked = 0;
  let sold = 0;
  const place = (request: IncomingMessage, body: { item: string; quantity: number }): [number, object, boolean?] => {
    const buyer = JSON.parse(Buffer.from(request.headers.authorization!.split('.')[1]!, 'base64url').toString()).sub;
    const key = `${buyer} ${request.headers['idempotency-key']}`;
    if (asked <= (vice.overloadedFor ?? 0)) return [503, { code: 'overloaded' }];
    if (vice.answers !== undefined) return [vice.answers, { code: 'internal' }];
    const known = byKey.get(key);
    if (known && !vice.forgetful) return [201, known, true];
    if (orders.some((order) => order.buyer === buyer) && !vice.forgetful) return [409, { code: 'limit_reached' }];
    if (sold >= STOCK + (vice.oversells ?? 0)) return [409, { code: 'sold_out' }];
    const order = { id: String(++sold), buyer, ...body, status: 'reserved' };
    byKey.set(key, order);
    if (vice.forgetsEvery === undefined || sold % vice.forgetsEvery !== 0) orders.push(order);
    return [201, order];
  };
  const answer = (response: ServerResponse, [status, body, replayed]: [number, object, boolean?]): void => {
    response
      .writeHead(status, {
        'content-type': 'application/json',
        'retry-after': '1',
        ...(replayed && { 'idempotent-replayed': 'true' }),
      })
      .end(JSON.stringify(body));
  };
  const shop = createServer(async (request, response) => {
    const url = new URL(request.url!, 'http://shop');
    if (request.method === 'POST') {
      let text = '';
      for await (const chunk of request) text += chunk;
      asked++;
      const placed = place(request, JSON.parse(text));
      if (vice.cutsEvery !== undefined && asked % vice.cutsEvery === 0) response.destroy();
      else answer(response, placed);
    } else if (url.pathname === '/v1/orders' && vice.hidesOrders && sold > 0) {
      answer(response, [500, { code: 'internal' }]);
    } else if (url.pathname === '/v1/orders') {
      // One page of three, so that the crowd has to turn pages.
      const from = Number(url.searchParams.get('cursor') ?? 0);
      const next = from + 3 < orders.length ? String(from + 3) : null;
      answer(response, [200, { data: orders.slice(from, from + 3), nextCursor: next }]);
    } else {
      const reserved = orders.length;
      const free = Math.max(0, STOCK - reserved);
      const item = { code: 'voucher', kind: 'counted', queued: 0, sold: 0, blocked: 0, reserved, free };
      const items = [{ ...item, total: STOCK }];
      answer(response, [200, { id: '1', name: 'Tiny', state: 'open', perBuyer: 1, items }]);
    }
  });
  shops.push(shop);
  await new Promise<void>((resolve) => shop.listen(0, '127.0.0.1', resolve));
  return `http://127.0.0.1:${(shop.address() as AddressInfo).port}`;
}

describe('against a shop that is', () => {
  const tries = (url: string) => crowd(url, '1', ['--buyers', '60', '--seed', '1', '--connections', '10']);

  it.each<[string, Vice, string]>([
    ['honest', {}, '10 orders, 10 units, to 10 buyers'],
    ['honest, and cuts connections after the order', { cutsEvery: 7 }, '10 orders, 10 units, to 10 buyers'],
    ['honest, and overloaded at first', { overloadedFor: 40 }, '40: 503 overloaded 40'],
  ])('%s: every promise holds', async (_, vice, figure) => {
    const { code, stdout, stderr } = await tries(await tinyShop(vice));
    expect(stderr).not.toContain('Warning');
    expect(stdout).toContain(figure);
    expect(stdout).toContain('verdict: every promise held');
    expect(code).toBe(0);
  });

  it.each<[string, Vice, RegExp]>([
    ['overselling', { oversells: 3 }, /✗ P1 +OVERSOLD.*\n.*voucher: 13 units/],
    ['losing orders', { forgetsEvery: 4 }, /✗ P3 +LOST.*\n.*is not in the ledger/],
    ['blind to keys', { forgetful: true }, /✗ P5 +A KEY HAD ANOTHER EFFECT.*\n.*key crowd-/],
    ['failing', { answers: 500 }, /✗ API +UNEXPLAINED.*\n.*500 internal/],
  ])('%s: it is caught, exit code 1', async (_, vice, words) => {
    const { code, stdout } = await tries(await tinyShop(vice));
    expect(stdout).toMatch(words);
    expect(stdout.trimEnd().split('\n').at(-1)).toMatch(/^verdict: BROKEN: /);
    expect(code).toBe(1);
  });

  it('not showing its lists afterwards: no verdict, but what the buyers heard; exit code 1', async () => {
    const { code, stdout } = await tries(await tinyShop({ hidesOrders: true }));
    expect(stdout).toMatch(/told +\d+ answers: \d+ × 409 sold_out, .*\d+ × 201/);
    expect(stdout.trimEnd().split('\n').at(-1)).toMatch(/^verdict: UNKNOWN: .*cannot be read \(500\)/);
    expect(code).toBe(1);
  });
});
