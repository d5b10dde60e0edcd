import { isDeepStrictEqual } from 'node:util';
import { afterAll, expect, it } from 'vitest';
import { CrowdClient } from '../support/crowd-client.ts';
import { allFaults, ledgerOrders, NO_FAULTS, saleNow } from '../support/crowd-judge.ts';
import { below, CrowdRecord, crowdOf, seedOf, shuffled, type Try } from '../support/crowd-record.ts';
import { copyOfLedger, readLedger } from '../support/fault-ledger.ts';
import { startCalmServer } from '../support/fault-server.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, createSale } from '../support/server.ts';

const KILLS = LONG ? 100 : 3;
/** Enough for the sale to be open at the last kill: a round places up to 1500 orders of 1 to 3 units, and some more. */
const STOCK = KILLS * 2800;
const PER_BUYER = 3;
const BUYERS = STOCK;
const ENV = { METRICS_PUBLIC: 'on' };

afterAll(cleanUp);

/**
 * When the server is killed. `crowd`: with requests in flight. `idle`: when the crowd has just ended. `fold`: while the ledger
 * folds its tail into claims, keys and buyer_orders, and has written a part of it. `start`: right after the server listens, when
 * it has just rebuilt the gate and read its tail back.
 */
const INSTANTS = ['crowd', 'fold', 'crowd', 'idle', 'start'] as const;

it(
  `kill -9 in the middle of a crowd, ${KILLS} times, the same data folder: P1, P2, P3, P5, P9 hold and the sale goes on`,
  async () => {
    const { random, label } = seedOf('kill');
    const record = new CrowdRecord();
    const died = { crowd: 0, fold: 0, idle: 0, start: 0, inFlight: 0, midRound: 0, notFolded: 0 };
    let next = 0;
    let server = await startCalmServer({ env: ENV });
    const { data } = server;
    const saleId = await createSale(server, { stock: STOCK, perBuyer: PER_BUYER });

    for (let kill = 0; kill < KILLS; kill++) {
      const instant = INSTANTS[kill % INSTANTS.length]!;
      died[instant]++;
      const client = new CrowdClient(server.url, 64);
      if (kill > 0) await retry(client, shuffled(random, [...record.accepted().values()]).slice(0, 60));

      // After some answers and some milliseconds, to hit any instant of a commit, a turn or a slice of folding.
      const answersMax = instant === 'start' ? below(random, 5) : instant === 'fold' ? 1500 : 100 + below(random, 1200);
      const goes = instant === 'idle' || instant === 'fold';
      const before = record.tries.length;
      const crowd = crowdOf(buyers(), 96, async (buyer) => {
        const answers = record.tries.length - before;
        if (goes && answers >= answersMax) return false;
        const wish = { saleId, buyer, quantity: 1 + below(random, 3) };
        // A key belongs to one body: another quantity needs another key.
        const key = random.fraction() < 0.8 ? `${buyer} ${below(random, 3)} x${wish.quantity}` : undefined;
        const twice = random.fraction() < 0.2;
        const tries = Array.from({ length: twice ? 2 : 1 }, () => record.place(client, { ...wish, key }));
        const [first] = await Promise.all(tries);
        return first!.status !== 0;
      });
      if (goes) await crowd;
      else await until('enough answers', 10_000, () => record.tries.length - before >= answersMax);
      if (instant === 'fold') {
        const whole = await tail();
        await until('the fold has begun', 10_000, async () => (await tail()) < whole);
      } else {
        await sleep(below(random, instant === 'idle' ? 300 : 40));
      }
      await server.kill();
      client.close();
      await crowd;
      died.inFlight += record.tries.slice(before).filter(({ status }) => status === 0).length;

      // The ledger as the crash left it, before any repair.
      const left = readLedger(copyOfLedger(data), { folded: false });
      expect(left.faults, `${label} kill ${kill}`).toEqual([]);
      const lost = [...record.accepted().keys()].filter((id) => !left.orderIds.has(id));
      expect(lost, `${label} kill ${kill} (P3)`).toEqual([]);
      if (left.midRound) died.midRound++;
      died.notFolded += left.tail;

      server = await startCalmServer({ data, env: ENV });
      const [sale, orders] = [await saleNow(server, saleId), await ledgerOrders(server, saleId)];
      expect(allFaults(sale, orders, record.tries, PER_BUYER), `${label} kill ${kill}`).toEqual(NO_FAULTS);
      expect(sale.items[0]!.free, `${label}: nothing left to sell at kill ${kill}`).toBeGreaterThan(0);
    }
    expect(died.inFlight, label).toBeGreaterThan(0);
    expect(died.notFolded, label).toBeGreaterThan(0);
    expect(died.midRound, label).toBeGreaterThan(0);

    // P5 for every key, whether it got an answer or lost it; then the rest is sold, to the last unit.
    const client = new CrowdClient(server.url, 64);
    await retry(client, [...record.accepted().values()]);
    const unknown = record.tries.filter(({ status, key }) => status === 0 && key !== undefined);
    await crowdOf(unknown, 64, async ({ buyer, quantity, key }) =>
      record.place(client, { saleId, buyer, quantity, key }),
    );
    await crowdOf(lateBuyers(), 64, async (buyer) => {
      const { status } = await record.place(client, { saleId, buyer, quantity: 1 });
      return status === 201;
    });
    const [sale, orders] = [await saleNow(server, saleId), await ledgerOrders(server, saleId)];
    expect(allFaults(sale, orders, record.tries, PER_BUYER), label).toEqual(NO_FAULTS);
    expect(sale, label).toMatchObject({ state: 'sold_out', items: [{ total: STOCK, reserved: STOCK, free: 0 }] });
    expect(record.strange, label).toEqual([]);
    expect(record.tries.filter(({ status }) => status === 503).length, label).toBe(0);
    client.close();

    // Left alone, the ledger folds everything; then the file itself is read.
    await until('the ledger is folded', 20_000, async () => (await tail()) === 0);
    expect(await server.stop(), label).toBe(0);
    const file = readLedger(data, { folded: true });
    expect(file.faults, label).toEqual([]);
    expect(file.orderIds, label).toEqual(new Set(orders.map(({ id }) => id)));
    console.log(`${label}: ${record.tries.length} requests, ${orders.length} orders; kills ${JSON.stringify(died)}`);

    /** Committed orders that are not folded. */
    async function tail(): Promise<number> {
      const { body } = await server.call('GET', '/metrics');
      return Number(/^doorbuster_ledger_tail_orders (\d+)$/m.exec(body)![1]);
    }

    /** Buyers in random order, with repeats: some return after a restart of the server. */
    function* buyers(): Iterable<string> {
      for (;;) yield `buyer-${random.fraction() < 0.25 ? below(random, next + 1) : next++ % BUYERS}`;
    }

    function* lateBuyers(): Iterable<string> {
      for (let n = 0; ; n++) yield `late-${Math.floor(n / 3)}`;
    }

    /** A retry of an accepted key repeats the first answer byte for byte. */
    async function retry(client: CrowdClient, tries: Try[]): Promise<void> {
      const faults: string[] = [];
      await crowdOf(tries, 64, async ({ buyer, quantity, key, order }) => {
        if (key === undefined) return;
        const again = await record.place(client, { saleId, buyer, quantity, key });
        if (again.status !== 201 || !again.replayed || !isDeepStrictEqual(again.order, order)) {
          faults.push(`${buyer} ${key}: ${again.status} ${again.code} ${JSON.stringify(again.order)}`);
        }
      });
      expect(faults, `${label} (P5)`).toEqual([]);
    }
  },
  LONG ? 600_000 : 60_000,
);
