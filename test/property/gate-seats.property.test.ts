import fc from 'fast-check';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { AdmitRequest, Gate, SeatRevision, Verdict } from '../../src/gate/port.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { ownPrefix, streamed, TranslatedGate } from '../contract/gate-redis-world.ts';
import { type ManualRuntime, manualRuntime } from '../contract/manual.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { followed, op, rows, SALE, SeatRun, type Tried } from './gate-seats.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

const program = fc.record({
  rows,
  steps: fc.array(fc.tuple(fc.constantFrom(0, 1), op), { minLength: 1, maxLength: 60, size: 'max' }),
});

/** What somebody sees who has read all seats once and follows the changes. */
class Follower {
  #seen: { revision: SeatRevision; states: string } | null = null;

  async look(gate: Gate): Promise<void> {
    const seen = await gate.seats(SALE, this.#seen?.revision);
    if (seen === null) throw new Error('no seats are shown');
    const states = 'items' in seen ? seen.items[0]!.states : followed(this.#seen!.states, seen.changes);
    this.#seen = { revision: seen.revision, states };
    const all = await gate.seats(SALE);
    expect({ revision: seen.revision, items: [{ itemId: '11', states }] }, 'what a follower sees').toEqual(all);
  }
}

it('P1: the in-process gate gives seats by the exact rule, all or none, under random programs', async () => {
  await fc.assert(
    fc.asyncProperty(program, async ({ rows: definition, steps }) => {
      const runtime = manualRuntime();
      const emitted: OrderMessage[] = [];
      const gate = new MemoryGate(runtime, (message) => emitted.push(message));
      const follower = new Follower();
      const run = new SeatRun(
        {
          call: (act) => act(gate),
          admitAll: async (requests) => {
            const verdicts: Verdict[] = [];
            for (const request of requests) verdicts.push(await gate.admit(request));
            return verdicts;
          },
          nowMs: runtime.clock.now(),
        },
        definition,
      );
      await run.start();
      for (const [, step] of steps) {
        await run.step(step);
        await follower.look(gate);
      }
    }),
    seeded('seats of the in-process gate', { short: 300, long: 20_000 }),
  );
}, LONG_TIMEOUT_MS);

describeWithAnyRedis('seats in Redis', () => {
  let target: string;
  let eye: Redis;

  beforeAll(async () => {
    target = await redisUrl();
    eye = new Redis(target);
  });
  afterAll(async () => {
    eye.disconnect();
    await cleanUpServers();
  });

  /** Both gates, the one in Redis from two processes by turns: every answer, every seat and every message must be the same. */
  class Both implements Tried {
    readonly #runtime: ManualRuntime = manualRuntime();
    readonly #emitted: OrderMessage[] = [];
    readonly #model = new MemoryGate(this.#runtime, (message) => this.#emitted.push(message));
    readonly #prefix = ownPrefix();
    readonly #gates = [0, 1].map(() => new RedisGate({ target, prefix: this.#prefix }, systemRuntime()));
    readonly real = new TranslatedGate(this.#gates[0]!, this.#runtime.clock);
    readonly nowMs = this.#runtime.clock.now();

    from(process: number): void {
      this.real.inner = this.#gates[process]!;
    }

    call = async <T>(act: (gate: Gate) => Promise<T>): Promise<T> => {
      const expected = await act(this.#model);
      expect(await act(this.real)).toEqual(expected);
      return expected;
    };

    async admitAll(requests: AdmitRequest[]): Promise<Verdict[]> {
      const expected: Verdict[] = [];
      for (const request of requests) expected.push(await this.#model.admit(request));
      expect(await this.real.admitAll(requests)).toEqual(expected);
      return expected;
    }

    async end(): Promise<void> {
      expect(await streamed(eye, this.#prefix, SALE), 'the messages').toEqual(this.#emitted);
      await this.call((gate) => gate.remove(SALE));
      for (const gate of this.#gates) gate.close();
      expect(await eye.keys(`${this.#prefix}:*`), 'nothing is left').toEqual([]);
    }
  }

  it('P1: are those of the in-process gate under random programs', async () => {
    await fc.assert(
      fc.asyncProperty(program, async ({ rows: definition, steps }) => {
        const both = new Both();
        const follower = new Follower();
        const run = new SeatRun(both, definition);
        await run.start();
        for (const [process, step] of steps) {
          both.from(process);
          await run.step(step);
          await follower.look(both.real);
        }
        await both.end();
      }),
      seeded('seats in Redis', { short: 40, long: 2000 }),
    );
  }, LONG_TIMEOUT_MS);
});
