import fc from 'fast-check';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { AdmitRequest, Gate } from '../../src/gate/port.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import { type OrderMessage, orderFingerprint } from '../../src/model/order.ts';
import { ownPrefix, streamed, TranslatedGate } from '../contract/gate-redis-world.ts';
import { type ManualRuntime, manualRuntime, T0 } from '../contract/manual.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { paged } from '../support/snapshot.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

/**
 * Random programs on the in-process gate, the reference, and on the one in Redis, from two processes by turns. Every
 * answer, every count and every message must be the same.
 */
const SALE = '7';
const ITEMS = [
  { id: '11', code: 'voucher' },
  { id: '12', code: 'a poster' },
];
const WINDOW_MS = 10_000;

interface Wish {
  buyer: string;
  item: string;
  quantity: number;
  key: string | null;
}

type Op =
  | { do: 'admit'; wishes: Wish[] }
  | { do: 'again'; picks: number[] }
  | { do: 'settle'; picks: number[] }
  | { do: 'release' | 'withdraw' | 'holdOf'; pick: number }
  | { do: 'keyOf'; pick: number }
  | { do: 'total'; item: number; total: number; rev: number }
  | { do: 'values'; version: number; perBuyer: number; paused: boolean; closed: boolean; payWithinSeconds: number }
  | { do: 'houseHold'; item: number; units: number; holdId: string }
  | { do: 'dropHouse'; item: number; holdId: string; lowered: { total: number; rev: number } | undefined }
  | { do: 'rebuild'; epochs: number; perBuyer: number; totals: [number, number]; blocked: number }
  | { do: 'shut' | 'remove' }
  | { do: 'pass' | 'prune'; ms: number };

const pick = fc.nat(999);
const wish = fc.record({
  buyer: fc.constantFrom('a', 'b', 'c', 'A', 'ü;,.\u00a0'),
  item: fc.constantFrom('voucher', 'voucher', 'a poster', 'a poster', 'no-such'),
  quantity: fc.constantFrom(1, 1, 1, 2, 3),
  key: fc.option(fc.constantFrom('k1', 'k 2'), { nil: null, freq: 2 }),
});
const rev = fc.integer({ min: 1, max: 12 });
const total = fc.integer({ min: 0, max: 12 });
const item = fc.constantFrom(0, 1, 2);
const holdId = fc.constantFrom('h1', 'h2');

const op: fc.Arbitrary<Op> = fc.oneof(
  {
    weight: 12,
    arbitrary: fc.record({ do: fc.constant('admit' as const), wishes: fc.array(wish, { minLength: 1, maxLength: 1 }) }),
  },
  {
    weight: 6,
    arbitrary: fc.record({ do: fc.constant('admit' as const), wishes: fc.array(wish, { minLength: 2, maxLength: 8 }) }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ do: fc.constant('again' as const), picks: fc.array(pick, { minLength: 1, maxLength: 3 }) }),
  },
  {
    weight: 5,
    arbitrary: fc.record({ do: fc.constant('settle' as const), picks: fc.array(pick, { minLength: 1, maxLength: 5 }) }),
  },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('release' as const), pick }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('withdraw' as const), pick }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('holdOf' as const), pick }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('keyOf' as const), pick }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('total' as const), item, total, rev }) },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('values' as const),
      version: rev,
      perBuyer: fc.integer({ min: 1, max: 4 }),
      paused: fc.constantFrom(false, false, false, true),
      closed: fc.constantFrom(false, false, false, false, true),
      payWithinSeconds: fc.constantFrom(60, 900),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('houseHold' as const),
      item,
      units: fc.integer({ min: 1, max: 3 }),
      holdId,
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('dropHouse' as const),
      item,
      holdId,
      lowered: fc.option(fc.record({ total, rev }), { nil: undefined }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('rebuild' as const),
      epochs: fc.constantFrom(1, 1, 2, 0, -1),
      perBuyer: fc.integer({ min: 1, max: 4 }),
      totals: fc.tuple(total, total),
      blocked: fc.constantFrom(0, 0, 1),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('shut' as const, 'remove' as const) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('pass' as const), ms: fc.integer({ min: 1, max: 1500 }) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('prune' as const), ms: fc.integer({ min: 0, max: 3000 }) }) },
);

const program = fc.array(fc.tuple(fc.constantFrom(0, 1), op), { minLength: 1, maxLength: 50, size: 'max' });

class Run {
  readonly #runtime: ManualRuntime = manualRuntime();
  readonly #emitted: OrderMessage[] = [];
  readonly #model: Gate = new MemoryGate(this.#runtime, (message) => this.#emitted.push(message));
  readonly #gates: RedisGate[];
  readonly #real: TranslatedGate;
  readonly #eye: Redis;
  readonly #prefix = ownPrefix();
  readonly #requests: AdmitRequest[] = [];
  readonly #admitted: { message: OrderMessage; atMs: number }[] = [];
  /** Ids of two and of three digits meet in one batch. */
  #lastId = 95;
  #epoch = 1;

  constructor(target: string, eye: Redis) {
    const options = { target, prefix: this.#prefix };
    this.#gates = [new RedisGate(options, systemRuntime()), new RedisGate(options, systemRuntime())];
    this.#real = new TranslatedGate(this.#gates[0]!, this.#runtime.clock);
    this.#eye = eye;
  }

  async start(): Promise<void> {
    await this.#rebuild(1, 2, [4, 4], 0);
  }

  async step(process: number, op: Op): Promise<void> {
    this.#real.inner = this.#gates[process]!;
    await this.#do(op);
    expect(await this.#real.view(SALE), `the counts after ${op.do}`).toEqual(await this.#model.view(SALE));
    expect(await this.#real.epochOf(SALE)).toEqual(await this.#model.epochOf(SALE));
  }

  async #both<T>(act: (gate: Gate) => Promise<T>): Promise<void> {
    const expected = await act(this.#model);
    expect(await act(this.#real)).toEqual(expected);
  }

  async #do(op: Op): Promise<void> {
    const holds = this.#admitted.map(({ message }) => message);
    const picked = (at: number): OrderMessage | undefined => holds[at % holds.length];
    const itemId = 'item' in op ? (ITEMS[op.item]?.id ?? '13') : '';
    switch (op.do) {
      case 'admit':
        return this.#admit(
          op.wishes.map(({ buyer, item, quantity, key }) => {
            const fingerprint = orderFingerprint(item, quantity);
            return { saleId: SALE, orderId: String(++this.#lastId), itemCode: item, buyer, quantity, key, fingerprint };
          }),
        );
      case 'again': {
        const some = new Set(op.picks.map((at) => this.#requests[at % this.#requests.length]));
        return this.#admit([...some].filter((request) => request !== undefined));
      }
      case 'settle': {
        const some = op.picks.map((at) => picked(at) ?? { orderId: '99', buyer: 'a' });
        return this.#both((gate) => gate.settle(SALE, some));
      }
      case 'release':
      case 'withdraw':
      case 'holdOf': {
        const hold = picked(op.pick) ?? { orderId: '99', buyer: 'a', key: null };
        return this.#both((gate) => gate[op.do](SALE, hold) as Promise<unknown>) as Promise<void>;
      }
      case 'keyOf': {
        const { buyer, key } = picked(op.pick) ?? { buyer: 'a', key: null };
        return this.#both((gate) => gate.keyOf(SALE, buyer, key ?? 'k1')) as Promise<unknown> as Promise<void>;
      }
      case 'total':
        return this.#both((gate) => gate.applyTotal(SALE, itemId, op.total, op.rev));
      case 'values': {
        const { do: _, ...values } = op;
        const window = { opensAtMs: T0, closesAtMs: T0 + WINDOW_MS };
        return this.#both((gate) => gate.applySale(SALE, { ...values, ...window }));
      }
      case 'houseHold': {
        const holdId = `${op.holdId} of ${op.item}`;
        return this.#both((gate) => gate.holdForHouse(SALE, itemId, op.units, holdId)) as Promise<void>;
      }
      case 'dropHouse': {
        const holdId = `${op.holdId} of ${op.item}`;
        return this.#both((gate) => gate.dropHouseHold(SALE, itemId, holdId, op.lowered));
      }
      case 'rebuild':
        return this.#rebuild(op.epochs, op.perBuyer, op.totals, op.blocked);
      case 'shut':
        return this.#both((gate) => gate.shut(SALE));
      case 'remove': {
        await this.sameMessages();
        this.#emitted.length = 0;
        await this.#both((gate) => gate.remove(SALE));
        const left = await this.#eye.keys(`${this.#prefix}:*`);
        expect(left, 'nothing is left of a sale that was taken out').toEqual([]);
        return;
      }
      case 'pass':
        this.#runtime.clock.advance(op.ms);
        return;
      case 'prune':
        return this.#both((gate) => gate.pruneKeys(op.ms));
    }
  }

  async #admit(requests: AdmitRequest[]): Promise<void> {
    if (requests.length === 0) return;
    const expected = [];
    for (const request of requests) expected.push(await this.#model.admit(request));
    expect(await this.#real.admitAll(requests)).toEqual(expected);
    for (const [at, verdict] of expected.entries()) {
      if (!this.#requests.includes(requests[at]!)) this.#requests.push(requests[at]!);
      if (verdict.outcome !== 'admitted') continue;
      this.#admitted.push({ message: verdict.message, atMs: this.#runtime.clock.now() });
    }
  }

  /** From orders that the gate holds and has settled, and from every key that was ever bound, as a ledger might. */
  async #rebuild(epochs: number, perBuyer: number, totals: [number, number], blocked: number): Promise<void> {
    // The ledger's epoch never goes back; that of a snapshot which comes late does, but not for a sale that was taken out.
    const isThere = this.#epoch > 1 && (await this.#model.view(SALE)) !== null;
    const epoch = Math.max(this.#epoch + (isThere ? epochs : Math.max(epochs, 1)), 1);
    this.#epoch = Math.max(epoch, this.#epoch);
    const live = new Map<string, OrderMessage>();
    const keys = new Map<string, { message: OrderMessage; atMs: number }>();
    for (const { message, atMs } of this.#admitted) {
      const held = await this.#model.holdOf(SALE, message);
      if (held && !held.queued) live.set(message.orderId, message);
      if (message.key !== null) keys.set(`${message.buyer}\n${message.key}`, { message, atMs });
    }
    await this.#both((gate) =>
      gate.install(
        paged(
          {
            saleId: SALE,
            epoch,
            version: 1,
            opensAtMs: T0,
            closesAtMs: T0 + WINDOW_MS,
            paused: false,
            closed: false,
            perBuyer,
            payWithinSeconds: 900,
            mayAdmit: true,
            items: ITEMS.map(({ id, code }, at) => {
              const price = { amount: 100 + at, currency: 'CNY' };
              return { id, code, price, total: totals[at]!, blocked: Math.min(blocked, totals[at]!), rev: 1 };
            }),
            holds: [...live.values()].map(({ orderId, itemId, buyer, slots }) => ({ orderId, itemId, buyer, slots })),
            keys: [...keys.values()]
              .sort((a, b) => a.atMs - b.atMs)
              .map(({ message: { buyer, key, fingerprint, orderId }, atMs }) => {
                return { buyer, key: key!, fingerprint, orderId, boundAtMs: atMs };
              }),
          },
          2,
        ),
      ),
    );
  }

  async sameMessages(): Promise<void> {
    expect(await streamed(this.#eye, this.#prefix, SALE), 'the messages').toEqual(this.#emitted);
  }

  async end(): Promise<void> {
    for (const gate of this.#gates) gate.close();
    const keys = await this.#eye.keys(`${this.#prefix}:*`);
    for (const key of keys) expect(await this.#eye.ttl(key), `${key} has no TTL`).toBe(-1);
    if (keys.length > 0) await this.#eye.del(...keys);
  }
}

describeWithAnyRedis('the gate in Redis under random programs', () => {
  let target: string;
  let eye: Redis;

  beforeAll(async () => {
    target = await redisUrl();
    eye = new Redis(target);
  });
  afterAll(async () => {
    eye?.disconnect();
    await cleanUpServers();
  });

  it(
    'P1, P2, P4, P5, P9: every answer, every count and every message is that of the in-process gate',
    async () => {
      const parameters = seeded<[[number, Op][]]>('gate in redis', { short: 120, long: 3_000 });
      await fc.assert(
        fc.asyncProperty(program, async (steps) => {
          const run = new Run(target, eye);
          try {
            await run.start();
            for (const [process, op] of steps) await run.step(process, op);
            await run.sameMessages();
          } finally {
            await run.end();
          }
        }),
        parameters,
      );
    },
    LONG_TIMEOUT_MS,
  );
});
