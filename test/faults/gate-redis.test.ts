import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest';
import { KeepAlive } from '../../src/base/keep-alive.ts';
import { Layout } from '../../src/base/redis/layout.ts';
import { RedisLink } from '../../src/base/redis/link.ts';
import { partsOf } from '../../src/base/redis/sent-script.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { type AdmitRequest, NotAdmittedError, type Verdict } from '../../src/gate/port.ts';
import { RedisGate, type RedisGateOptions } from '../../src/gate/redis/gate.ts';
import { install } from '../../src/gate/redis/install.ts';
import { scriptNamed } from '../../src/gate/redis/scripts.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import type { SaleSnapshot } from '../../src/model/snapshot.ts';
import { streamed } from '../contract/gate-redis-world.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis, startRedisCluster, startRedisSentinel } from '../support/servers/redis.ts';
import { paged, type WholeSnapshot } from '../support/snapshot.ts';

const SALE = '7';
const PREFIX = 'shop';

function snapshot(over: Partial<WholeSnapshot> = {}): SaleSnapshot {
  return paged({
    saleId: SALE,
    epoch: 1,
    version: 1,
    opensAtMs: 0,
    closesAtMs: Date.now() + 3_600_000,
    paused: false,
    closed: false,
    perBuyer: 1,
    payWithinSeconds: 900,
    mayAdmit: true,
    items: [{ id: '11', code: 'voucher', price: { amount: 8000, currency: 'CNY' }, total: 300, blocked: 0, rev: 1 }],
    holds: [],
    keys: [],
    ...over,
  });
}

function manyHolds(count: number): WholeSnapshot['holds'] {
  return Array.from({ length: count }, (_, at) => {
    return { orderId: String(10_000_000 + at), itemId: '11', buyer: `owner ${at}`, slots: [1] };
  });
}

let lastOrder = 1000;
function request(buyer: string, over: Partial<AdmitRequest> = {}): AdmitRequest {
  const orderId = String(++lastOrder);
  return {
    saleId: SALE,
    orderId,
    itemCode: 'voucher',
    buyer,
    quantity: 1,
    key: null,
    fingerprint: 'voucher x1',
    ...over,
  };
}

function outcomes(verdicts: Verdict[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { outcome } of verdicts) counts[outcome] = (counts[outcome] ?? 0) + 1;
  return counts;
}

/** How often each outcome, or code of an error, occurred. */
async function fates(asked: Promise<Verdict>[]): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const settled of await Promise.allSettled(asked)) {
    const fate = settled.status === 'fulfilled' ? settled.value.outcome : (settled.reason as { code: string }).code;
    counts[fate] = (counts[fate] ?? 0) + 1;
  }
  return counts;
}

/** A field of INFO replication; undefined if there is none. */
async function field(of: RedisServer, name: string): Promise<string | undefined> {
  return new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(String(await of.command('INFO', 'replication')))?.[1];
}

describeWithRedis('the gate in Redis', () => {
  let server: RedisServer;
  let eye: Redis;
  const gates: RedisGate[] = [];

  function gateAt(target: string, options: Partial<RedisGateOptions> = {}): RedisGate {
    const gate = new RedisGate({ target, prefix: PREFIX, ...options }, systemRuntime());
    gates.push(gate);
    return gate;
  }

  async function use(options: Parameters<typeof startRedis>[0] = {}): Promise<void> {
    server = await startRedis(options);
    eye = new Redis(server.url, { lazyConnect: false });
    eye.on('error', () => undefined);
  }

  async function emitted(): Promise<OrderMessage[]> {
    return streamed(eye, PREFIX, SALE);
  }

  afterEach(async () => {
    for (const gate of gates.splice(0)) gate.close();
    eye?.disconnect();
    await cleanUpServers();
  });
  afterAll(cleanUpServers);

  describe('many processes', () => {
    beforeEach(() => use());

    it('P1, P2: two that are asked at once sell exactly the stock, and one to a buyer', async () => {
      const [a, b] = [gateAt(server.url, { process: 'a' }), gateAt(server.url, { process: 'b' })];
      await a.install(snapshot());
      const verdicts = await Promise.all(
        Array.from({ length: 1000 }, (_, at) => [a, b][at % 2]!.admit(request(`buyer ${at % 500}`))),
      );
      expect(outcomes(verdicts).admitted).toBe(300);
      const messages = await emitted();
      expect(new Set(messages.map(({ buyer }) => buyer)).size).toBe(300);
      expect(new Set(messages.map(({ from }) => from))).toEqual(new Set(['a', 'b']));
      expect(await b.view(SALE)).toMatchObject([{ free: 0, queued: 300, held: 0 }]);
      // The processes were told what the stream contains.
      const told = verdicts.flatMap((verdict) => (verdict.outcome === 'admitted' ? [verdict.message] : []));
      const byId = (x: OrderMessage, y: OrderMessage) => Number(x.orderId) - Number(y.orderId);
      expect(told.sort(byId)).toEqual(messages.sort(byId));
    });

    it('a batch is one entry of the stream, and the wake-up channel hears of it once', async () => {
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      const heard: string[] = [];
      const ear = new Redis(server.url);
      await ear.subscribe(`${PREFIX}:wake`);
      ear.on('message', (_, message) => heard.push(message));
      await Promise.all(Array.from({ length: 100 }, (_, at) => gate.admit(request(`buyer ${at}`))));
      await gate.admit(request('buyer 1'));
      await until('it is heard', 2000, () => heard.length > 0);
      await sleep(20);
      ear.disconnect();
      expect(heard).toEqual(['7 1']);
      expect(await eye.xlen(`${PREFIX}:{7:0}:1:stream`)).toBe(1);
    });

    it('one that believes in an old epoch is told, and asks again under the new names', async () => {
      const [a, b] = [gateAt(server.url), gateAt(server.url)];
      await a.install(snapshot());
      expect(await b.admit(request('x'))).toMatchObject({ outcome: 'admitted' });
      await a.install(snapshot({ epoch: 5 }));
      expect(await b.admit(request('x'))).toMatchObject({ outcome: 'admitted', message: { epoch: 5 } });
    });

    it('one that was told of a higher epoch by the ledger takes the gate for stale', async () => {
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      gate.knowsEpoch(SALE, 2);
      expect(await gate.admit(request('x'))).toEqual({ outcome: 'stale' });
      expect(await gate.epochOf(SALE)).toBeNull();
      expect(await gate.view(SALE)).toMatchObject([{ total: 300 }]);
      await gate.install(snapshot({ epoch: 2 }));
      expect(await gate.admit(request('x'))).toMatchObject({ outcome: 'admitted' });
    });

    it('scripts that Redis has forgotten are sent again', async () => {
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      await gate.admit(request('x'));
      await eye.script('FLUSH');
      const verdicts = await Promise.all([gate.admit(request('y')), gate.admit(request('x'))]);
      expect(verdicts.map(({ outcome }) => outcome)).toEqual(['admitted', 'limit_reached']);
      await eye.script('FLUSH');
      expect(await gate.view(SALE)).toMatchObject([{ queued: 2 }]);
    });

    it('a sale that is not there leaves nothing behind, whatever it is called', async () => {
      const gate = gateAt(server.url);
      for (const saleId of ['8', '9}', '{', '', '7:0}:1', '0', 'x'.repeat(1000)]) {
        expect(await gate.admit(request('x', { saleId }))).toEqual({ outcome: 'stale' });
      }
      expect(await eye.keys('*')).toEqual([]);
    });
  });

  describe('bounds', () => {
    beforeEach(() => use());

    it('a full pipe refuses as overloaded, known orders and keys excepted, until orders are settled', async () => {
      const gate = gateAt(server.url, { pipeMax: 3 });
      await gate.install(snapshot());
      const keyed = request('a', { key: 'k' });
      expect(await fates(['x', 'y', 'z'].map((buyer) => gate.admit(request(buyer))))).toEqual({ admitted: 3 });
      expect(await fates([gate.admit(request('late'))])).toEqual({ overloaded: 1 });
      await expect(gate.admit(keyed)).rejects.toMatchObject({ name: 'NotAdmittedError', code: 'overloaded' });
      const [first] = await emitted();
      await gate.settle(SALE, [first!]);
      expect(await gate.admit(keyed)).toMatchObject({ outcome: 'admitted' });
      expect(await gate.admit(keyed)).toMatchObject({ outcome: 'admitted' });
      expect(await gate.admit({ ...keyed, orderId: '5' })).toMatchObject({ outcome: 'replayed' });
      expect(await emitted()).toHaveLength(4);
      expect(await gate.view(SALE)).toMatchObject([{ queued: 3, held: 1 }]);
    });

    it('a full pipe refuses a buyer who holds something, too, and has room for those that are withdrawn', async () => {
      const gate = gateAt(server.url, { pipeMax: 2 });
      await gate.install(snapshot({ perBuyer: 2 }));
      const [first, second] = [request('x'), request('y')];
      expect(await fates([first, second].map((each) => gate.admit(each)))).toEqual({ admitted: 2 });
      expect(await fates([gate.admit(request('x'))])).toEqual({ overloaded: 1 });
      await gate.withdraw(SALE, first);
      expect(await fates([gate.admit(request('y'))])).toEqual({ admitted: 1 });
      expect(await fates([gate.admit(request('z'))])).toEqual({ overloaded: 1 });
    });

    it('a pipe that is full in the middle of a batch, and goods that end there: those before it are admitted', async () => {
      const gate = gateAt(server.url, { pipeMax: 5 });
      await gate.install(snapshot());
      const buyers = (count: number, name: string) => Array.from({ length: count }, (_, at) => `${name} ${at}`);
      const some = buyers(8, 'buyer').map((buyer, at) => request(buyer, { orderId: String(96 + at) }));
      const fate = await Promise.allSettled(some.map((each) => gate.admit(each)));
      expect(fate.map(({ status }) => status)).toEqual([...Array(5).fill('fulfilled'), ...Array(3).fill('rejected')]);
      expect((await emitted()).map(({ orderId }) => orderId)).toEqual(['96', '97', '98', '99', '100']);
      // Again, as after a lost reply: no unit is taken twice.
      expect(await fates(some.slice(0, 5).map((each) => gate.admit(each)))).toEqual({ admitted: 5 });
      await gate.settle(SALE, await emitted());
      const free = (await gate.view(SALE))![0]!.free;
      const wide = gateAt(server.url);
      expect(await fates(buyers(free + 7, 'more').map((buyer) => wide.admit(request(buyer))))).toEqual({
        admitted: free,
        sold_out: 7,
      });
      expect(await wide.view(SALE)).toMatchObject([{ free: 0, queued: free, held: 5 }]);
    });

    it('before a silent Redis: four full calls and one more batch wait, the rest is refused at once', async () => {
      const gate = gateAt(server.url, { commandMs: 1500, retryMs: 100 });
      await gate.install(snapshot());
      await server.pause();
      const startMs = performance.now();
      let refused = 0;
      const asked = Array.from({ length: 2000 }, (_, at) => gate.admit(request(`buyer ${at}`)));
      for (const each of asked) each.catch(({ code }) => code === 'overloaded' && refused++);
      await sleep(50);
      expect(refused).toBe(2000 - 5 * 256);
      expect(await fates(asked)).toEqual({ overloaded: 2000 - 5 * 256, unavailable: 5 * 256 });
      expect(performance.now() - startMs).toBeLessThan(4000);
    });

    it('those who come after a full batch that was given up are answered when it is closed, as everybody is', async () => {
      const gate = gateAt(server.url, { commandMs: 20_000, retryMs: 20_000 });
      await gate.install(snapshot());
      // This gate does not know the sale yet.
      const fresh = gateAt(server.url, { commandMs: 20_000, retryMs: 20_000 });
      expect(await fresh.admit(request('x', { saleId: '8' }))).toEqual({ outcome: 'stale' });
      await server.pause();
      const gone = new AbortController();
      const given = Array.from({ length: 256 }, (_, at) => fresh.admit(request(`gone ${at}`, { signal: gone.signal })));
      gone.abort();
      const late = ['x', 'y'].map((buyer) => fresh.admit(request(buyer)));
      expect(await fates(given)).toEqual({ aborted: 256 });
      await sleep(50);
      const startMs = performance.now();
      fresh.close();
      expect(await fates(late)).toEqual({ unavailable: 2 });
      expect(performance.now() - startMs).toBeLessThan(200);
    });

    it('an order that was given up before it was sent is not sent', async () => {
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      const [early, late, sent] = [new AbortController(), new AbortController(), new AbortController()];
      early.abort();
      const asked = [early, late, sent].map(({ signal }, at) => gate.admit(request(`buyer ${at}`, { signal })));
      late.abort();
      expect(await fates([...asked, gate.admit(request('buyer 3'))])).toEqual({ aborted: 2, admitted: 2 });
      sent.abort();
      expect((await emitted()).map(({ buyer }) => buyer)).toEqual(['buyer 2', 'buyer 3']);
    });

    it('no key has a TTL, and a sale that is taken out leaves none', async () => {
      const gate = gateAt(server.url);
      await gate.install(snapshot({ holds: manyHolds(10) }));
      await gate.admit(request('x', { key: 'k' }));
      await gate.holdForHouse(SALE, '11', 5, 'h');
      await gate.install(
        snapshot({ epoch: 2, keys: [{ buyer: 'x', key: 'k', fingerprint: 'f', orderId: '5', boundAtMs: 1 }] }),
      );
      await gate.admit(request('y', { key: 'k' }));
      await gate.holdForHouse(SALE, '11', 5, 'h');
      await eye.zadd(`${PREFIX}:{7:0}:retry`, 1, 'x');
      await eye.hset(`${PREFIX}:{7:0}:dead`, '5', '{}');
      const keys = await eye.keys('*');
      expect(keys.map((key) => key.slice(PREFIX.length + 1)).sort()).toEqual([
        'sales',
        '{7:0}:1:stream',
        '{7:0}:2:holds',
        '{7:0}:2:house',
        '{7:0}:2:items',
        '{7:0}:2:keys',
        '{7:0}:2:stream',
        '{7:0}:dead',
        '{7:0}:epochs',
        '{7:0}:gate',
        '{7:0}:retry',
      ]);
      for (const key of keys) expect(await eye.ttl(key)).toBe(-1);
      expect(Number((await eye.hget(`${PREFIX}:{7:0}:2:house`, 'h'))!.split(' ')[2])).toBeGreaterThan(
        Date.now() - 5000,
      );
      await gate.remove(SALE);
      expect(await eye.keys('*')).toEqual([]);
    });
  });

  describe('lost replies', () => {
    let proxy: FaultProxy;
    let gate: RedisGate;

    beforeEach(async () => {
      await use();
      proxy = await startProxy(server.port);
      gate = gateAt(`redis://${proxy.host}:${proxy.port}`, { commandMs: 2000, retryMs: 2000 });
      await gate.install(snapshot());
      // Load the script first; otherwise the first lost reply would be NOSCRIPT.
      await gate.admit(request('x', { itemCode: 'no-such' }));
    });

    const admissions = ({ request }: { request: Buffer }): boolean => request.includes('voucher x1');

    it('P1: an admission whose reply is lost is sent again, and takes nothing twice', async () => {
      let lost = 0;
      proxy.dropReplies((exchange) => admissions(exchange) && lost++ < 3);
      expect(await gate.admit(request('alice', { key: 'k' }))).toMatchObject({
        outcome: 'admitted',
        message: { slots: [1] },
      });
      expect(proxy.counters().repliesDropped).toBe(3);
      expect(await emitted()).toHaveLength(1);
      expect(await gate.view(SALE)).toMatchObject([{ free: 299, queued: 1 }]);
      expect(await eye.hget(`${PREFIX}:{7:0}:1:items`, 'Q')).toBe('1');
    });

    it('P1: many batches, many lost replies', async () => {
      let seen = 0;
      proxy.dropReplies((exchange) => admissions(exchange) && ++seen % 3 === 0);
      const refused: AdmitRequest[] = [];
      const loop = async (buyers: number): Promise<void> => {
        for (let at = 0; at < 10; at++) {
          const asked = request(`buyer ${buyers} ${at}`);
          // Retry like a client, until there is an answer.
          for (;;) {
            const verdict = await gate.admit(asked).catch(() => null);
            if (verdict === null) {
              await sleep(30);
              continue;
            }
            if (verdict.outcome !== 'admitted') refused.push(asked);
            break;
          }
        }
      };
      await Promise.all(Array.from({ length: 32 }, (_, buyers) => loop(buyers)));
      proxy.dropReplies(0);
      expect(proxy.counters().repliesDropped).toBeGreaterThan(2);
      const messages = await emitted();
      expect(messages).toHaveLength(300);
      expect(new Set(messages.map(({ orderId }) => orderId)).size).toBe(300);
      expect(refused).toHaveLength(20);
      expect(await gate.view(SALE)).toMatchObject([{ free: 0, queued: 300 }]);
    });

    it('P1: it is not sent again into another epoch: the old message may be in the pipe', async () => {
      const other = gateAt(server.url);
      proxy.dropReplies((exchange) => {
        if (!admissions(exchange)) return false;
        void proxy.refuse(true);
        return true;
      });
      const asked = gate.admit(request('alice'));
      asked.catch(() => undefined);
      await until('the reply is lost', 2000, () => proxy.counters().repliesDropped === 1);
      await other.install(snapshot({ epoch: 2 }));
      proxy.dropReplies(0);
      await proxy.refuse(false);
      await expect(asked).rejects.toMatchObject({ code: 'unavailable' });
      expect((await emitted()).map(({ epoch }) => epoch)).toEqual([1]);
      expect(await other.view(SALE)).toMatchObject([{ free: 300, queued: 0 }]);
      expect(await gate.admit(request('alice'))).toMatchObject({ outcome: 'admitted', message: { epoch: 2 } });
    });

    it('P4: a refusal is certain if it was sent once; sent again, an earlier copy may have been admitted', async () => {
      await gate.applyTotal(SALE, '11', 0, 2);
      expect(await gate.admit(request('alice'))).toEqual({ outcome: 'sold_out' });
      let lost = 0;
      proxy.dropReplies((exchange) => admissions(exchange) && lost++ < 1);
      expect(await gate.admit(request('alice'))).toEqual({ outcome: 'sold_out', uncertain: true });
      expect(proxy.counters().repliesDropped).toBe(1);
      expect(await gate.admit(request('alice'))).toEqual({ outcome: 'sold_out' });
    });

    it('P3: a full Redis refuses for certain what was sent once, and nothing of what was sent before', async () => {
      await gate.applyTotal(SALE, '11', 1, 2);
      const asked = [request('alice'), request('bob')];
      proxy.dropReplies((exchange) => {
        if (!admissions(exchange)) return false;
        void proxy.refuse(true);
        return true;
      });
      // One batch: alice gets the only unit, bob none. The reply is lost.
      const answers = asked.map((each) => gate.admit(each));
      for (const answer of answers) answer.catch(() => undefined);
      await until('the reply is lost', 2000, () => proxy.counters().repliesDropped === 1);
      proxy.dropReplies(0);
      // Now there is a unit for bob: the batch that is sent again could take it, but must not.
      await gateAt(server.url).applyTotal(SALE, '11', 2, 3);
      await eye.config('SET', 'maxmemory', '1');
      await proxy.refuse(false);
      for (const answer of answers) {
        const error = await answer.then(
          () => null,
          (reason: unknown) => reason,
        );
        expect(error).toMatchObject({ code: 'unavailable', message: 'Redis is full' });
        expect(error).not.toBeInstanceOf(NotAdmittedError);
      }
      expect((await emitted()).map(({ buyer }) => buyer)).toEqual(['alice']);
      const certain = await gate.admit(request('carol')).catch((error: unknown) => error);
      expect(certain).toMatchObject({ code: 'overloaded', message: 'Redis is full' });
      expect(certain).toBeInstanceOf(NotAdmittedError);
      await eye.config('SET', 'maxmemory', '0');
      expect(await gate.admit(asked[0]!), 'as it was').toMatchObject({ outcome: 'admitted' });
      expect(await emitted()).toHaveLength(1);
    });

    it('P10: a full Redis is told of: once in the log, and for as long as it lasts', async () => {
      const lines: string[] = [];
      const runtime = systemRuntime();
      const log = Object.create(runtime.log) as typeof runtime.log;
      for (const level of ['warn', 'error', 'info'] as const) {
        log[level] = ((...said: unknown[]) => void lines.push(`${level}: ${said.at(-1)}`)) as typeof log.error;
      }
      const watched = new RedisGate({ target: server.url, prefix: PREFIX }, { ...runtime, log });
      gates.push(watched);
      expect(await watched.admit(request('first'))).toMatchObject({ outcome: 'admitted' });
      expect(watched.full).toBeNull();
      await eye.config('SET', 'maxmemory', '1');
      for (const buyer of ['alice', 'bob']) {
        await expect(watched.admit(request(buyer))).rejects.toThrow('Redis is full');
      }
      expect([watched.full, watched.reason]).toEqual(['Redis is full: orders are refused', null]);
      expect(lines).toEqual(['error: Redis is full; orders are refused']);
      await eye.config('SET', 'maxmemory', '0');
      // The gate notices without any order.
      await until('there is room', 5000, () => watched.full === null);
      expect(lines).toEqual(['error: Redis is full; orders are refused', 'info: Redis has room again']);
      expect(await eye.keys('*probe*')).toEqual([]);
    });

    it('an order that was not sent at all is certainly not admitted', async () => {
      await proxy.refuse(true);
      proxy.cut();
      await until('it is known', 2000, () => gate.reason !== null);
      await expect(gate.admit(request('alice'))).rejects.toBeInstanceOf(NotAdmittedError);
      await expect(gate.admit(request('alice', { signal: { aborted: true } }))).rejects.toBeInstanceOf(
        NotAdmittedError,
      );
    });

    it('buyers are told that Redis cannot be reached, not what the client library says; that is the cause', async () => {
      const runtime = systemRuntime();
      const keepAlive = new KeepAlive(runtime.timers);
      const events = { message: () => undefined, interrupted: () => undefined };
      const target = `redis://${proxy.host}:${proxy.port}`;
      const link = new RedisLink(target, { commandMs: 5000 }, runtime, keepAlive, events);
      try {
        await link.call('GET', ['nothing']);
        const before = proxy.counters().repliesDropped;
        proxy.dropReplies(({ request }) => request.toString().includes('asked'));
        const answers = [link.call('GET', ['asked']), link.script(scriptNamed('probe'), ['asked'], [])].map((answer) =>
          answer.catch((error: unknown) => error),
        );
        await until('the replies are lost', 2000, () => proxy.counters().repliesDropped > before);
        proxy.cut();
        for (const error of await Promise.all(answers)) {
          expect(error).toMatchObject({ name: 'RedisUnavailableError', message: 'Redis cannot be reached' });
          expect((error as Error).cause).toBeInstanceOf(Error);
        }
      } finally {
        proxy.dropReplies(0);
        link.close();
        keepAlive.close();
      }
    });

    it('after its time it is given up as unavailable', async () => {
      const quick = gateAt(`redis://${proxy.host}:${proxy.port}`, { retryMs: 200 });
      await quick.admit(request('first'));
      proxy.dropReplies(admissions);
      const startMs = performance.now();
      await expect(quick.admit(request('alice'))).rejects.toMatchObject({
        name: 'RetryableError',
        code: 'unavailable',
      });
      expect(performance.now() - startMs).toBeLessThan(1500);
    });
  });

  describe('a finished sale', () => {
    let gate: RedisGate;

    beforeEach(async () => {
      await use({ persistence: 'aof' });
      gate = gateAt(server.url);
      await gate.install(snapshot());
    });

    const close = () => gate.applySale(SALE, { ...snapshot(), version: 2, closed: true });
    const stream = `${PREFIX}:{7:0}:1:stream`;

    it('P5: its gate stays and answers for keys until nothing of it is in the pipe; then that is noted', async () => {
      const order = request('alice', { key: 'k' });
      await gate.admit(order);
      expect(await gate.retire(SALE), 'it sells').toBe('busy');
      await close();
      expect(await gate.retire(SALE), 'one is in the stream').toBe('busy');
      expect(await gate.emptiedAt(SALE)).toBeNull();
      expect(await gate.admit(request('alice', { key: 'k' }))).toEqual({ outcome: 'replayed', orderId: order.orderId });
      expect((await gate.admit(request('bob', { key: 'k' }))).outcome).toBe('sale_closed');
      await eye.xtrim(stream, 'MAXLEN', 0);
      for (const [key, put, drop] of [
        ['retry', () => eye.zadd(`${PREFIX}:{7:0}:retry`, 1, 'm'), () => eye.del(`${PREFIX}:{7:0}:retry`)],
        ['dead', () => eye.hset(`${PREFIX}:{7:0}:dead`, 'l', 'x'), () => eye.del(`${PREFIX}:{7:0}:dead`)],
      ] as const) {
        await put();
        expect(await gate.retire(SALE), key).toBe('busy');
        await drop();
      }
      expect(await gate.retire(SALE)).toBe('removed');
      expect(await gate.emptiedAt(SALE)).toBe(1);
      expect(await eye.keys('*')).toEqual([`${PREFIX}:{7:0}:emptied`]);
      expect(await eye.ttl(`${PREFIX}:{7:0}:emptied`)).toBeGreaterThan(24 * 3600);
      expect(await gate.retire(SALE), 'again').toBe('removed');
    });

    it('P5: over by its window it is retired, too, by the clock of the server', async () => {
      await gate.applySale(SALE, { ...snapshot(), version: 2, closesAtMs: Date.now() - 1 });
      expect(await gate.retire(SALE)).toBe('removed');
    });

    it('P5: one that may have forgotten is not taken for empty until the ledger has raised the epoch', async () => {
      await close();
      await server.restart();
      await until('it answers', 5000, async () => gate.reason === null && (await gate.view(SALE)) !== null);
      expect(await gate.retire(SALE), 'another run').toBe('stale');
      await gate.setEmptied(SALE, 1);
      expect(await gate.retire(SALE), 'not above its own').toBe('stale');
      await gate.setEmptied(SALE, 2);
      await eye.xadd(stream, '*', 'a', 'b');
      expect(await gate.retire(SALE), 'what is there is decided first').toBe('busy');
      await eye.xtrim(stream, 'MAXLEN', 0);
      expect(await gate.retire(SALE)).toBe('removed');
      expect(await gate.emptiedAt(SALE)).toBe(2);
      await gate.install(snapshot({ epoch: 3 }));
      await gate.shut(SALE);
      expect(await gate.retire(SALE), 'shut').toBe('stale');
      await gate.install(snapshot({ epoch: 4, closed: true }));
      await eye.del(`${PREFIX}:{7:0}:4:stream`);
      expect(await gate.retire(SALE), 'without its stream').toBe('stale');
    });
  });

  describe('a stale gate', () => {
    it('P1: a restart that kept its data is stale by its run id, until it is rebuilt; holds can be settled', async () => {
      await use({ persistence: 'aof' });
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      const order = request('x');
      await gate.admit(order);
      expect(await gate.epochOf(SALE)).toBe(1);
      await server.restart();
      await until('it answers', 5000, async () => gate.reason === null);
      expect(await gate.admit(request('y'))).toEqual({ outcome: 'stale' });
      expect(await gate.admit(order)).toEqual({ outcome: 'stale' });
      expect(await gate.epochOf(SALE)).toBeNull();
      await gate.settle(SALE, [order]);
      expect(await gate.view(SALE)).toMatchObject([{ queued: 0, held: 1 }]);
      expect(await gate.holdOf(SALE, order)).toMatchObject({ queued: false });
      await gate.install(snapshot({ epoch: 1 }));
      expect(await gate.admit(request('y'))).toEqual({ outcome: 'stale' });
      await gate.install(snapshot({ epoch: 2 }));
      expect(await gate.admit(request('y'))).toMatchObject({ outcome: 'admitted' });
    });

    it('a Redis that has lost everything is stale, for every process', async () => {
      await use();
      const [a, b] = [gateAt(server.url), gateAt(server.url)];
      await a.install(snapshot());
      await b.admit(request('x'));
      await eye.flushall();
      for (const gate of [a, b]) {
        expect(await gate.admit(request('y'))).toEqual({ outcome: 'stale' });
        expect(await gate.view(SALE)).toBeNull();
        expect(await gate.holdOf(SALE, request('x'))).toBeNull();
        expect(await gate.holdForHouse(SALE, '11', 1, 'h')).toBe(false);
      }
      expect(await eye.keys('*')).toEqual([]);
      // An old snapshot that arrives late opens a gate, but gates that know a later epoch do not sell from it.
      await gateAt(server.url).install(snapshot({ epoch: 1 }));
      b.knowsEpoch(SALE, 2);
      expect(await b.admit(request('y'))).toEqual({ outcome: 'stale' });
    });

    it('parts of it missing: stale, and nothing is written', async () => {
      await use();
      const gate = gateAt(server.url);
      for (const [epoch, part] of ['items', 'stream'].entries()) {
        await gate.install(snapshot({ epoch: epoch + 1 }));
        await eye.del(`${PREFIX}:{7:0}:${epoch + 1}:${part}`);
        expect(await gate.admit(request('y'))).toEqual({ outcome: 'stale' });
        expect(await eye.exists(`${PREFIX}:{7:0}:${epoch + 1}:holds`)).toBe(0);
      }
    });

    it('P1: a promoted replica has the same keys, and is stale', async () => {
      // A replica copies its master at once; the default waits 5 s for more replicas.
      await use({ args: ['--repl-diskless-sync-delay', '0'] });
      const replica = await startRedis({ args: ['--replicaof', server.host, String(server.port)] });
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      await gate.admit(request('x'));
      await until(
        'the replica has it',
        5000,
        async () => (await replica.command('HEXISTS', `${PREFIX}:{7:0}:1:holds`, 'x')) === 1,
      );
      const there = gateAt(replica.url, { commandMs: 300 });
      // A replica refuses writes, so it is not asked to decide.
      await expect(there.admit(request('y'))).resolves.toEqual({ outcome: 'stale' });
      await replica.command('REPLICAOF', 'NO', 'ONE');
      expect(await there.admit(request('y'))).toEqual({ outcome: 'stale' });
      expect(await there.view(SALE)).toMatchObject([{ free: 299 }]);
      await there.install(snapshot({ epoch: 2 }));
      expect(await there.admit(request('y'))).toMatchObject({ outcome: 'admitted' });
    });

    const AT_ONCE = ['--repl-diskless-sync-delay', '0', '--repl-backlog-ttl', '1'];

    async function follows(replica: RedisServer, master: RedisServer): Promise<void> {
      await replica.command('REPLICAOF', master.host, String(master.port));
      await until('it follows', 10_000, async () => (await field(replica, 'master_link_status')) === 'up');
    }

    it('P1: a failover there and back before any rebuild is stale, though the run id is the same', async () => {
      await use({ args: AT_ONCE });
      const other = await startRedis({ args: AT_ONCE });
      await follows(other, server);
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      await gate.admit(request('x'));
      await until('it is copied', 5000, async () => (await other.command('EXISTS', `${PREFIX}:{7:0}:1:holds`)) === 1);
      await other.command('REPLICAOF', 'NO', 'ONE');
      // Admitted by the old master while the other one is already master: lost.
      expect(await gate.admit(request('lost'))).toMatchObject({ outcome: 'admitted' });
      await follows(server, other);
      await server.command('REPLICAOF', 'NO', 'ONE');
      expect(await eye.hexists(`${PREFIX}:{7:0}:1:holds`, 'lost')).toBe(0);
      expect(await gate.admit(request('y'))).toEqual({ outcome: 'stale' });
      expect(await gate.epochOf(SALE)).toBeNull();
      await gate.install(snapshot({ epoch: 2 }));
      expect(await gate.admit(request('y'))).toMatchObject({ outcome: 'admitted' });
      expect(await gate.epochOf(SALE)).toBe(2);
    });

    it('the first replica that attaches, and the backlog that is freed when it is gone, make nothing stale', async () => {
      await use({ args: AT_ONCE });
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      const ids = [await field(server, 'master_replid')];
      const replica = await startRedis({ args: AT_ONCE });
      await follows(replica, server);
      ids.push(await field(server, 'master_replid'));
      expect(await gate.admit(request('x'))).toMatchObject({ outcome: 'admitted' });
      expect(await gate.epochOf(SALE)).toBe(1);
      await replica.command('REPLICAOF', 'NO', 'ONE');
      await until('the backlog is freed', 10_000, async () => (await field(server, 'repl_backlog_active')) === '0');
      ids.push(await field(server, 'master_replid'));
      // Precondition of this test.
      expect(new Set(ids).size).toBe(3);
      expect(await gate.admit(request('y'))).toMatchObject({ outcome: 'admitted' });
      expect(await gate.epochOf(SALE)).toBe(1);
    });

    it('P1: a failover there and back while a gate is being built: it does not open', async () => {
      await use({ args: AT_ONCE });
      const other = await startRedis({ args: AT_ONCE });
      await follows(other, server);
      const gate = gateAt(server.url);
      const thereAndBack = async (): Promise<WholeSnapshot['holds']> => {
        await other.command('REPLICAOF', 'NO', 'ONE');
        await follows(server, other);
        await server.command('REPLICAOF', 'NO', 'ONE');
        return [];
      };
      const content = (async function* () {
        await until('it has begun', 5000, async () => (await eye.exists(`${PREFIX}:{7:0}:2:items`)) === 1);
        await until('it is copied', 5000, async () => (await other.command('EXISTS', `${PREFIX}:{7:0}:2:items`)) === 1);
        yield { holds: await thereAndBack(), keys: [] };
      })();
      await expect(gate.install({ ...snapshot({ epoch: 2 }), content })).rejects.toMatchObject({ code: 'unavailable' });
      expect(await gate.epochOf(SALE)).toBeNull();
    });

    it.skipIf(!LONG)(
      'through Sentinel: sells, is out during the failover, and is stale after it (only with DOORBUSTER_TEST_LONG=1)',
      async () => {
        const servers = await startRedisSentinel();
        const hosts = servers.sentinelAddresses.map(({ host, port }) => `${host}:${port}`).join(',');
        const gate = gateAt(`redis+sentinel://${hosts}/${servers.name}`);
        await gate.install(snapshot());
        expect(await gate.admit(request('x'))).toMatchObject({ outcome: 'admitted' });
        await sleep(300);
        await servers.failover('kill');
        const verdict = await until('it answers again', 20_000, () => gate.admit(request('y')).catch(() => null));
        expect(verdict).toEqual({ outcome: 'stale' });
        await gate.install(snapshot({ epoch: 2 }));
        expect(await gate.admit(request('y'))).toMatchObject({ outcome: 'admitted' });
      },
      60_000,
    );
  });

  describe('a failover there and back, as its keepers do it', () => {
    it.skipIf(!LONG)(
      'P1: through Sentinel: stale on the first master, too (only with DOORBUSTER_TEST_LONG=1)',
      async () => {
        const servers = await startRedisSentinel();
        const first = servers.master;
        const hosts = servers.sentinelAddresses.map(({ host, port }) => `${host}:${port}`).join(',');
        const gate = gateAt(`redis+sentinel://${hosts}/${servers.name}`);
        await gate.install(snapshot());
        expect(await gate.admit(request('x'))).toMatchObject({ outcome: 'admitted' });
        const runId = /run_id:(\w+)/.exec(String(await first.command('INFO', 'server')))![1];
        const second = servers.replicas[0]!;
        for (const next of [second, first]) {
          await until('the sentinels let it', 30_000, async () => {
            const isMaster = ((await next.command('ROLE')) as unknown[])[0] === 'master';
            // Refused while a failover runs, and while no replica is suitable.
            if (!isMaster) await servers.sentinels[0]!.command('SENTINEL', 'FAILOVER', servers.name).catch(() => null);
            return isMaster;
          });
          // The old master learns of it a moment later.
          const other = next === first ? second : first;
          await until('the other follows', 30_000, async () => (await field(other, 'master_link_status')) === 'up');
        }
        expect(String(await first.command('INFO', 'server'))).toContain(`run_id:${runId}`);
        const verdict = await until('it answers again', 30_000, async () => {
          const said = await gate.admit(request('y')).catch(() => null);
          return said !== null && ((await first.command('ROLE')) as unknown[])[0] === 'master' ? said : null;
        });
        expect(verdict).toEqual({ outcome: 'stale' });
      },
      120_000,
    );

    it.skipIf(!LONG)(
      'P1: in a cluster: stale on the first master, too (only with DOORBUSTER_TEST_LONG=1)',
      async () => {
        const cluster = await startRedisCluster({ masters: 3, replicas: 1 });
        const gate = gateAt(`redis+cluster://${cluster.nodes.map(({ host, port }) => `${host}:${port}`).join(',')}`);
        await gate.install(snapshot());
        expect(await gate.admit(request('x'))).toMatchObject({ outcome: 'admitted' });
        const key = `${PREFIX}:{7:0}:gate`;
        const first = await cluster.ownerOf(key);
        const replicas = await Promise.all(
          cluster.nodes.map(async (node) => {
            const role = (await node.command('ROLE')) as unknown[];
            return role[0] === 'slave' && Number(role[2]) === first.port ? node : null;
          }),
        );
        for (const next of [replicas.find((node) => node !== null)!, first]) {
          await until('it takes over', 30_000, async () => {
            await next.command('CLUSTER', 'FAILOVER').catch(() => null);
            await sleep(300);
            return ((await next.command('ROLE')) as unknown[])[0] === 'master';
          });
        }
        const verdict = await until('it answers again', 30_000, async () => {
          const said = await gate.admit(request('y')).catch(() => null);
          return (await cluster.ownerOf(key)) === first ? said : null;
        });
        expect(verdict).toEqual({ outcome: 'stale' });
        await gate.install(snapshot({ epoch: 2 }));
        expect(await gate.admit(request('y'))).toMatchObject({ outcome: 'admitted' });
      },
      120_000,
    );
  });

  describe('building', () => {
    beforeEach(() => use());

    /** A builder whose connection to Redis stops as soon as the first holds are written. */
    async function stoppedBuilder(epoch: number): Promise<{ built: Promise<unknown>; proxy: FaultProxy }> {
      const proxy = await startProxy(server.port);
      const slow = gateAt(`redis://${proxy.host}:${proxy.port}`, { commandMs: 10_000 });
      proxy.delay(3, 'toClient');
      const built = slow.install(snapshot({ epoch, holds: manyHolds(20_000) })).then(
        () => 'done',
        (error: { code: string }) => error.code,
      );
      await until('it builds', 5000, async () => (await eye.hlen(`${PREFIX}:{7:0}:${epoch}:holds`)) > 1000);
      proxy.freeze();
      proxy.delay(0);
      await sleep(20);
      expect(await eye.hlen(`${PREFIX}:{7:0}:${epoch}:holds`)).toBeLessThan(20_000);
      return { built, proxy };
    }

    it('a gate that is being built sells nothing, and the one in force goes on', async () => {
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      const { built, proxy } = await stoppedBuilder(2);
      expect(await gate.admit(request('x'))).toMatchObject({ outcome: 'admitted', message: { epoch: 1 } });
      proxy.thaw();
      expect(await built).toBe('done');
      expect(await gate.view(SALE)).toMatchObject([{ queued: 0, held: 20_000 }]);
    });

    it('P1: a builder that was overtaken and wakes up changes nothing', async () => {
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      const { built, proxy } = await stoppedBuilder(2);
      await gate.install(snapshot({ epoch: 3 }));
      await gate.admit(request('x'));
      const before = (await eye.keys('*')).sort();
      proxy.thaw();
      expect(await built).toBe('done');
      expect((await eye.keys('*')).sort()).toEqual(before);
      expect(before.filter((key) => key.includes(':2:'))).toEqual([]);
      expect(await gate.view(SALE)).toMatchObject([{ free: 299, queued: 1, held: 0 }]);
      expect(await gate.epochOf(SALE)).toBe(3);
    });

    it('P1: of two builders of one epoch the later one counts', async () => {
      const { built, proxy } = await stoppedBuilder(2);
      const gate = gateAt(server.url);
      const again = gate.install(snapshot({ epoch: 2, holds: manyHolds(5) }));
      await again;
      proxy.thaw();
      // It is in force, with the content of the later build.
      expect(await built).toBe('done');
      expect(await gate.view(SALE)).toMatchObject([{ held: 5 }]);
      expect(await eye.hlen(`${PREFIX}:{7:0}:2:holds`)).toBe(5);
    });

    it('P2: what was lost while it was being built is noticed, and it does not open', async () => {
      const { built, proxy } = await stoppedBuilder(2);
      await eye.hdel(`${PREFIX}:{7:0}:2:holds`, 'owner 7');
      proxy.thaw();
      expect(await built).toBe('unavailable');
      expect(await eye.exists(`${PREFIX}:{7:0}:gate`)).toBe(0);
    });

    it('a Redis that forgets everything in the middle: it fails, and can be built again', async () => {
      const { built, proxy } = await stoppedBuilder(2);
      await eye.flushall();
      proxy.thaw();
      expect(await built).toBe('unavailable');
      const gate = gateAt(server.url);
      await gate.install(snapshot({ epoch: 2 }));
      expect(await gate.admit(request('x'))).toMatchObject({ outcome: 'admitted' });
    });

    it('P10: what a builder that died has left is taken away by the next one as it begins', async () => {
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      for (const epoch of [2, 3]) {
        const content = (async function* () {
          yield { holds: manyHolds(3000), keys: [] };
          throw new Error('the ledger is out');
        })();
        await expect(gate.install({ ...snapshot({ epoch }), content })).rejects.toThrow('the ledger is out');
        const left = (await eye.keys('*')).filter((key) => /:[23]:/.test(key));
        expect(left.sort()).toEqual([`${PREFIX}:{7:0}:${epoch}:holds`, `${PREFIX}:{7:0}:${epoch}:items`]);
      }
      expect(await gate.admit(request('x')), 'the one in force goes on').toMatchObject({ outcome: 'admitted' });
      await gate.install(snapshot({ epoch: 4, holds: manyHolds(5) }));
      expect((await eye.keys('*')).filter((key) => /:[23]:/.test(key))).toEqual([]);
      expect((await eye.smembers(`${PREFIX}:{7:0}:epochs`)).sort()).toEqual(['1', '4']);
    });

    it.each([
      ['every chunk', /^/],
      // Each buyer's second order is on a later page, so that the number of fields does not show a chunk that is written twice.
      ['chunks that add no field', /,1,s,2/],
    ])(
      'P4: in a cluster ioredis may send a chunk twice, also after later ones; it counts once: %s',
      async (_, which) => {
        class Repeating extends RedisLink {
          readonly #late: string[] = [];

          override send(...[script, keys, parts, wire, sentMs, asker]: Parameters<RedisLink['send']>): void {
            if (script === scriptNamed('build-chunk') && which.test(wire)) {
              const unheard = { answered: () => undefined, failed: asker.failed };
              // The reply to the first copy is lost, and another copy of the chunk before the last arrives late.
              for (const copy of [...this.#late.splice(0, this.#late.length - 1), wire]) {
                super.send(script, keys, partsOf(copy).length, copy, sentMs, unheard);
              }
              this.#late.push(wire);
            }
            super.send(script, keys, parts, wire, sentMs, asker);
          }
        }
        const keepAlive = new KeepAlive();
        const events = { message: () => undefined, interrupted: () => undefined };
        const link = new Repeating(server.url, { commandMs: 5000 }, systemRuntime(), keepAlive, events);
        const holds = [1, 2].flatMap((slot) =>
          manyHolds(1000).map((hold) => ({ ...hold, orderId: `${slot}${hold.orderId}`, slots: [slot] })),
        );
        const keys = holds.map(({ buyer, orderId }) => ({
          buyer,
          key: orderId,
          orderId,
          fingerprint: 'f',
          boundAtMs: 5,
        }));
        const items = [{ ...snapshot().items[0]!, total: 3000 }];
        try {
          const on = { link, layout: new Layout(PREFIX), runtime: systemRuntime() };
          expect(await install(on, snapshot({ perBuyer: 3, items, holds, keys }), false)).toBe(1);
        } finally {
          link.close();
          keepAlive.close();
        }
        const held = await eye.hgetall(`${PREFIX}:{7:0}:1:holds`);
        expect(Object.keys(held)).toHaveLength(1000);
        for (const { buyer, orderId } of manyHolds(1000)) {
          expect(held[buyer]).toBe(`1${orderId},1,s,1;2${orderId},1,s,2`);
        }
        expect(await eye.hlen(`${PREFIX}:{7:0}:1:keys`)).toBe(2000);
        const fields = await eye.hkeys(`${PREFIX}:{7:0}:1:items`);
        expect(fields.filter((field) => /^(build|chunk)/.test(field))).toEqual([]);
        const gate = gateAt(server.url);
        expect(await gate.view(SALE)).toMatchObject([{ held: 2000, free: 1000 }]);
        expect(await gate.admit(request('owner 7'))).toMatchObject({ outcome: 'admitted' });
        expect(await gate.admit(request('owner 7'))).toMatchObject({ outcome: 'limit_reached' });
      },
    );

    it('P9: a large gate is built whole', async () => {
      const gate = gateAt(server.url);
      const items = Array.from({ length: 200 }, (_, at) => {
        return {
          id: String(100 + at),
          code: `item ${at}`,
          price: { amount: at, currency: 'CNY' },
          total: 500,
          blocked: 1,
          rev: 1,
        };
      });
      const holds = manyHolds(20_000).map((hold, at) => ({ ...hold, itemId: String(100 + (at % 200)) }));
      const keys = holds.map(({ buyer, orderId }) => ({ buyer, key: 'k', orderId, fingerprint: 'f', boundAtMs: 5 }));
      await gate.install(snapshot({ items, holds, keys }));
      const views = (await gate.view(SALE))!;
      expect(views).toHaveLength(200);
      for (const view of views) expect(view).toMatchObject({ total: 500, held: 100, free: 399, blocked: 1 });
      const again = request('owner 19999', { itemCode: 'item 7', key: 'k', fingerprint: 'f' });
      expect(await gate.admit(again)).toEqual({ outcome: 'replayed', orderId: '10019999' });
      await gate.pruneKeys(Date.now() - 6);
      expect(await eye.exists(`${PREFIX}:{7:0}:1:keys`)).toBe(0);
      // Every order of the batch is for another item: more groups than in a usual batch.
      const verdicts = await Promise.all(
        items.map(({ code }, at) => gate.admit(request(`b ${at}`, { itemCode: code }))),
      );
      expect(outcomes(verdicts)).toEqual({ admitted: 200 });
      expect(verdicts.every((verdict, at) => 'message' in verdict && verdict.message.itemId === items[at]!.id)).toBe(
        true,
      );
    });

    it('P5: a key that was bound anew since it was read is not forgotten', async () => {
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      const order = request('x', { key: 'k' });
      await gate.admit(order);
      await gate.settle(SALE, [order]);
      const sale = new Layout(PREFIX).sale(SALE);
      const { holds, keys } = sale.of(1);
      const [bound, before] = [await eye.hget(keys, 'x\nk'), '999 5 voucher x1'];
      const keepAlive = new KeepAlive();
      const events = { message: () => undefined, interrupted: () => undefined };
      const link = new RedisLink(server.url, { commandMs: 5000 }, systemRuntime(), keepAlive, events);
      try {
        const prune = (binding: string) =>
          link.script(scriptNamed('prune-keys'), [sale.gate, holds, keys], ['1', 'x\nk', binding]);
        expect(await prune(before)).toBe('0');
        expect(await gate.keyOf(SALE, 'x', 'k')).toMatchObject({ orderId: order.orderId });
        expect(await prune(bound!)).toBe('1');
      } finally {
        link.close();
        keepAlive.close();
      }
    });

    it('P10: keys of a sale that cannot be asked hold up no other’s: those are forgotten, and it fails at the end', async () => {
      const gate = gateAt(server.url);
      const holds = manyHolds(1);
      const keys = holds.map(({ buyer, orderId }) => ({ buyer, key: 'k', orderId, fingerprint: 'f', boundAtMs: 5 }));
      // Redis lists numbers in order, so the broken one comes first.
      for (const saleId of ['7', '8']) await gate.install(snapshot({ saleId, holds, keys }));
      await eye.set(`${PREFIX}:{7:0}:gate`, 'not a hash');
      await expect(gate.pruneKeys(Date.now() - 6)).rejects.toThrow('WRONGTYPE');
      expect(await eye.keys('*:1:keys')).toEqual([`${PREFIX}:{7:0}:1:keys`]);
    });
  });

  describe('an outage', () => {
    it('a silent Redis: after one time limit orders fail at once, and it recovers by itself', async () => {
      await use();
      const gate = gateAt(server.url, { commandMs: 300, retryMs: 300 });
      await gate.install(snapshot());
      await server.pause();
      await expect(gate.admit(request('a'))).rejects.toMatchObject({ code: 'unavailable' });
      expect(gate.reason).toContain('Redis');
      const startMs = performance.now();
      const asked = Array.from({ length: 500 }, (_, at) => gate.admit(request(`buyer ${at}`)));
      expect(await fates(asked)).toEqual({ unavailable: 500 });
      expect(performance.now() - startMs).toBeLessThan(100);
      await sleep(1500);
      await server.resume();
      await until('it recovers', 3000, () => gate.reason === null);
      expect(await gate.admit(request('b'))).toMatchObject({ outcome: 'admitted' });
      expect(await gate.admit(request('b'))).toMatchObject({ outcome: 'limit_reached' });
    });

    it('a killed Redis: orders fail at once, and when it is back the gate is stale', async () => {
      await use();
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      await server.kill();
      await until('it is noticed', 1000, () => gate.reason !== null);
      const startMs = performance.now();
      expect(await fates([gate.admit(request('a'))])).toEqual({ unavailable: 1 });
      expect(performance.now() - startMs).toBeLessThan(50);
      await server.restart();
      await until('it recovers', 5000, () => gate.reason === null);
      expect(await gate.admit(request('b'))).toEqual({ outcome: 'stale' });
      await gate.install(snapshot({ epoch: 2 }));
      expect(await gate.admit(request('b'))).toMatchObject({ outcome: 'admitted' });
    });

    it('a killed Redis in the middle of a crowd: everybody is answered, and soon', async () => {
      await use();
      const gate = gateAt(server.url);
      await gate.install(snapshot({ items: [{ ...snapshot().items[0]!, total: 1_000_000 }] }));
      const takenMs: number[] = [];
      let stop = false;
      const loop = async (): Promise<void> => {
        while (!stop) {
          const startMs = performance.now();
          await gate.admit(request(`buyer ${lastOrder}`)).catch(() => sleep(5));
          takenMs.push(performance.now() - startMs);
        }
      };
      const loops = Promise.all(Array.from({ length: 200 }, loop));
      await sleep(300);
      await server.kill();
      await sleep(500);
      await server.restart();
      await until('it recovers', 5000, () => gate.reason === null);
      stop = true;
      await loops;
      expect(Math.max(...takenMs)).toBeLessThan(2500);
    });

    it('a Redis that is not there when the process starts: unavailable, then it comes', async () => {
      await use();
      await server.kill();
      const gate = gateAt(server.url, { commandMs: 200 });
      await expect(gate.admit(request('a'))).rejects.toMatchObject({ code: 'unavailable' });
      expect(gate.reason).not.toBeNull();
      await server.restart();
      await until('it recovers', 5000, () => gate.reason === null);
      expect(await gate.admit(request('a'))).toEqual({ outcome: 'stale' });
    });

    it('P4: in a cluster, a refusal during which a connection broke is not certain: ioredis may have sent it twice', async () => {
      const cluster = await startRedisCluster();
      const hosts = cluster.nodes.map(({ host, port }) => `${host}:${port}`).join(',');
      const gate = gateAt(`redis+cluster://${hosts}`, { commandMs: 5000, retryMs: 5000 });
      await gate.install(snapshot({ items: [{ ...snapshot().items[0]!, total: 0 }] }));
      expect(await gate.admit(request('a'))).toEqual({ outcome: 'sold_out' });
      const owner = await cluster.ownerOf(`${PREFIX}:{7:0}:gate`);
      await owner.command('CLIENT', 'PAUSE', '10000', 'WRITE');
      const asked = gate.admit(request('b'));
      await until('it is there', 2000, async () => /blocked_clients:[1-9]/.test(String(await owner.command('INFO'))));
      await owner.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
      await owner.command('CLIENT', 'UNPAUSE');
      expect(await asked).toEqual({ outcome: 'sold_out', uncertain: true });
      expect(await gate.admit(request('c'))).toEqual({ outcome: 'sold_out' });
    });

    it('in a cluster, one master that is silent takes only its own sales out', async () => {
      const cluster = await startRedisCluster({ args: ['--cluster-require-full-coverage', 'no'] });
      const hosts = cluster.nodes.map(({ host, port }) => `${host}:${port}`).join(',');
      const gate = gateAt(`redis+cluster://${hosts}`, { commandMs: 300, retryMs: 300 });
      const owner = await cluster.ownerOf(`${PREFIX}:{7:0}:gate`);
      let other = 8;
      while ((await cluster.ownerOf(`${PREFIX}:{${other}:0}:gate`)) === owner) other++;
      await gate.install(snapshot());
      await gate.install(snapshot({ saleId: String(other) }));
      await owner.pause();
      await expect(gate.admit(request('a'))).rejects.toMatchObject({ code: 'unavailable' });
      const startMs = performance.now();
      expect(await fates([gate.admit(request('a'))])).toEqual({ unavailable: 1 });
      expect(performance.now() - startMs).toBeLessThan(50);
      expect(await gate.admit(request('a', { saleId: String(other) }))).toMatchObject({ outcome: 'admitted' });
      await owner.resume();
      await until('it recovers', 10_000, async () => {
        return (await gate.admit(request('b')).catch(() => null))?.outcome === 'admitted';
      });
    });

    it('closing answers everybody', async () => {
      await use();
      const gate = gateAt(server.url);
      await gate.install(snapshot());
      await server.pause();
      const asked = Array.from({ length: 600 }, (_, at) => gate.admit(request(`buyer ${at}`)));
      await sleep(10);
      gate.close();
      const startMs = performance.now();
      expect(await fates([...asked, gate.admit(request('late'))])).toEqual({ unavailable: 601 });
      expect(performance.now() - startMs).toBeLessThan(500);
    });
  });
});
