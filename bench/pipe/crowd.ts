// The load: a process that only admits orders, through our gate or in the way of the sources.
import { readFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import { KeepAlive } from '../../src/base/keep-alive.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { DecisionChannel } from '../../src/orders/redis/decision-channel.ts';
import type { Publisher } from '../baselines/pipe/broker.ts';
import { jobOf, nowMs, serve } from './child.ts';
import {
  buyerOf,
  type Drip,
  drip,
  FINGERPRINT,
  FIRST_ID,
  type Flood,
  flood,
  ITEM,
  keyOf,
  orderId,
  type Place,
  Track,
} from './pace.ts';

export interface SaleOf {
  readonly saleId: string;
  readonly itemId: string;
}

export interface CrowdJob {
  readonly redis: string;
  readonly prefix: string;
  readonly sales: readonly SaleOf[];
  /** Null: use our gate. */
  readonly naive: {
    readonly broker: 'rabbitmq' | 'kafka';
    readonly url: string;
    readonly queue: string;
    readonly confirm: boolean;
  } | null;
}

const TOLD_WITHIN_MS = 5000;
const job = jobOf<CrowdJob>();
const track = new Track();
const told = { count: 0, wanted: 0, resolve: (): void => {} };

interface Shop {
  /** Calls `decided` when the gate has decided; resolves when the buyer would have an answer. */
  place(buyer: string, n: number, sale: SaleOf, decided: () => void): Promise<void>;
  end(): Promise<void>;
}

/** As in an API process: the gate, and a listener for decisions on orders. */
async function ourGate(): Promise<Shop> {
  const { redis, prefix } = job;
  const runtime = systemRuntime();
  const keepAlive = new KeepAlive(runtime.timers);
  keepAlive.hold();
  const process = 'crowd';
  const gate = new RedisGate({ target: redis, prefix, process, commandMs: 10_000 }, runtime);
  const decisions = new DecisionChannel(
    { target: redis, prefix, process, commandMs: 10_000, keepAlive },
    runtime,
    (id, { status }) => {
      if (status !== 'reserved') throw new Error(`order ${id} is ${status}`);
      if (track.on) track.mark('told', Number(id) - FIRST_ID, nowMs());
      if (++told.count === told.wanted) told.resolve();
    },
  );
  await decisions.listen();
  return {
    async place(buyer, n, { saleId }, decided) {
      const request = { saleId, orderId: orderId(n), itemCode: ITEM, buyer, quantity: 1, key: keyOf(n) };
      const { outcome } = await gate.admit({ ...request, fingerprint: FINGERPRINT });
      if (outcome !== 'admitted') throw new Error(`order ${n}: ${outcome}`);
      decided();
    },
    async end() {
      decisions.close();
      gate.close();
      keepAlive.close();
    },
  };
}

/** As in docs/concepts/sources.md, 003: the script decides, and then the order is published. */
async function sourcesWay({ broker, url, queue, confirm }: NonNullable<CrowdJob['naive']>): Promise<Shop> {
  const redis = new Redis(job.redis);
  const lua = readFileSync(new URL('../baselines/pipe/seckill.lua', import.meta.url), 'utf8');
  const sha = (await redis.script('LOAD', lua)) as string;
  for (const { saleId } of job.sales) await redis.set(`seckill:stock:${saleId}`, 1_000_000_000);
  const { openPublisher } = (await import(`../baselines/pipe/${broker}.ts`)) as {
    openPublisher(url: string, queue: string, confirm: boolean): Promise<Publisher>;
  };
  const publisher = await openPublisher(url, queue, confirm);
  return {
    async place(buyer, n, { saleId, itemId }, decided) {
      if ((await redis.evalsha(sha, 0, saleId, buyer)) !== 0) throw new Error(`order ${n} was refused`);
      decided();
      const message: OrderMessage = {
        ...{ orderId: orderId(n), saleId, itemId, itemCode: ITEM, buyer, quantity: 1, slots: [1], epoch: 1 },
        ...{ price: { amount: 8000, currency: 'CNY' }, payWithinSeconds: 900, key: keyOf(n), fingerprint: FINGERPRINT },
      };
      await publisher.publish(message);
    },
    async end() {
      await publisher.end();
      redis.disconnect();
    },
  };
}

const shop = job.naive === null ? await ourGate() : await sourcesWay(job.naive);
const buyers: string[] = [];
const place: Place = async (n) => {
  if (track.on) track.mark('sent', n, nowMs());
  await shop.place(buyers[n]!, n, job.sales[n % job.sales.length]!, () => {
    if (track.on) track.mark('verdict', n, nowMs());
  });
};
const meet = ({ from, count }: { readonly from: number; readonly count: number }): void => {
  for (let n = from; n < from + count; n++) buyers[n] = buyerOf(n);
};

serve({
  /** Prepares the buyers before the measurement starts. */
  async meet(range: Flood | Drip) {
    meet(range);
  },
  flood: (job: Flood) => flood(job, place),
  async drip(job: Drip) {
    track.start(job);
    await drip(job, place);
  },
  /** Resolves when `wanted` orders in all were reported as decided, or no more reports come. */
  async told(wanted: number) {
    if (told.count < wanted) {
      await new Promise<void>((resolve) => {
        told.wanted = wanted;
        told.resolve = resolve;
        setTimeout(resolve, TOLD_WITHIN_MS);
      });
    }
    return told.count;
  },
  times: async () => track.stop(),
  end: () => shop.end(),
});
