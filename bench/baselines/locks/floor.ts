// The floor: what anybody writes without a library. SET NX PX to take, a Lua compare-and-delete to give back, and asking
// again after a pause while somebody else holds it. The best of its settings counts.
import { type LockAdapter, TTL_MS } from '../../locks/adapter.ts';
import { DELAYS, ioredis } from './packages.ts';

const RELEASE = `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`;

function floor(pollMs: number, auto: boolean, only?: 'contended'): LockAdapter {
  return {
    name: 'raw floor',
    settings: `ioredis, poll ${pollMs} ms ± half${auto ? ', autopipelining' : ''}`,
    ...(only === undefined ? {} : { only }),
    async open(url) {
      const redis = await ioredis(url, auto);
      const release = await redis.script('LOAD', RELEASE);
      let taken = 0;
      return {
        async acquire(name) {
          const owner = `${process.pid}:${taken++}`;
          while ((await redis.set(name, owner, 'PX', TTL_MS, 'NX')) !== 'OK') {
            // Give or take a half: waiters that all ask in one burst leave the lock alone until the next.
            const pauseMs = pollMs * (0.5 + Math.random());
            await new Promise((resolve) => setTimeout(resolve, pauseMs));
          }
          return async () => {
            await redis.evalsha(release, 1, name, owner);
          };
        },
        async close() {
          await redis.quit();
        },
      };
    },
  };
}

export const adapters = DELAYS.map(({ delayMs, auto }) =>
  floor(delayMs, auto, delayMs === 1 ? undefined : 'contended'),
);
