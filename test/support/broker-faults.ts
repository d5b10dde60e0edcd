import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { Random } from '../../src/base/random.ts';
import type { BrokerKind } from './broker-kinds.ts';
import { ANSWER_WITHIN_MS, BrokerShop, type DatabaseKind, type OwnGround, startGround } from './broker-shop.ts';
import { below, oneOf, seedOf, shuffled, type Try } from './crowd-record.ts';
import type { TestWorker } from './distributed.ts';
import { DistributedCrowd } from './distributed-crowd.ts';
import { sleep, until } from './fault-wait.ts';
import { LONG } from './long.ts';
import { cleanUp } from './server.ts';
import { cleanUpServers } from './servers/clean-up.ts';

const MINUTES = 60_000;
/** How much later than ANSWER_WITHIN_MS an answer may come: two cores, on which servers are starting. */
const MARGIN_MS = 2_000;
/** From the moment the broker serves again until every waiting order is reserved. */
const CAUGHT_UP_MS = 10_000;
/** Longer than the relay's lease (3 s), and than a broker waits for a silent worker (RabbitMQ 10 to 15 s, Kafka 10 s). */
const STOPPED_MS = 25_000;
/** A broker that is stopped for less than its answers may take counts only as slow. */
const OUT_MS = { 'kill -9': LONG ? 30_000 : 3_000, SIGSTOP: LONG ? 30_000 : 6_000 };

type Victim = 'api' | 'relay' | 'worker' | 'broker';

/** A part of the crowd, and the processes that are killed together in the middle of it. */
interface Round {
  buyers: number;
  victims: readonly { victim: Victim; downMs: number }[];
}

/** Derived from the seed; every kind of process is killed at least once. */
function roundsOf(random: Random, buyers: number): Round[] {
  const groups: Victim[][] = [];
  if (LONG) {
    const all: Victim[] = ['api', 'relay', 'worker', 'broker'];
    const victims = shuffled(random, [...all, ...Array.from({ length: 26 }, () => oneOf(random, all))]);
    while (victims.length > 0) groups.push([...new Set(victims.splice(0, 1 + below(random, 2)))]);
  } else {
    // Kafka waits 10 s for dead workers, and meanwhile goes on with the others.
    groups.push(shuffled(random, ['relay', 'worker']), shuffled(random, ['broker', 'api']));
  }
  return groups.map((group) => ({
    buyers: Math.ceil(buyers / groups.length),
    victims: group.map((victim) => ({ victim, downMs: below(random, LONG ? 3_000 : 500) })),
  }));
}

export interface FaultNames {
  /** Random kills of everything. */
  kills: boolean;
  /** Which outages a short run covers; a long one covers all. */
  outages: readonly ('kill -9' | 'SIGSTOP')[];
  rebuilds: readonly ('FLUSHALL' | 'its items are gone')[];
  overload: boolean;
}

/** Tests of a shop whose orders go through a broker, with API, workers and broker killed and stopped. */
export function brokerFaults(kind: BrokerKind, databaseKind: DatabaseKind, quick: FaultNames): void {
  let ground: OwnGround;
  beforeAll(async () => {
    ground = await startGround(kind, databaseKind, 3);
  }, MINUTES);
  // A test reuses the shop of the one before if that passed, and creates its own sale.
  let last: BrokerShop | null = null;
  afterEach(async ({ task }) => {
    if (task.result?.state === 'pass') return;
    await cleanUp();
    last = null;
  });
  const shopOf = async (): Promise<BrokerShop> => {
    last = last === null ? await BrokerShop.start(ground) : await last.mended(2, 2);
    await sleep(Math.max(ground.preparedMs + kind.lastsAfterMs - performance.now(), 0));
    return last;
  };
  afterAll(async () => {
    await cleanUp();
    await cleanUpServers();
  });

  it.runIf(LONG || quick.kills)(
    'P1, P2, P3, P5, P9: API, relay, worker, database and broker are killed (-9) at random',
    async () => {
      const { random, label } = seedOf(`${kind.name} on ${databaseKind.name}, killed at random`);
      // One and a half units per order, so that the sale is not sold out before the last kill.
      const plan = { buyers: LONG ? 20_500 : 1_300, stock: LONG ? 36_000 : 2_400, perBuyer: 2, atOnce: 96 };
      const broker = await shopOf();
      const { shop } = broker;
      const crowd = new DistributedCrowd(shop, random);
      const saleId = await crowd.createSale(plan);

      let struck = false;
      const strike = async (victim: Victim, downMs: number): Promise<void> => {
        const { server } = crowd;
        if (victim === 'api') crowd.died(server);
        await (victim === 'api' ? server : ground.broker).kill();
        struck = true;
        await sleep(downMs);
        await (victim === 'api' ? shop.startServer() : ground.broker.restart());
      };
      const strikeWorkers = async (workers: readonly TestWorker[], downMs: number): Promise<void> => {
        // The database is down for a moment, so that the workers can neither commit nor be committing what they hold.
        await ground.database.kill();
        await sleep(200);
        await Promise.all(workers.map((worker) => worker.kill()));
        await ground.database.restart();
        struck = true;
        await sleep(downMs);
        await broker.mended(0, 2);
      };
      const rounds = roundsOf(random, plan.buyers);
      const shown = rounds.map(({ victims }) => victims.map((one) => `${one.victim}/${one.downMs}`).join('+'));
      console.log(`${label}: ${rounds[0]!.buyers} buyers each: ${shown.join(' ')}`);
      const begunMs = performance.now();
      const lasted: number[] = [];
      for (const [at, { buyers, victims }] of rounds.entries()) {
        const roundMs = performance.now();
        const enough = crowd.record.accepted().size + buyers / 4;
        const inTheMiddle = (): Promise<unknown> =>
          until('the crowd is there', MINUTES, () => crowd.record.accepted().size > enough);
        const relaying = await broker.relaying(saleId);
        const other = broker.workers.find((worker) => worker !== relaying)!;
        const workers = victims.flatMap(({ victim }) => {
          return victim === 'relay' ? [relaying] : victim === 'worker' ? [other] : [];
        });
        struck = false;
        await Promise.all([
          crowd.run(saleId, { ...plan, buyers }, `buyer-${at}`),
          // Keep buying, so that there are orders at the moment of the kill.
          crowd.keepBuying(saleId, 12, () => struck),
          ...victims.map(async ({ victim, downMs }) => {
            if (victim !== 'api' && victim !== 'broker') return;
            await inTheMiddle();
            await strike(victim, downMs);
          }),
          workers.length > 0 && inTheMiddle().then(() => strikeWorkers(workers, victims[0]!.downMs)),
        ]);
        lasted.push(Math.round(performance.now() - roundMs));
      }
      const crowdMs = performance.now() - begunMs;

      const { orders: stored } = await broker.expectWhole(crowd, saleId, plan.perBuyer, label);
      const tookMs = Math.round(performance.now() - begunMs);
      console.log(
        `${label}: ${crowd.summary()}; ${stored.length} orders in the ledger, crowd ${Math.round(crowdMs)} ms, ` +
          `at rest after ${tookMs} ms; rounds of ${lasted.join(', ')} ms`,
      );
      expect(crowd.record.accepted().size, label).toBeGreaterThanOrEqual(plan.buyers);
      const end = await crowd.buyTheRest(saleId);
      expect(end, label).toMatchObject({ state: 'sold_out', items: [{ reserved: plan.stock, free: 0, queued: 0 }] });
      await broker.expectWhole(crowd, saleId, plan.perBuyer, label);
      crowd.close();
    },
    15 * MINUTES,
  );

  describe('the broker is out during a crowd', () => {
    const outages = {
      'kill -9': { begin: () => ground.broker.kill(), end: () => ground.broker.restart() },
      SIGSTOP: { begin: () => ground.broker.pause(), end: () => ground.broker.resume() },
    };
    it.each(LONG ? (['kill -9', 'SIGSTOP'] as const) : quick.outages)(
      'P3: buyers keep getting answers, and all is reserved soon after: %s',
      async (name) => {
        const outMs = OUT_MS[name];
        const { random, label } = seedOf(`${kind.name}, out for ${outMs} ms by ${name}`);
        const broker = await shopOf();
        const crowd = new DistributedCrowd(broker.shop, random);
        const saleId = await crowd.createSale({ stock: 1_000_000, perBuyer: 1 });
        let stopped = false;
        const crowding = crowd.keepBuying(saleId, 48, () => stopped);
        await until('the crowd is there', 10_000, () => crowd.record.accepted().size > 300);

        await outages[name].begin();
        const outAtMs = performance.now();
        await sleep(outMs);
        const during = crowd.record.tries.filter(({ sentAtMs }) => sentAtMs > outAtMs);
        await outages[name].end();
        const backAtMs = performance.now();
        stopped = true;
        await crowding;
        await until(`${label}: all that waited is reserved`, CAUGHT_UP_MS, async () => {
          const [row] = await broker.query(
            `SELECT count(*) AS n FROM orders WHERE sale_id = '${saleId}' AND status = 'reserved'`,
          );
          return Number(row!.n) >= crowd.record.accepted().size;
        });
        const caughtUpMs = performance.now() - backAtMs;
        const slowest = slowestOf(during);
        console.log(
          `${label}: ${crowd.summary()}; ${during.length} tries while it was out, slowest ${Math.round(slowest)} ms; ` +
            `all is reserved ${Math.round(caughtUpMs)} ms after it was back`,
        );

        // The shop answered all the time, and every answer was an order.
        expect(during.length, label).toBeGreaterThan((outMs / 1000) * 20);
        expect([...new Set(during.map(({ status }) => status))].toSorted(), label).toEqual([202]);
        expect(slowest, label).toBeLessThan(ANSWER_WITHIN_MS + MARGIN_MS);
        const { orders } = await broker.expectWhole(crowd, saleId, 1, label);
        expect(new Set(orders.map(({ status }) => status)), label).toEqual(new Set(['reserved']));
        crowd.close();
      },
      5 * MINUTES,
    );

    it.runIf(LONG || quick.overload)(
      'P3: for longer than PIPE_MAX allows: 503 `overloaded`, nothing is dropped, and it goes on afterwards',
      async () => {
        const { random, label } = seedOf(`${kind.name}, out for longer than PIPE_MAX allows`);
        const pipeMax = 60;
        const broker = await shopOf();
        const server = await broker.startServer({ PIPE_MAX: String(pipeMax), ANSWER_WITHIN_MS: '200' });
        const crowd = new DistributedCrowd({ ...broker.shop, servers: [server] }, random);
        const plan = { buyers: 250, stock: 200, perBuyer: 2, atOnce: 24 };
        const saleId = await crowd.createSale(plan);
        await crowd.run(saleId, { ...plan, buyers: 1 }, 'first');
        await ground.broker.kill();
        const crowding = crowd.run(saleId, plan);
        const overloaded = (): Try[] => crowd.record.tries.filter(({ code }) => code === 'overloaded');
        await until('it says overloaded', 10_000, () => overloaded().length > 50);
        const [item] = (await crowd.server.call('GET', `/v1/sales/${saleId}`)).body.items;
        // One script call admits a whole batch, so the bound may be exceeded by that.
        expect(item.queued, label).toBeLessThanOrEqual(2 * (pipeMax + plan.atOnce));
        await ground.broker.restart();
        await crowding;
        const { sale } = await broker.expectWhole(crowd, saleId, plan.perBuyer, label);
        console.log(`${label}: ${crowd.summary()}`);
        expect(sale.items[0], label).toMatchObject({ free: 0, reserved: plan.stock });
        crowd.close();
        await server.kill();
      },
      2 * MINUTES,
    );
  });

  it.runIf(LONG)(
    'P1, P2, P3, P9: SIGSTOP of each worker in turn, for longer than every lease',
    async () => {
      const { random, label } = seedOf(`${kind.name}, workers are stopped`);
      const broker = await shopOf();
      const crowd = new DistributedCrowd(broker.shop, random);
      const saleId = await crowd.createSale({ stock: 1_000_000, perBuyer: 1 });
      let over = false;
      const crowding = crowd.keepBuying(saleId, 24, () => over);
      await until('the crowd is there', 10_000, () => crowd.record.accepted().size > 300);
      const told: string[] = [];
      // One worker leads the relay, and one, perhaps the same, gets the sale's messages.
      for (const { process: child } of broker.workers) {
        const sinceMs = performance.now();
        process.kill(child.pid!, 'SIGSTOP');
        await sleep(STOPPED_MS);
        const sold = crowd.record.tries.filter(({ status, sentAtMs }) => status === 201 && sentAtMs > sinceMs);
        process.kill(child.pid!, 'SIGCONT');
        const firstMs = Math.min(...sold.map(({ answeredAtMs }) => answeredAtMs)) - sinceMs;
        told.push(`the other one went on after ${Math.round(firstMs)} ms`);
        expect(sold.length, `${label}: the other one went on`).toBeGreaterThan(100);
        await sleep(5_000);
      }
      over = true;
      await crowding;
      const { orders } = await broker.expectWhole(crowd, saleId, 1, label);
      console.log(`${label}: ${crowd.summary()}; ${told.join(', ')}`);
      expect(new Set(orders.map(({ status }) => status)), label).toEqual(new Set(['reserved']));
      crowd.close();
    },
    5 * MINUTES,
  );

  const rebuilds = LONG ? (['FLUSHALL', 'its items are gone'] as const) : quick.rebuilds;
  describe.runIf(rebuilds.length > 0)('a rebuild under a new epoch while old messages wait in the broker', () => {
    it.each(rebuilds)(
      'P3, P9: they end rejected or were committed, and the rest is sold: %s',
      async (loss) => {
        const { random, label } = seedOf(`${kind.name}, rebuild: ${loss}`);
        const { redis, database } = ground;
        const broker = await shopOf();
        const { shop } = broker;
        const crowd = new DistributedCrowd(shop, random);
        const stock = 600;
        const saleId = await crowd.createSale({ stock, perBuyer: 2 });
        await crowd.run(saleId, { buyers: 40, stock, perBuyer: 2, atOnce: 24 }, 'early');

        // The ledger stores nothing: admitted orders go to the broker and stay there.
        await database.pause();
        await crowd.run(saleId, { buyers: 200, stock, perBuyer: 2, atOnce: 128 }, 'waits');
        await until('all has been sent', 15_000, () => broker.allSent(saleId));
        const old = new Set(crowd.record.tries.flatMap(({ status, order }) => (status === 202 ? [order!.id] : [])));
        expect(old.size, label).toBeGreaterThan(150);
        await ground.broker.pause();
        // The workers' messages are still at the broker.
        await Promise.all(broker.workers.map((worker) => worker.kill()));
        // After this only the broker knows the orders that this server answered 202.
        const dead = shop.servers[0]!;
        crowd.died(dead);
        await dead.kill();
        await database.resume();
        const epochKey = [broker.key(saleId, 'gate'), 'epoch'] as const;
        const before = Number(await redis.command('HGET', ...epochKey));
        if (loss === 'FLUSHALL') await redis.command('FLUSHALL');
        else await redis.command('DEL', broker.key(saleId, `${before}:items`));

        // New orders go to the new gate; no worker carries them yet.
        await crowd.run(saleId, { buyers: 40, stock, perBuyer: 2, atOnce: 24 }, 'new');
        const later = crowd.record.tries.flatMap(({ status, order, buyer }) => {
          return status === 202 && buyer.startsWith('new') ? [order!.id] : [];
        });
        expect(later.length, label).toBeGreaterThan(20);
        expect(Number(await redis.command('HGET', ...epochKey)), label).toBeGreaterThan(before);
        const worker = shop.startWorker();
        await sleep(500);
        await ground.broker.resume();
        await worker;
        const { orders } = await broker.expectWhole(crowd, saleId, 2, label);
        const fates = (ids: Iterable<string>): Map<string, number> => {
          const byId = new Map(orders.map((order) => [order.id, order]));
          const counts = new Map<string, number>();
          for (const id of ids) {
            const { status, reason } = byId.get(id)!;
            const end = reason === null ? status : `${status}: ${reason}`;
            counts.set(end, (counts.get(end) ?? 0) + 1);
          }
          return counts;
        };
        const ends = fates(old);
        console.log(`${label}: ${old.size} old ones: ${[...ends].map((end) => end.join(' ')).join(', ')}`);
        for (const end of ends.keys()) {
          expect(['reserved', 'rejected: gate_rebuilt', 'rejected: admission_lost'], label).toContain(end);
        }
        expect(ends.get('rejected: gate_rebuilt'), `${label}: what came through the broker`).toBeGreaterThan(40);
        expect([...fates(new Set(later)).keys()], label).toEqual(['reserved']);
        const end = await crowd.buyTheRest(saleId);
        expect(end, label).toMatchObject({ state: 'sold_out', items: [{ reserved: stock, free: 0, queued: 0 }] });
        await broker.expectWhole(crowd, saleId, 2, label);
        crowd.close();
      },
      3 * MINUTES,
    );
  });
}

function slowestOf(tries: readonly Try[]): number {
  return Math.max(0, ...tries.map(({ sentAtMs, answeredAtMs }) => answeredAtMs - sentAtMs));
}
