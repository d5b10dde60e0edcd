import { afterEach, expect, it, vi } from 'vitest';
import type { Random } from '../../src/base/random.ts';
import { OrderLock } from '../../src/orders/life/lock.ts';
import { below, oneOf, seedOf } from '../support/crowd-record.ts';
import type { Plan } from '../support/life-bank.ts';
import { BY, LifeWorld } from '../support/life-world.ts';
import { LONG } from '../support/long.ts';

/**
 * Pay against expiry at the same instant: the time of many orders is over together, and around that instant they are paid,
 * the bank answers, decides and tells, some milliseconds before or after. Exactly one wins each time; money that came too
 * late ends in goods or goes back (P6). The clock is the test's, so that the instants really meet.
 */

const ORDERS = LONG ? 10_000 : 500;
const BATCH = 100;
const PAY_WITHIN_S = 20;
/** How far around the instant things happen; a sweep comes every 250 ms. */
const AROUND_MS = 30;
const WATCHED_MS = 900;

const PLANS: readonly Plan[] = [
  'captured',
  'captured',
  'captured',
  'pending',
  'nameless',
  'silent',
  'lost',
  'declined',
  'broken',
];

afterEach(() => {
  vi.restoreAllMocks();
});

interface Tally {
  paid: number;
  expired: number;
  revived: number;
  refunded: number;
}

/** A bank whose answers take simulated milliseconds. */
class Slowness {
  readonly #waiting: { atMs: number; resolve: () => void }[] = [];
  nowMs = 0;
  readonly #random: Random;

  constructor(random: Random) {
    this.#random = random;
  }

  /** From now on at once: what is under way, too. */
  end(): void {
    this.tick(Number.POSITIVE_INFINITY);
  }

  wait(): Promise<void> {
    if (this.nowMs === Number.POSITIVE_INFINITY) return Promise.resolve();
    const ms = this.#random.fraction() < 0.3 ? 0 : below(this.#random, AROUND_MS);
    return new Promise((resolve) => void this.#waiting.push({ atMs: this.nowMs + ms, resolve }));
  }

  tick(nowMs: number): void {
    this.nowMs = nowMs;
    for (let at = this.#waiting.length - 1; at >= 0; at--) {
      if (this.#waiting[at]!.atMs <= nowMs) this.#waiting.splice(at, 1)[0]!.resolve();
    }
  }
}

async function race(random: Random, label: string, rivalsMax: number): Promise<Tally> {
  const slowness = new Slowness(random);
  const liars = new Set<string>();
  const world = await LifeWorld.open({
    stock: BATCH,
    perBuyer: 1,
    payWithinSeconds: PAY_WITHIN_S,
    takesItsTime: () => slowness.wait(),
    // Some banks say that it is given up, and take the money: it must come back, or be worth its goods.
    liesOnVoid: (attemptId) => liars.has(attemptId),
  });
  try {
    const { shop, bank, saleId, clock } = world;
    const orders: string[] = [];
    for (let n = 0; n < BATCH; n++) {
      const request = { saleId, itemCode: 'voucher', buyer: `buyer-${n}`, quantity: 1, key: null };
      world.begin('place', shop.place(request), (placed) => placed.ok && orders.push(placed.order.id));
    }
    await world.quiet();
    expect(orders.length, label).toBe(BATCH);
    const { expiresAtMs } = (await world.ledger.getOrder(orders[0]!))!;
    // The sweeper's rounds fall anywhere.
    const phaseMs = below(random, 250);
    await world.jump(expiresAtMs! - clock.now() - AROUND_MS - phaseMs);
    await world.advance(phaseMs);

    const told = new Map<string, string>();
    const at = new Map<number, (() => void)[]>();
    const plan = (ms: number, run: () => void): void => void at.set(ms, [...(at.get(ms) ?? []), run]);
    for (const id of orders) {
      const token = oneOf(random, PLANS);
      plan(below(random, AROUND_MS + 2), () =>
        world.begin('pay', shop.payOrder(id, { method: 'bank', token }, BY), (answer) => {
          if (answer.ok && answer.state === 'paid') told.set(id, 'paid');
          else if (answer.ok) expect(answer.order.status, label).toBe('reserved');
        }),
      );
      // A buyer at the bank decides, or tries again, at any instant.
      plan(below(random, WATCHED_MS), () => {
        for (const intent of bank.of(id)) {
          if (random.fraction() < 0.5) liars.add(intent.id);
          if (random.fraction() < 0.6) bank.finish(intent.id, 'captured');
        }
      });
      // The bank tells at any instant; some of it late, some of it twice.
      for (let times = 0; times < 2; times++) {
        plan(below(random, WATCHED_MS), () => {
          for (const news of bank.newsOf(id)) world.begin('news', shop.paymentNews(news));
        });
      }
      // Somebody else wants the unit as soon as it is free.
      for (let rivals = below(random, rivalsMax + 1); rivals > 0; rivals--) {
        const buyer = `rival-${rivals}-${id}`;
        plan(AROUND_MS + below(random, WATCHED_MS - AROUND_MS), () => world.begin('rival', buys(buyer)));
      }
    }
    async function buys(buyer: string): Promise<void> {
      const placed = await shop.place({ saleId, itemCode: 'voucher', buyer, quantity: 1, key: null });
      if (placed.ok) await shop.confirmOrder(placed.order.id, `till-${placed.order.id}`, placed.order.amount, BY);
    }
    for (let ms = 0; ms < WATCHED_MS; ms++) {
      slowness.tick(ms);
      for (const run of at.get(ms) ?? []) run();
      await world.advance(1);
      // At the instant itself, and around it, whatever is under way.
      if (ms % 128 === AROUND_MS) await world.judge();
    }
    slowness.end();
    await world.settle();
    await world.judgeSettled();

    const tally: Tally = { paid: 0, expired: 0, revived: 0, refunded: 0 };
    for (const id of orders) {
      const { status } = (await world.ledger.getOrder(id))!;
      expect(['paid', 'expired'], `${label} order ${id}`).toContain(status);
      if (told.has(id)) expect([id, status], label).toEqual([id, told.get(id)]);
      tally[status as 'paid' | 'expired']++;
      const held = bank.of(id).filter(({ state }) => state === 'captured');
      expect(held.length, `${label} money of order ${id}`).toBeLessThanOrEqual(1);
      if (status === 'paid') expect(held.length, label).toBe(1);
      const revived = world.rows(`SELECT status FROM orders WHERE revives = ${id}`);
      if (status === 'expired') expect(revived.map((row) => row.status)).toEqual(held.map(() => 'paid'));
      else expect(revived).toEqual([]);
      tally.revived += revived.length;
    }
    tally.refunded = world.rows(`SELECT id FROM payments WHERE state = 'refunded'`).length;
    return tally;
  } finally {
    await world.close();
  }
}

it.each([
  ['with the order’s locks', false],
  ['with the locks out: the ledger alone decides', true],
])(
  `P6: pay against expiry at the same instant, ${ORDERS} times on SQLite, %s: exactly one wins`,
  async (name, out) => {
    if (out) vi.spyOn(OrderLock.prototype, 'run').mockImplementation((_id, _waitMs, work) => work(null));
    const { random, label } = seedOf(`race, ${name}`);
    const sum: Tally = { paid: 0, expired: 0, revived: 0, refunded: 0 };
    for (let done = 0; done < ORDERS; done += BATCH) {
      // With many late money finds no goods, with none it does.
      const tally = await race(random, label, (done / BATCH) % 2 === 0 ? 0 : 3);
      for (const key of Object.keys(sum) as (keyof Tally)[]) sum[key] += tally[key];
    }
    console.log(`${label}: ${JSON.stringify(sum)}`);
    expect(sum.paid + sum.expired, label).toBe(ORDERS);
    // Both have won, and late money has had both ends: else nothing was tried.
    for (const [what, times] of Object.entries(sum)) expect(times, `${label} ${what}`).toBeGreaterThan(ORDERS / 200);
  },
  LONG ? 900_000 : 60_000,
);
