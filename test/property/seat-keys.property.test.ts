import fc from 'fast-check';
import { afterAll, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { actor } from '../../src/model/actor.ts';
import { buildSeatMap } from '../../src/model/seat-map.ts';
import type { OrderRequest } from '../../src/orders/seat-orders.ts';
import { createSaleIn } from '../support/new-sale.ts';
import { cleanUp, temporaryFolder } from '../support/server.ts';
import { seeded } from './seed.ts';

afterAll(cleanUp);

const BY = actor('system', 'test');
const SEATS = 8;
const name = (number: number): string => `S/R/${number}`;

type Wish = Pick<OrderRequest, 'itemCode' | 'quantity' | 'seats' | 'together'>;

/** Two wishes are the same request if this is the same. */
const requestOf = ({ quantity = 1, seats, together = false }: Wish): string =>
  seats ? `seats ${seats.toSorted().join()}` : `${quantity} ${together}`;

const named: fc.Arbitrary<Wish> = fc
  .uniqueArray(fc.integer({ min: 1, max: SEATS }), { minLength: 1, maxLength: 3 })
  .map((numbers) => ({ seats: numbers.map(name) }));
const best: fc.Arbitrary<Wish> = fc.record({
  itemCode: fc.constant('row'),
  quantity: fc.integer({ min: 1, max: 3 }),
  together: fc.boolean(),
});

type Command =
  | { do: 'place'; buyer: string; key: string | null; wish: Wish }
  | { do: 'cancel' | 'move'; at: number; to: number[] }
  | { do: 'restart' };

const commands: fc.Arbitrary<Command> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('place' as const),
      buyer: fc.constantFrom('ann', 'bob'),
      key: fc.constantFrom('k1', 'k2', null),
      wish: fc.oneof(named, best),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constantFrom('cancel' as const, 'move' as const),
      at: fc.nat(9),
      to: fc.uniqueArray(fc.integer({ min: 1, max: SEATS }), { minLength: 3, maxLength: 3 }),
    }),
  },
  { weight: 1, arbitrary: fc.constant({ do: 'restart' as const }) },
);

/** What the shop has promised so far. */
interface Promised {
  /** Orders that hold their seats. */
  readonly live: Map<string, string[]>;
  /** By buyer and key: the order and the request that it is bound to. */
  readonly bound: Map<string, { id: string; request: string }>;
}

async function follow(shop: EmbeddedShop, saleId: string, { live, bound }: Promised, command: Command): Promise<void> {
  if (command.do === 'restart') return;
  if (command.do !== 'place') {
    const [id, seats] = [...live][command.at % Math.max(live.size, 1)] ?? [];
    if (id === undefined) return;
    if (command.do === 'cancel') {
      expect(await shop.cancelOrder(id, BY)).toMatchObject({ ok: true });
      live.delete(id);
      return;
    }
    const to = command.to.slice(0, seats!.length).map(name);
    const others = new Set([...live].flatMap(([other, own]) => (other === id ? [] : own)));
    const taken = to.filter((seat) => others.has(seat)).toSorted();
    const moved = await shop.moveOrder(id, to, BY);
    if (taken.length > 0) expect(moved).toMatchObject({ ok: false, code: 'seat_taken', seats: taken });
    else {
      expect(moved).toMatchObject({ ok: true });
      live.set(id, to.toSorted());
    }
    return;
  }
  const { buyer, key, wish } = command;
  const placed = await shop.place({ saleId, buyer, key, ...wish });
  const first = key === null ? undefined : bound.get(`${buyer} ${key}`);
  if (first !== undefined) {
    if (first.request !== requestOf(wish)) expect(placed).toEqual({ ok: false, code: 'idempotency_key_reused' });
    else expect(placed).toMatchObject({ ok: true, replayed: true, order: { id: first.id } });
    return;
  }
  const taken = new Set([...live.values()].flat());
  if (!placed.ok) {
    if (wish.seats) {
      const seats = wish.seats.filter((seat) => taken.has(seat)).toSorted();
      expect(placed).toEqual({ ok: false, code: 'seat_taken', seats });
      expect(seats).not.toEqual([]);
    } else {
      const enough = SEATS - taken.size >= wish.quantity!;
      expect(placed).toEqual({ ok: false, code: enough ? 'not_together' : 'sold_out' });
      if (enough) expect(wish.together).toBe(true);
    }
    return;
  }
  expect(placed.replayed).toBe(false);
  const { id, seats } = await shop.present(placed.order);
  expect(live.has(id)).toBe(false);
  for (const seat of seats) expect(taken.has(seat), `P1: ${seat} has two orders`).toBe(false);
  if (wish.seats) expect(seats).toEqual(wish.seats.toSorted());
  else expect(seats).toHaveLength(wish.quantity!);
  live.set(id, seats);
  if (key !== null) bound.set(`${buyer} ${key}`, { id, request: requestOf(wish) });
}

it('P1 P5: one effect for a key, which is bound to seats and `together`, whatever is ordered, cancelled, moved and restarted', async () => {
  const { seed, numRuns } = seeded('keys of orders with seats', { short: 15, long: 300 });
  await fc.assert(
    fc.asyncProperty(fc.array(commands, { minLength: 10, maxLength: 30 }), async (program) => {
      const data = temporaryFolder();
      let shop = await EmbeddedShop.open(data, systemRuntime());
      try {
        const seats = buildSeatMap([{ section: 'S', row: 'R', from: 1, to: SEATS }]);
        const price = { amount: 1, currency: 'CNY' };
        const items = [{ code: 'row', name: 'Row', price, stock: SEATS, seats }];
        const saleId = await createSaleIn(shop, { perBuyer: 100, items });
        const promised: Promised = { live: new Map(), bound: new Map() };
        for (const command of program) {
          if (command.do === 'restart') {
            await shop.close();
            shop = await EmbeddedShop.open(data, systemRuntime());
          } else await follow(shop, saleId, promised, command);
        }
        for (const [id, own] of promised.live) expect((await shop.getOrder(id))!.seats).toEqual(own);
      } finally {
        await shop.close();
      }
    }),
    { seed: seed!, numRuns: numRuns! },
  );
}, 60_000);
