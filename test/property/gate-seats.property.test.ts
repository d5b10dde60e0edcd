import fc from 'fast-check';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { AdmitRequest, Gate, SeatRevision, Verdict } from '../../src/gate/port.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import { bestApart, bestTogether } from '../../src/model/best-seats.ts';
import { type OrderMessage, orderFingerprint } from '../../src/model/order.ts';
import { buildSeatMap, encodeSeatMap, rowText } from '../../src/model/seat-map.ts';
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

it(
  'P1: the in-process gate gives seats by the exact rule, all or none, under random programs',
  async () => {
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
  },
  LONG_TIMEOUT_MS,
);

/** Halls of realistic size and odd shape: rows of 500 and of 1, more rows than one block has, gaps, and what is blocked. */
const largeHall = fc.record({
  rows: fc.oneof<fc.Arbitrary<{ length: number; gap: number }[]>[]>(
    fc.array(fc.record({ length: fc.integer({ min: 300, max: 500 }), gap: fc.constantFrom(0, 7, 2) }), {
      ...{ minLength: 3, maxLength: 5 },
    }),
    fc.array(fc.record({ length: fc.integer({ min: 1, max: 4 }), gap: fc.constantFrom(0, 0, 2) }), {
      ...{ minLength: 255, maxLength: 600, size: 'max' },
    }),
    fc.array(fc.record({ length: fc.constantFrom(1, 10, 67, 100, 101), gap: fc.constantFrom(0, 0, 11) }), {
      ...{ minLength: 10, maxLength: 40, size: 'max' },
    }),
  ),
  /** Of 100 seats so many are not free. */
  fill: fc.constantFrom(0, 10, 50, 90, 99),
  mix: fc.nat(),
  wishes: fc.array(
    fc.record({
      how: fc.constantFrom('together' as const, 'any' as const),
      // 10 and 67 are bytes that mean something in a pattern.
      quantity: fc.constantFrom(1, 2, 3, 4, 9, 10, 11, 66, 67, 68, 99, 100),
    }),
    { minLength: 64, maxLength: 64, size: 'max' },
  ),
});

type LargeHall = typeof largeHall extends fc.Arbitrary<infer H> ? H : never;

/** Each order gets what the pure rule says for the hall as it is then. */
async function sellLargeHall({ rows: shapes, fill, mix, wishes }: LargeHall, tried: Tried): Promise<void> {
  const map = buildSeatMap(
    shapes.map(({ length, gap }, row) => ({
      ...{ section: 'S', row: String(row) },
      numbers: Array.from({ length }, (_, place) => place + (gap === 0 ? 0 : Math.floor(place / gap))),
    })),
  );
  const isTaken = (seat: number): boolean => ((seat * 2654435761 + mix * 40503) >>> 7) % 100 < fill;
  const taken = new Set(Array.from({ length: map.size }, (_, seat) => seat).filter(isTaken));
  const { nowMs } = tried;
  await tried.call((gate) =>
    gate.install({
      ...{ saleId: SALE, epoch: 1, version: 1, opensAtMs: nowMs, closesAtMs: nowMs + 3_600_000, mayAdmit: true },
      ...{ paused: false, closed: false, perBuyer: 100, payWithinSeconds: 900, content: [] },
      items: [
        {
          ...{
            id: '11',
            code: 'stalls',
            price: { amount: 1, currency: 'CNY' },
            total: map.size,
            blocked: taken.size,
            rev: 1,
          },
          seats: { map: encodeSeatMap(map), blocked: [...taken] },
        },
      ],
    }),
  );
  const requests = wishes.map(({ how, quantity }, at): AdmitRequest => {
    const fingerprint = orderFingerprint('stalls', quantity, { together: how === 'together' });
    const common = { saleId: SALE, orderId: String(100 + at), buyer: `b${at}`, itemCode: 'stalls', key: null };
    return { ...common, quantity, seats: how, fingerprint };
  });
  const verdicts = await tried.admitAll(requests);
  for (const [at, verdict] of verdicts.entries()) {
    const { how, quantity } = wishes[at]!;
    const texts = map.rows.map(({ numbers, first }) =>
      rowText(numbers, numbers.map((_, place) => (taken.has(first + place) ? 'r' : 'f')).join('')),
    );
    const together = how === 'together' ? bestTogether(texts, quantity) : null;
    const chosen = how === 'together' ? together && [together] : bestApart(texts, quantity);
    const isShort = map.size - taken.size < quantity;
    const expected = chosen?.flatMap(({ row, seats }) => seats.map((place) => map.rows[row]!.first + place));
    const answer = verdict.outcome === 'admitted' ? verdict.message.seats : verdict.outcome;
    expect(answer, `order ${at}: ${how} ${quantity}`).toEqual(expected ?? (isShort ? 'sold_out' : 'not_together'));
    for (const seat of expected ?? []) taken.add(seat);
  }
  const seen = await tried.call((gate) => gate.seats(SALE));
  const free = seen !== null && 'items' in seen ? seen.items[0]!.states.replaceAll(/[^f]/g, '').length : -1;
  expect(free).toBe(map.size - taken.size);
}

/** The in-process gate alone. */
function alone(): Tried {
  const runtime = manualRuntime();
  const gate = new MemoryGate(runtime, () => undefined);
  return {
    call: (act) => act(gate),
    admitAll: (requests) => Promise.all(requests.map((request) => gate.admit(request))),
    nowMs: runtime.clock.now(),
  };
}

it(
  'P1: in large halls the in-process gate gives the seats of the exact rule',
  async () => {
    await fc.assert(
      fc.asyncProperty(largeHall, (hall) => sellLargeHall(hall, alone())),
      seeded('large halls of the in-process gate', { short: 8, long: 1000 }),
    );
  },
  LONG_TIMEOUT_MS,
);

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

  it(
    'P1: are those of the in-process gate in large halls',
    async () => {
      await fc.assert(
        fc.asyncProperty(largeHall, async (hall) => {
          const both = new Both();
          await sellLargeHall(hall, both);
          await both.end();
        }),
        seeded('large halls in Redis', { short: 8, long: 500 }),
      );
    },
    LONG_TIMEOUT_MS,
  );

  it(
    'P1: are those of the in-process gate under random programs',
    async () => {
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
    },
    LONG_TIMEOUT_MS,
  );
});
