import fc from 'fast-check';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { KeepAlive } from '../../src/base/keep-alive.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import type { LockKind, LockStore, Mode, StoreEvents, Wake } from '../../src/locks/client/port.ts';
import { MemorySpace } from '../../src/locks/memory/space.ts';
import { MemoryLockStore } from '../../src/locks/memory/store.ts';
import { RedisLockStore } from '../../src/locks/redis/store.ts';
import { until } from '../support/fault-wait.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

/**
 * P7: the scripts in Redis and the in-process store are two writings of the same rules. Random programs of several clients
 * run on both; after each step they must have answered the same, woken the same waiters, and show the same holders and
 * queues. Leases are long here: what time does is tested elsewhere, since only one of the two clocks can be moved.
 */
const CLIENTS = 3;
const HANDOVER_MS = 60_000;
const LEASE_MS = 60_000;

type Step =
  | { do: 'acquire'; client: number; mode: Mode; permits: number; queue: boolean }
  /** Gives back and asks in the same turn: in Redis one call. */
  | { do: 'both'; pick: number; mode: Mode; permits: number; queue: boolean; askFirst: boolean }
  | { do: 'again' | 'release' | 'renew' | 'finish'; pick: number }
  | { do: 'change'; pick: number; to: Mode; queue: boolean }
  | { do: 'force' }
  | { do: 'resize'; limit: number | null }
  | { do: 'leave'; client: number };

const client = fc.nat({ max: CLIENTS - 1 });
const mode = fc.constantFrom<Mode>('read', 'write');
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant('acquire' as const),
      client,
      mode,
      permits: fc.integer({ min: 1, max: 3 }),
      queue: fc.boolean(),
    }),
  },
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constantFrom(
        'again' as const,
        'release' as const,
        'release' as const,
        'renew' as const,
        'finish' as const,
      ),
      pick: fc.nat(),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('both' as const),
      pick: fc.nat(),
      mode,
      permits: fc.integer({ min: 1, max: 3 }),
      queue: fc.boolean(),
      askFirst: fc.boolean(),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('change' as const), pick: fc.nat(), to: mode, queue: fc.boolean() }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('force' as const) }) },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('resize' as const),
      limit: fc.option(fc.integer({ min: 0, max: 5 }), { nil: null }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('leave' as const), client }) },
);

interface Asked {
  readonly client: number;
  readonly number: number;
  readonly mode: Mode;
  readonly permits: number;
}

/** One of the two: its clients, and what they were told, in words that are the same for both. */
class Side {
  readonly stores: LockStore[] = [];
  readonly wakes: string[] = [];
  readonly #open: boolean[] = [];

  constructor(make: (events: StoreEvents) => LockStore) {
    for (let i = 0; i < CLIENTS; i++) {
      this.stores.push(make({ wake: (wake) => this.#heard(i, wake), interrupted: () => undefined }));
      this.#open.push(true);
    }
  }

  #heard(at: number, wake: Wake): void {
    const number = wake.rid.slice(wake.rid.indexOf('.') + 1);
    this.wakes.push(`${wake.event} ${at}.${number}`);
  }

  ridOf(asked: { client: number; number: number }): string {
    return `${this.stores[asked.client]!.client}.${asked.number}`;
  }

  /** `<place of the client>.<number>` */
  plain(rid: string): string {
    const [name, number] = rid.split('.');
    return `${this.stores.findIndex((store) => store.client === name)}.${number}`;
  }

  isOpen(client: number): boolean {
    return this.#open[client]!;
  }

  async leave(client: number): Promise<void> {
    this.#open[client] = false;
    await this.stores[client]!.close();
  }

  async close(): Promise<void> {
    for (const [i, store] of this.stores.entries()) if (this.#open[i]) await store.close();
  }
}

/** What a step answered, without what may differ: tokens, tickets, times. */
async function take(
  side: Side,
  kind: LockKind,
  name: string,
  at: Step,
  asked: Asked[],
  fresh: Asked,
): Promise<unknown> {
  const address = { kind, name };
  const terms = { leaseMs: LEASE_MS, handOverMs: HANDOVER_MS, info: 'test', ticket: 0, limit: 3 };
  const anybody = side.stores.find((_, i) => side.isOpen(i))!;
  switch (at.do) {
    case 'acquire': {
      const request = { ...address, ...terms, ...at, rid: side.ridOf(fresh) };
      const reply = await side.stores[at.client]!.acquire(request);
      return reply.outcome === 'done' ? reply : reply.outcome;
    }
    case 'both': {
      const { client, number, mode, permits } = asked[at.pick % asked.length]!;
      const store = side.stores[client]!;
      const held = { ...address, ...terms, mode, permits, rid: side.ridOf({ client, number }) };
      const release = () => store.release({ ...held, ambiguous: false, backTo: '' });
      const acquire = () => store.acquire({ ...address, ...terms, ...at, rid: side.ridOf(fresh) });
      const [first, second] = at.askFirst ? [acquire, release] : [release, acquire];
      const replies = await Promise.all([first(), second()]);
      return replies.map((reply) => {
        if (typeof reply === 'string') return reply;
        if ('given' in reply) return `given to ${side.plain(reply.to)}`;
        return reply.outcome;
      });
    }
    case 'again':
    case 'release':
    case 'renew':
    case 'finish':
    case 'change': {
      const one = asked[at.pick % asked.length];
      if (!one || !side.isOpen(one.client)) return null;
      const store = side.stores[one.client]!;
      const request = { ...address, ...terms, mode: one.mode, permits: one.permits, rid: side.ridOf(one) };
      if (at.do === 'again') {
        const reply = await store.acquire({ ...request, queue: true });
        return reply.outcome === 'done' ? reply : reply.outcome;
      }
      if (at.do === 'release') {
        const reply = await store.release({ ...request, ambiguous: at.pick % 5 === 0, backTo: '' });
        return typeof reply === 'object' ? `given to ${side.plain(reply.to)}` : reply;
      }
      if (at.do === 'renew') return await store.renew({ ...request, exactly: false });
      if (at.do === 'finish') return kind === 'once' ? await store.finish(name, request.rid, 'it', 60_000) : null;
      if (kind !== 'readwrite' || at.do !== 'change') return null;
      return (await store.change({ ...request, to: at.to, queue: at.queue, nextRid: side.ridOf(fresh) })).outcome;
    }
    case 'force':
      return (await anybody.force(address, HANDOVER_MS, 3)).map(({ rid }) => side.plain(rid)).sort();
    case 'resize':
      if (kind === 'semaphore') await anybody.resize(name, at.limit, 3, HANDOVER_MS);
      return null;
    case 'leave':
      return null;
  }
}

async function knownScripts(side: Side, kind: LockKind, name: string): Promise<void> {
  const at = { kind, name: `${name}-known`, rid: side.ridOf({ client: 0, number: 0 }), mode: 'write' as const };
  const terms = { permits: 1, limit: 3, leaseMs: LEASE_MS, handOverMs: HANDOVER_MS, info: 'test', ticket: 0 };
  await side.stores[0]!.acquire({ ...at, ...terms, queue: false });
  await side.stores[0]!.release({ ...at, ...terms, ambiguous: false, backTo: '' });
}

async function shown(side: Side, kind: LockKind, name: string): Promise<unknown> {
  const state = await side.stores.find((_, i) => side.isOpen(i))!.inspect({ kind, name });
  return {
    holders: state.holders.map(({ rid, mode, permits }) => `${side.plain(rid)} ${mode} ${permits}`).sort(),
    // Those of a client that is gone are dropped when somebody looks at them, which need not be at the same step.
    waiters: state.waiters
      .filter(({ rid }) => side.isOpen(side.stores.findIndex((store) => rid.startsWith(`${store.client}.`))))
      .map(({ rid, mode, permits }) => `${side.plain(rid)} ${mode} ${permits}`),
    limit: state.limit,
  };
}

async function settled(redis: Side, memory: Side): Promise<void> {
  for (let tries = 0; tries < 100 && redis.wakes.length < memory.wakes.length; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

describeWithAnyRedis('the two stores', () => {
  let control: Redis;
  let names = 0;

  beforeAll(async () => {
    control = new Redis(await redisUrl());
  });
  afterAll(async () => {
    control.disconnect();
    await cleanUpServers();
  });

  it.each<LockKind>(['mutex', 'readwrite', 'semaphore', 'once'])(
    'P7: Redis does what the model does: %s',
    async (kind) => {
      const url = await redisUrl();
      await fc.assert(
        fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 30 }), async (program) => {
          const name = `model-${process.pid}-${++names}`;
          const runtime = systemRuntime();
          const space = new MemorySpace(runtime.clock);
          const memory = new Side((events) => new MemoryLockStore(space, 'model', runtime, events));
          const keepAlive = new KeepAlive();
          const redis = new Side((events) => {
            const options = {
              target: url,
              prefix: 'model',
              commandMs: 2000,
              attentive: true,
              handOverMs: HANDOVER_MS,
              keepAlive,
            };
            return new RedisLockStore(options, runtime, events);
          });
          try {
            await Promise.all(redis.stores.map((store) => store.listen({ kind, name })));
            // A script that Redis does not know yet is sent again, behind what was to come after it.
            await knownScripts(redis, kind, name);
            const asked: Asked[] = [];
            let number = 0;
            for (const [index, at] of program.entries()) {
              if (at.do === 'leave') {
                // The last one stays, to look.
                if (at.client === 0 || !redis.isOpen(at.client)) continue;
                const channel = `model:{0}:wake:${redis.stores[at.client]!.client}`;
                await Promise.all([redis.leave(at.client), memory.leave(at.client)]);
                // Redis learns of it a moment later.
                await until('nobody listens there', 5000, async () => {
                  const [, listeners] = (await control.pubsub('NUMSUB', channel)) as [string, number];
                  return Number(listeners) === 0;
                });
                continue;
              }
              const picks = at.do === 'change' || at.do === 'both';
              const from = at.do === 'acquire' ? at : picks ? asked[at.pick % asked.length] : null;
              if (at.do === 'both' && !from) continue;
              if (from && !redis.isOpen(from.client)) continue;
              const asks = at.do === 'acquire' || at.do === 'both';
              const permits = kind === 'semaphore' && asks ? at.permits : 1;
              const asMode = kind === 'readwrite' ? (asks ? at.mode : at.do === 'change' ? at.to : 'read') : 'write';
              const fresh = { client: from?.client ?? 0, number: ++number, mode: asMode, permits };
              const as = asks ? { ...at, mode: asMode, permits } : at;
              const [fromModel, fromRedis] = [
                await take(memory, kind, name, as, asked, fresh),
                await take(redis, kind, name, as, asked, fresh),
              ];
              const note = `step ${index}: ${JSON.stringify(at)}`;
              expect(fromRedis, note).toEqual(fromModel);
              if (from) asked.push(fresh);
              await settled(redis, memory);
              expect(redis.wakes.sort(), note).toEqual(memory.wakes.sort());
              expect(await shown(redis, kind, name), note).toEqual(await shown(memory, kind, name));
            }
          } finally {
            await Promise.all([memory.close(), redis.close()]);
          }
        }),
        seeded(`locks model, ${kind}`, { short: 25, long: 400 }),
      );
    },
    LONG_TIMEOUT_MS,
  );
});
