import { readdirSync, readlinkSync } from 'node:fs';
import { afterAll, describe, expect, it } from 'vitest';
import { RetryableError } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import { CrowdClient } from '../support/crowd-client.ts';
import { allFaults, ledgerOrders, NO_FAULTS, saleNow } from '../support/crowd-judge.ts';
import { below, CrowdRecord, crowdOf, seedOf } from '../support/crowd-record.ts';
import { type FaultDisk, fileSizeLimit, tmpfsDisk, unmountDisks } from '../support/fault-disk.ts';
import { readLedger } from '../support/fault-ledger.ts';
import { startCalmServer } from '../support/fault-server.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, createSale, type TestServer } from '../support/server.ts';

const ENV = { LOG_LEVEL: 'fatal' };
/** “Within a few seconds”, without a restart. */
const RECOVERY_MS_MAX = 4_000;

const mountable = tmpfsDisk(1) !== null;
const disks: [name: string, make: () => FaultDisk][] = [['a limit on the size of files (ulimit -f)', fileSizeLimit]];
if (mountable) disks.unshift(['a full disk (tmpfs)', () => tmpfsDisk(24)!]);
else console.warn('NOT TESTED: a full tmpfs. This machine does not let us mount one; only ulimit -f is tried.');

afterAll(async () => {
  unmountDisks();
  await cleanUp();
});

async function ready({ call }: Pick<TestServer, 'call'>): Promise<boolean> {
  return (await call('GET', '/readyz')).status === 200;
}

it.runIf(mountable)('P10: on a nearly full disk posts and comments are refused, and orders go on', async () => {
  const disk = tmpfsDisk(64)!;
  const server = await startCalmServer({ data: disk.folder, env: ENV });
  const saleId = await createSale(server, { stock: 100 });
  const post = async () => {
    const body = { title: 'Queue', content: 'Long.' };
    const { status, body: answer } = await server.call('POST', '/v1/posts', { buyer: 'ann', body });
    return [status, answer.code, answer.id];
  };
  const order = async (buyer: string) => {
    return (await server.call('POST', `/v1/sales/${saleId}/orders`, { buyer, body: { item: 'voucher' } })).status;
  };
  const [status, , id] = await post();
  expect(status).toBe(201);
  // A twentieth of it is 3.2 MiB.
  disk.leave(3 * 2 ** 20);
  await until('posts are refused', 5000, async () => (await post())[0] === 503);
  expect((await post()).slice(0, 2)).toEqual([503, 'unavailable']);
  const said = { buyer: 'ann', body: { content: 'Yes.' } };
  expect((await server.call('POST', `/v1/posts/${id}/comments`, said)).status).toBe(503);
  const edit = { buyer: 'ann', body: { title: 'New', version: 1 } };
  expect((await server.call('PATCH', `/v1/posts/${id}`, edit)).status).toBe(503);
  expect([await order('bob'), await ready(server), await order('cem')]).toEqual([201, true, 201]);
  expect((await server.call('DELETE', `/v1/posts/${id}`, { buyer: 'ann' })).status).toBe(200);
  disk.free();
  await until('posts are taken again', 5000, async () => (await post())[0] === 201);
});

// The short run tests the crowd on one kind of disk, and the start on both.
describe.each(disks)('%s', (_, make) => {
  it.runIf(LONG || make === disks[0]![1])(
    'in the middle of a crowd: 503 and why, reads and replays go on, nothing is lost, it recovers by itself',
    async () => {
      const { random, label } = seedOf('disk');
      const STOCK = 6_000;
      const PER_BUYER = 3;
      const disk = make();
      let server = await startCalmServer({ data: disk.folder, env: ENV });
      const saleId = await createSale(server, { stock: STOCK, perBuyer: PER_BUYER });
      const client = new CrowdClient(server.url, 64);
      const record = new CrowdRecord();
      const accepted = (): number => record.tries.filter(({ status }) => status === 201).length;

      let over = false;
      const crowd = crowdOf(buyers(), 48, async (buyer) => {
        const quantity = 1 + below(random, 3);
        // A buyer who gets 503 retries once with the same key.
        const wish = { saleId, buyer, quantity, key: `${buyer} x${quantity}` };
        if ((await record.place(client, wish)).status === 503) await record.place(client, wish);
        return !over;
      });
      await until('some orders', 10_000, () => accepted() > 300);
      disk.fill(server);
      await until('the disk is felt', 10_000, () => record.tries.at(-1)!.status === 503);

      const why = await until('/readyz says why', 2_000, async () => {
        const answer = await server.call('GET', '/readyz');
        return answer.status === 503 ? answer.body : null;
      });
      expect(why, label).toMatchObject({ status: 'unavailable', parts: { ledger: expect.stringMatching(/disk/) } });
      expect((await server.call('GET', '/healthz')).status, label).toBe(200);

      // Reads go on, and the retry of an accepted order gets it.
      const [first] = record.accepted().values();
      const own = await server.call('GET', `/v1/orders/${first!.order!.id}`, { buyer: first!.buyer });
      expect([own.status, own.body], label).toEqual([200, first!.order]);
      expect((await server.call('GET', `/v1/sales/${saleId}`)).status, label).toBe(200);
      expect((await ledgerOrders(server, saleId)).length, label).toBeGreaterThan(0);
      const replays = [...record.accepted().values()].slice(0, 50);
      await crowdOf(replays, 8, async ({ buyer, quantity, key, order }) => {
        const again = await record.place(client, { saleId, buyer, quantity, key });
        expect([again.status, again.replayed, again.order], label).toEqual([201, true, order]);
      });
      // Calls of admins are refused with the same reason.
      await until('admins are told, too', 3_000, async () => {
        const answer = await server.call('POST', `/v1/sales/${saleId}/pause`, { admin: true, key: 'pause-1' });
        if (answer.status === 200) await server.call('POST', `/v1/sales/${saleId}/resume`, { admin: true });
        else
          expect([answer.status, answer.body.code, answer.headers.get('retry-after')]).toEqual([
            503,
            'unavailable',
            '1',
          ]);
        return answer.status === 503;
      });
      await sleep(400);

      disk.free(server);
      const freedAtMs = performance.now();
      await until('it recovers by itself', RECOVERY_MS_MAX, () => ready(server));
      const before = accepted();
      await until('and sells again', RECOVERY_MS_MAX, () => accepted() > before);
      const recoveredMs = performance.now() - freedAtMs;
      over = true;
      await crowd;

      // P5: a key whose first attempt got 503 is not stuck: it gets an order now, the first one if that was stored after all.
      const turnedAway = record.tries.filter(({ status }) => status === 503).slice(0, 400);
      await crowdOf(turnedAway, 16, async ({ buyer, quantity, key }) => {
        const again = await record.place(client, { saleId, buyer, quantity, key });
        expect(again.status, `${label}: ${buyer} ${again.code}`).toBe(201);
      });

      // To the last unit: exactly the units of the failed commits are free again.
      await crowdOf(lateBuyers(), 64, async (buyer) => (await record.place(client, { saleId, buyer })).status === 201);
      const [sale, orders] = [await saleNow(server, saleId), await ledgerOrders(server, saleId)];
      expect(allFaults(sale, orders, record.tries, PER_BUYER), label).toEqual(NO_FAULTS);
      expect(sale, label).toMatchObject({ state: 'sold_out', items: [{ total: STOCK, reserved: STOCK, free: 0 }] });
      expect(record.strange, label).toEqual([]);
      const refused = record.tries.filter(({ status }) => status === 503);
      expect(refused.length, label).toBeGreaterThan(0);
      expect(refused.filter(({ code }) => code !== 'unavailable').length, label).toBe(0);
      client.close();

      // A restart after kill -9 finds the same.
      await server.kill();
      server = await startCalmServer({ data: disk.folder, env: ENV });
      expect(await ledgerOrders(server, saleId), label).toEqual(orders);
      expect((await saleNow(server, saleId)).items, label).toEqual(sale.items);
      expect(await server.stop(), label).toBe(0);
      expect(readLedger(disk.folder, { folded: false }).faults, label).toEqual([]);
      console.log(`${label}: ${refused.length} × 503, back after ${Math.round(recoveredMs)} ms`);

      function* buyers(): Iterable<string> {
        for (let n = 0; ; n++) yield `buyer-${n}`;
      }

      function* lateBuyers(): Iterable<string> {
        for (let n = 0; ; n++) yield `late-${n}`;
      }
    },
  );

  it('already at the start: the server is up, answers 503, says why, and opens when there is space', async () => {
    const disk = make();
    disk.fill();
    const server = await startCalmServer({ data: disk.folder, env: ENV, under: disk.under });
    expect((await server.call('GET', '/healthz')).status).toBe(200);
    const why = await server.call('GET', '/readyz');
    expect([why.status, why.body]).toMatchObject([
      503,
      { parts: { ledger: expect.stringMatching(/disk|not writable/) } },
    ]);
    const order = await server.call('POST', '/v1/sales/1/orders', { buyer: 'alice', body: { item: 'voucher' } });
    expect([order.status, order.body.code, order.headers.get('retry-after')]).toEqual([503, 'unavailable', '1']);

    disk.free(server);
    await until('it opens by itself', RECOVERY_MS_MAX, () => ready(server));
    const saleId = await createSale(server, { stock: 1 });
    const sold = await server.call('POST', `/v1/sales/${saleId}/orders`, { buyer: 'alice', body: { item: 'voucher' } });
    expect(sold.status).toBe(201);
    expect(await server.stop()).toBe(0);
  });
});

describe.runIf(mountable)('a nearly full disk (tmpfs)', () => {
  it('at the start after kill -9: what was accepted is there when there is space', async () => {
    const disk = tmpfsDisk(24)!;
    let server = await startCalmServer({ data: disk.folder, env: ENV });
    const saleId = await createSale(server, { stock: 500 });
    const client = new CrowdClient(server.url, 16);
    const record = new CrowdRecord();
    await crowdOf(
      Array.from({ length: 300 }, (_, n) => `buyer-${n}`),
      16,
      (buyer) => record.place(client, { saleId, buyer, key: 'k' }),
    );
    client.close();
    await server.kill();
    disk.fill();

    server = await startCalmServer({ data: disk.folder, env: ENV });
    const late = new CrowdClient(server.url, 1);
    // The rebuild may fit into space that its own files already have; if it sells, it sells correctly.
    expect([201, 503]).toContain((await record.place(late, { saleId, buyer: 'new' })).status);
    disk.free();
    await until('it is ready', RECOVERY_MS_MAX, () => ready(server));
    expect((await record.place(late, { saleId, buyer: 'newer' })).status).toBe(201);
    late.close();
    const orders = await ledgerOrders(server, saleId);
    expect(allFaults(await saleNow(server, saleId), orders, record.tries, 1)).toEqual(NO_FAULTS);
    expect(await server.stop()).toBe(0);
  });

  it('stops in order while it is full, and has everything when it starts again', async () => {
    const disk = tmpfsDisk(8)!;
    let server = await startCalmServer({ data: disk.folder, env: ENV });
    const saleId = await createSale(server, { stock: 10_000 });
    const record = new CrowdRecord();
    const client = new CrowdClient(server.url, 32);
    let n = 0;
    const place = () => record.place(client, { saleId, buyer: `buyer-${n++}`, key: 'k' });
    await crowdOf(Array(200), 32, place);
    disk.fill();
    await until(
      'it is out',
      10_000,
      async () => (await Promise.all(Array.from({ length: 100 }, place))).at(-1)!.status === 503,
    );
    expect(await server.stop()).toBe(0);
    client.close();
    disk.free();
    server = await startCalmServer({ data: disk.folder, env: ENV });
    const orders = await ledgerOrders(server, saleId);
    expect(allFaults(await saleNow(server, saleId), orders, record.tries, 1)).toEqual(NO_FAULTS);
    expect(await server.stop()).toBe(0);
  });

  it('any amount of space at the first start: it opens, or it is out for now; never a mistake that ends the start', async () => {
    const faults: string[] = [];
    for (let kilobytes = 0; kilobytes <= 240; kilobytes += 12) {
      const disk = tmpfsDisk(1)!;
      disk.leave(kilobytes * 1024);
      for (const round of ['full', 'freed']) {
        try {
          await SqliteLedger.open(disk.folder, systemRuntime()).close();
        } catch (error) {
          const retryable = error instanceof RetryableError && error.code === 'unavailable';
          if (!retryable || round === 'freed') faults.push(`${kilobytes} KiB, ${round}: ${error}`);
        }
        disk.free();
      }
    }
    expect(faults).toEqual([]);
  });

  it('an opening that fails leaves no file open: the server tries again every second', () => {
    const disk = tmpfsDisk(1)!;
    disk.leave(80 * 1024);
    expect(() => SqliteLedger.open(disk.folder, systemRuntime())).toThrow();
    const open = readdirSync('/proc/self/fd').map((fd) => {
      try {
        return readlinkSync(`/proc/self/fd/${fd}`);
      } catch {
        return '';
      }
    });
    expect(open.filter((file) => file.startsWith(disk.folder))).toEqual([]);
  });
});
