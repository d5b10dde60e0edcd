import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { KeepAlive } from '../../src/base/keep-alive.ts';
import { RedisLink } from '../../src/base/redis/link.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { PrefixFormat } from '../../src/gate/redis/format.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { actor } from '../../src/model/actor.ts';
import { type Format, SHARED } from '../../src/model/formats.ts';
import { buildSeatMap, encodeSeatMap } from '../../src/model/seat-map.ts';
import { until } from '../support/fault-wait.ts';
import { format1, MESSAGES } from '../support/formats/format-1.ts';
import { SEAT_MESSAGES, seats2 } from '../support/formats/seats-2.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { ADMIN_KEY, AUTH_SECRET, run } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis, describeWithPostgres } from '../support/servers/describe.ts';
import { postgresUrl } from '../support/servers/postgres.ts';
import { redisUrl } from '../support/servers/redis.ts';

/** The number of what stands in Redis: docs/internals/formats.md. */
describeWithAnyRedis('formats', () => {
  const runtime = systemRuntime();
  let target: string;
  let client: Redis;
  let prefix: string;
  const ends: (() => unknown)[] = [];

  beforeAll(async () => {
    target = await redisUrl();
    client = new Redis(target);
  });
  beforeEach(() => {
    prefix = `formats-${runtime.random.secret(6)}`;
  });
  afterEach(async () => {
    for (const end of ends.splice(0)) await end();
  });
  afterAll(async () => {
    client?.disconnect();
    await cleanUpServers();
  });

  it('the gate writes format 1, byte by byte', async () => {
    const gate = new RedisGate({ target, prefix, process: 'p1' }, runtime);
    ends.push(() => gate.close());
    const eye = client.duplicate();
    ends.push(() => eye.disconnect());
    const heard: string[] = [];
    await eye.subscribe(`${prefix}:wake`);
    eye.on('message', (_, message) => heard.push(message));
    await gate.install({
      ...{ saleId: '7', epoch: 3, version: 1, opensAtMs: 1000, closesAtMs: 9_000_000_000_000, mayAdmit: true },
      ...{ paused: false, closed: false, perBuyer: 2, payWithinSeconds: 900 },
      items: [{ id: '11', code: 'voucher', price: { amount: 8000, currency: 'CNY' }, total: 10, blocked: 1, rev: 2 }],
      content: [
        {
          holds: [{ orderId: '90', itemId: '11', buyer: 'ann', slots: [1] }],
          keys: [{ buyer: 'ann', key: 'k0', fingerprint: 'voucher x1', orderId: '90', boundAtMs: 5000 }],
        },
      ],
    });
    const [alone, ...others] = MESSAGES;
    expect(await gate.admit(alone!)).toEqual({ outcome: 'admitted', message: alone });
    const verdicts = await Promise.all(others.map((message) => gate.admit(message)));
    expect(verdicts).toEqual(others.map((message) => ({ outcome: 'admitted', message })));

    const begin = `${prefix}:{7:0}:`;
    const { run: _, replid: __, ...values } = await client.hgetall(`${begin}gate`);
    expect(values).toEqual(format1.gate);
    expect(await client.hgetall(`${begin}3:items`)).toEqual(format1.items);
    expect(await client.hgetall(`${begin}3:holds`)).toEqual(format1.holds);
    const keys = Object.entries(await client.hgetall(`${begin}3:keys`));
    const bound = keys.map(([name, value]) => [name, value.replace(/ \d{13} /, ' <ms> ')]);
    expect(Object.fromEntries(bound)).toEqual(format1.keys);
    const entries = await client.xrange(`${begin}3:stream`, '-', '+');
    expect(entries.map(([, fields]) => fields)).toEqual(format1.entries);
    expect(await client.smembers(`${begin}epochs`)).toEqual(['3']);
    expect(await client.smembers(`${prefix}:sales`)).toEqual(['7']);
    await until('the wake-ups are heard', 2000, () => heard.length === 2);
    expect(heard).toEqual([format1.wake, format1.wake]);
  });

  it('the gate writes format 2 for seats, byte by byte', async () => {
    const gate = new RedisGate({ target, prefix, process: 'p1' }, runtime);
    ends.push(() => gate.close());
    const rows = [
      { section: 'S', row: 'A', from: 1, to: 8 },
      { section: 'S', row: 'B', from: 1, to: 2 },
    ];
    const price = { amount: 68000, currency: 'CNY' };
    await gate.install({
      ...{ saleId: '7', epoch: 3, version: 1, opensAtMs: 1000, closesAtMs: 9_000_000_000_000, mayAdmit: true },
      ...{ paused: false, closed: false, perBuyer: 2, payWithinSeconds: 900 },
      items: [
        { id: '11', code: 'voucher', price, total: 10, blocked: 0, rev: 2 },
        {
          ...{ id: '12', code: 'stalls', price, total: 10, blocked: 1, rev: 5 },
          seats: { map: encodeSeatMap(buildSeatMap(rows)), blocked: [9] },
        },
      ],
      content: [
        { holds: [{ orderId: '90', itemId: '12', buyer: 'zoe', slots: [1], seats: [5], paid: true }], keys: [] },
      ],
    });
    const [alone, ...others] = SEAT_MESSAGES;
    expect(await gate.admit(alone!)).toEqual({ outcome: 'admitted', message: alone });
    const verdicts = await Promise.all(others.map((message) => gate.admit({ ...message, seats: 'together' })));
    expect(verdicts).toEqual(others.map((message) => ({ outcome: 'admitted', message })));

    const begin = `${prefix}:{7:0}:3:`;
    expect(await client.hgetall(`${begin}items`)).toMatchObject(seats2.items);
    expect(await client.hgetall(`${begin}holds`)).toEqual(seats2.holds);
    expect(await client.get(`${begin}seats`)).toBe(seats2.seats);
    expect(await client.lrange(`${begin}changes`, 0, -1)).toEqual(seats2.changes);
    const entries = await client.xrange(`${begin}stream`, '-', '+');
    expect(entries.map(([, fields]) => fields)).toEqual(seats2.entries);
    // The script of a version before seats finds no such item.
    expect(await gate.admit({ ...alone!, orderId: '300', seats: undefined })).toEqual({ outcome: 'not_found' });
  });

  it('a gate with seats is not built while a process runs that does not know them', async () => {
    const gate = new RedisGate({ target, prefix, shopId: 'shop', process: 'p1' }, runtime);
    ends.push(() => gate.close());
    await gate.claim();
    const map = encodeSeatMap(buildSeatMap([{ section: 'S', row: 'A', from: 1, to: 8 }]));
    const install = (seated: boolean): Promise<void> =>
      gate.install({
        ...{ saleId: '7', epoch: 3, version: 1, opensAtMs: 1000, closesAtMs: 9_000_000_000_000, mayAdmit: true },
        ...{ paused: false, closed: false, perBuyer: 2, payWithinSeconds: 900, content: [] },
        items: [
          {
            ...{ id: '12', code: 'stalls', price: { amount: 1, currency: 'CNY' }, total: 8, blocked: 0, rev: 5 },
            ...(seated && { seats: { map, blocked: [] } }),
          },
        ],
      });
    await client.hset(`${prefix}:format`, 'process:old', `1 ${Date.now()}`);
    await expect(install(true)).rejects.toMatchObject({ name: 'RetryableError', code: 'unavailable' });
    expect(await gate.epochOf('7')).toBeNull();
    await client.hdel(`${prefix}:format`, 'process:old');
    await install(true);
    expect(await gate.epochOf('7')).toBe(3);
    expect(await client.hget(`${prefix}:format`, 'format')).toBe('2');
  });

  describe('P:format', () => {
    const SILENT_MS = 60_000;
    let processes: number;

    beforeEach(() => {
      processes = 0;
    });

    /** A process of a version that reads these. */
    function process(reads: Format): PrefixFormat {
      const keepAlive = new KeepAlive(runtime.timers);
      const ignore = { message: () => undefined, interrupted: () => undefined };
      const link = new RedisLink(target, { commandMs: 1000 }, runtime, keepAlive, ignore);
      ends.push(() => {
        link.close();
        keepAlive.close();
      });
      return new PrefixFormat(link, `${prefix}:format`, reads, `p${++processes}`, SILENT_MS);
    }
    const ONE = { oldest: 1, newest: 1 };
    const TWO = { oldest: 1, newest: 2 };
    const THREE = { oldest: 2, newest: 3 };

    it('a prefix that has none is of format 1, and goes on', async () => {
      expect(await process(ONE).join(false)).toBe(1);
      expect(await client.hget(`${prefix}:format`, 'format')).toBe('1');
      expect(await process(TWO).join(false)).toBe(1);
    });

    it('a prefix that nobody has used begins with what the version before would read, too', async () => {
      expect(await process(THREE).join(true)).toBe(2);
      expect(await process(TWO).join(false)).toBe(2);
    });

    it('the next one comes into force when the last process has ended that does not read it, and not before', async () => {
      const [old, first, second] = [process(ONE), process(TWO), process(TWO)];
      for (const one of [old, first, second]) expect(await one.join(false)).toBe(1);
      // All of them have been running for long.
      await client.hset(`${prefix}:format`, 'since', 0);
      for (const one of [old, first, second]) expect(await one.join(false)).toBe(1);
      const heard = (agoMs: number): Promise<unknown> =>
        client.hset(`${prefix}:format`, 'process:p1', `1 ${Date.now() - agoMs}`);
      await heard(SILENT_MS / 2);
      expect(await first.join(false)).toBe(1);
      await heard(SILENT_MS * 2);
      expect(await first.join(false)).toBe(2);
      expect(await second.join(false)).toBe(2);
      // It was only stopped, and wakes up: it must not go on.
      await expect(old.join(false)).rejects.toMatchObject({
        ...{ name: 'TerminalError', code: 'format_newer' },
        message: expect.stringContaining('reads 1: start the newer version here, workers first, then servers'),
      });
      expect(await first.look(Date.now())).toEqual({ inForce: 2, processes: [2, 2] });
      expect(await process(THREE).join(false)).toBe(2);
    });

    it('one that is needed comes into force at once under a prefix that began with processes that all read it', async () => {
      const [first, second] = [process(TWO), process(TWO)];
      expect(await first.join(true)).toBe(1);
      expect(await second.join(false)).toBe(1);
      expect(await second.join(false, 2)).toBe(2);
      expect(await first.join(false)).toBe(2);
      await expect(process(ONE).join(false)).rejects.toMatchObject({ code: 'format_newer' });
    });

    it('and not while one runs that does not, nor where others may not have been heard of yet', async () => {
      const [old, next] = [process(ONE), process(TWO)];
      expect(await next.join(true)).toBe(1);
      expect(await old.join(false)).toBe(1);
      expect(await next.join(false, 2)).toBe(1);
      await client.del(`${prefix}:format`);
      // Redis has lost everything: whoever knew the number waits for the others.
      expect(await next.join(true, 2)).toBe(1);
      expect(await next.join(false, 2)).toBe(1);
    });

    it('one that is too old is refused, in words that say what to do', async () => {
      await process(ONE).join(false);
      await expect(process(THREE).join(false)).rejects.toMatchObject({
        code: 'format_old',
        message: expect.stringMatching(
          /format 1, this doorbuster reads 2 and 3: .*version between.*empty the pipe.*delete/,
        ),
      });
      expect(Object.keys(await client.hgetall(`${prefix}:format`))).not.toContain('process:p2');
    });

    it('a Redis that forgets it is told again, and raises nothing before each process had time to come back', async () => {
      const [old, next] = [process(TWO), process(THREE)];
      expect(await next.join(true)).toBe(2);
      expect(await old.join(false)).toBe(2);
      await client.del(`${prefix}:format`);
      // Alone there now, but not for long enough.
      expect(await next.join(true)).toBe(2);
      expect(await next.join(false)).toBe(2);
      expect(await old.join(false)).toBe(2);
      await client.del(`${prefix}:format`);
      expect(await old.join(false), 'and not 1, though a shop is there').toBe(2);
    });
  });

  describeWithPostgres('a shop', () => {
    let database: string;
    beforeAll(async () => {
      database = await postgresUrl();
    });

    async function start({ worker = true } = {}): Promise<DistributedShop> {
      const ledger = await openSqlLedger(database, runtime, { migrate: true, exclusive: false });
      const shop = await DistributedShop.open(
        ledger,
        { redis: target, prefix, answerWithinMs: 2000, pipeMax: 1000, worker, writerLock: 'off' },
        runtime,
      );
      ends.push(() => shop.close());
      return shop;
    }

    let buyers = 0;
    let bought = '';
    const buy = (shop: DistributedShop, saleId: string): Promise<string> =>
      shop.place({ saleId, itemCode: 'voucher', buyer: `buyer-${++buyers}`, quantity: 1, key: null }).then(
        (result) => {
          if (!result.ok) return result.code;
          bought = result.order.id;
          return result.order.status;
        },
        (error: Error) => error.message,
      );

    it('of before there was a number goes on, and has one then; a newer one ends it, and no start is possible', async () => {
      const first = await start();
      const saleId = await createSaleIn(first);
      // As a version leaves it that knows of no number.
      await client.del(`${prefix}:format`);
      const second = await start({ worker: false });
      expect([await buy(first, saleId), await buy(second, saleId)]).toEqual(['reserved', 'reserved']);
      expect(await client.hget(`${prefix}:format`, 'format')).toBe('1');

      // The last process of this version has ended, as far as the others can tell.
      const epoch = await client.hget(`${prefix}:{${saleId}:0}:gate`, 'epoch');
      const holds = `${prefix}:{${saleId}:0}:${epoch}:holds`;
      const held = await client.hgetall(holds);
      const newer = SHARED.newest + 1;
      await client.hset(`${prefix}:format`, 'format', newer);
      const says = `${prefix}:format in Redis says format ${newer}`;
      await until('both are told', 5000, () =>
        [first, second].every((shop) => shop.readiness().parts.gate.includes(says)),
      );
      expect(first.readiness().status).toBe('unavailable');
      expect(await buy(first, saleId)).toContain(says);
      // The ledger takes a cancellation; its release waits for a process that knows the format.
      const cancelled = await first.cancelOrder(bought, actor('admin', 'admin'));
      expect(cancelled).toMatchObject({ order: { status: 'cancelled' } });
      expect(Object.keys(held)).toHaveLength(2);
      expect(await client.hgetall(holds), 'nothing is touched').toEqual(held);

      await expect(start()).rejects.toMatchObject({ name: 'TerminalError', code: 'format_newer' });
      const env = {
        ...{ REDIS_URL: target, DATABASE_URL: database, REDIS_PREFIX: prefix, LOG_LEVEL: 'fatal', PORT: '0' },
        ...{ DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET },
      };
      const [worker, doctor] = await Promise.all([run(['worker'], env), run(['doctor'], env)]);
      expect(worker).toMatchObject({ code: 1, stdout: '' });
      expect(worker.stderr.trimEnd().split('\n')).toEqual([expect.stringContaining(`doorbuster worker: ${says}`)]);
      expect(worker.stderr).toContain('workers first, then servers');
      expect(doctor.code).toBe(1);
      expect(doctor.stdout).toMatch(new RegExp(`✗ format +${says}`));
      expect(doctor.stdout).toMatch(/✓ shop /);
    }, 60_000);
  });
});
