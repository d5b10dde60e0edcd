import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { KeepAlive } from '../../../src/base/keep-alive.ts';
import { RedisLink } from '../../../src/base/redis/link.ts';
import { loadScripts } from '../../../src/base/redis/scripts.ts';
import { bulk } from '../../../src/base/redis/sent-script.ts';
import { systemRuntime } from '../../../src/base/runtime.ts';

const scripts = loadScripts(fileURLToPath(new URL('./', import.meta.url)));
const DEAF = { message: () => undefined, interrupted: () => undefined };

export type Order = readonly [buyer: string, orderId: string];
export interface Baseline {
  /** Places these orders as fast as it can, until `untilMs` at most; resolves to how many were accepted. */
  run(orders: readonly Order[], untilMs: number): Promise<number>;
  end(): void;
}

export async function onePerCall(url: string, parallel: number, autoPipelining: boolean): Promise<Baseline> {
  const redis = new Redis(url, { enableAutoPipelining: autoPipelining });
  const sha = (await redis.script('LOAD', scripts.get('seckill')!.lua)) as string;
  await redis.set('seckill:stock:7', 1_000_000_000);
  const run: Baseline['run'] = async (orders, untilMs) => {
    let [next, accepted] = [0, 0];
    const loop = async (): Promise<void> => {
      while (next < orders.length && performance.now() < untilMs) {
        const [buyer, orderId] = orders[next++]!;
        if ((await redis.evalsha(sha, 0, '7', buyer, orderId)) === 0) accepted++;
      }
    };
    await Promise.all(Array.from({ length: parallel }, loop));
    return accepted;
  };
  return { run, end: () => redis.disconnect() };
}

/** The same script over a batch, as bare as possible: no promise per order, and the command encoded by hand, like ours. */
export async function batched(url: string, size: number, inFlight: number): Promise<Baseline> {
  const script = scripts.get('seckill-batch')!;
  const link = new RedisLink(url, { commandMs: 5000 }, systemRuntime(), new KeepAlive(), DEAF);
  await link.call('SET', ['seckill:stock:7', 1_000_000_000]);
  const run: Baseline['run'] = async (orders, untilMs) => {
    let [next, accepted] = [0, 0];
    const call = (): Promise<unknown> => {
      const some = orders.slice(next, next + size);
      next += size;
      const wire = some.reduce((text, [buyer, orderId]) => text + bulk(buyer) + bulk(orderId), bulk('7'));
      return new Promise((answered, failed) => {
        link.send(script, 0, 1 + 2 * some.length, wire, performance.now(), { answered, failed });
      });
    };
    const loop = async (): Promise<void> => {
      while (next < orders.length && performance.now() < untilMs) {
        for (const reply of (await call()) as number[]) if (reply === 0) accepted++;
      }
    };
    await Promise.all(Array.from({ length: inFlight }, loop));
    return accepted;
  };
  return { run, end: () => link.close() };
}
