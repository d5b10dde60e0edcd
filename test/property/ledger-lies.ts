import fc from 'fast-check';
import { expect, it } from 'vitest';
import { DoorbusterError } from '../../src/base/errors.ts';
import { type AdminCall, KEY_KEPT_MS } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderMessage, OrderRecord } from '../../src/model/order.ts';
import type { LedgerUnderTest } from '../contract/ledger.ts';
import { T0 } from '../contract/manual.ts';
import { newSale } from '../support/new-sale.ts';
import { wholeSnapshot } from '../support/snapshot.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

/**
 * The ledger alone against a gate that lies: slots that are taken, units that are not there, keys of other orders, ids
 * used twice, items of other sales, old epochs, in batches, with crashes and half-done maintenance in between. Whatever
 * is sent, what stands in the ledger keeps P1, P2 and P5; and an order with which nothing is wrong is not refused
 * because of its neighbours.
 */
const ITEMS = [
  { saleId: '500', itemId: '501', code: 'voucher' },
  { saleId: '500', itemId: '502', code: 'poster' },
  { saleId: '600', itemId: '601', code: 'voucher' },
] as const;
const SALES = ['500', '600'];
const BUYERS = ['a', 'A', 'b'];
const KEYS = ['k1', 'k2'];
const PER_BUYER_MAX = 3;

/** Null, but once in `times`. */
function rarely<T>(times: number, arbitrary: fc.Arbitrary<T>): fc.Arbitrary<T | null> {
  return fc.oneof({ weight: times - 1, arbitrary: fc.constant(null) }, { weight: 1, arbitrary });
}

const lie = fc.record({
  /** Null: an id of its own; else one of a small pool, which others use too. */
  id: rarely(5, fc.nat(5)),
  item: fc.constantFrom(...ITEMS),
  buyer: fc.constantFrom(...BUYERS),
  quantity: fc.constantFrom(1, 1, 1, 2, 3),
  /** Null: the lowest free slots, as an honest gate gives. */
  slots: rarely(3, fc.array(fc.integer({ min: 0, max: 4 }), { minLength: 1, maxLength: 3 })),
  saleId: rarely(15, fc.constantFrom(...SALES)),
  epoch: fc.constantFrom(0, 0, 0, 0, 0, 0, 0, 0, -1, 1),
  key: rarely(2, fc.constantFrom(...KEYS)),
  body: fc.constantFrom('x', 'x', 'x', 'y'),
  /** A message again that was sent before, as it was. */
  again: rarely(6, fc.nat(999)),
});

const op = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({ do: fc.constant('commit' as const), lies: fc.array(lie, { minLength: 1, maxLength: 6 }) }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constantFrom('crash' as const, 'reopen' as const, 'slice' as const, 'fold' as const),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('pass' as const), hours: fc.constantFrom(1, 12, 24, 25) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('prune' as const, 'rebuild' as const) }) },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('stock' as const),
      item: fc.constantFrom(...ITEMS),
      add: fc.integer({ min: -3, max: 3 }),
    }),
  },
);

const program = fc.record({
  stock: fc.constantFrom(0, 1, 3, 6, 12),
  /** Orders of others in the tail, so that a slice of maintenance ends in the middle. */
  filler: fc.constantFrom(0, 60, 62, 130),
  ops: fc.array(op, { minLength: 1, maxLength: 14, size: 'max' }),
});

type Program = typeof program extends fc.Arbitrary<infer P> ? P : never;
type Lie = typeof lie extends fc.Arbitrary<infer L> ? L : never;
type Op = Program['ops'][number];

/** A message as it was first stored, with what became of it. */
interface Known {
  message: OrderMessage;
  live: boolean;
  atMs: number;
}

class Run {
  readonly #world: LedgerUnderTest;
  readonly #known = new Map<string, Known>();
  readonly #sent: OrderMessage[] = [];
  #lastId = 1000;

  constructor(world: LedgerUnderTest) {
    this.#world = world;
  }

  async start({ stock, filler }: Program): Promise<void> {
    const sale = newSale({ opensAtMs: T0, closesAtMs: T0 + 1, perBuyer: PER_BUYER_MAX });
    const item = (code: string, total: number) => ({
      code,
      name: code,
      price: { amount: 1, currency: 'CNY' },
      stock: total,
    });
    const { ledger } = this.#world;
    const both = [item('voucher', stock), item('poster', stock)];
    await ledger.createSale({ ...sale, items: both, id: '500', itemIds: ['501', '502'] }, this.#call());
    await ledger.createSale({ ...sale, items: [item('voucher', stock)], id: '600', itemIds: ['601'] }, this.#call());
    // Folded before all others: its sale is the first in key order.
    await ledger.createSale({ ...sale, items: [item('voucher', filler)], id: '100', itemIds: ['101'] }, this.#call());
    const fillers = Array.from({ length: filler }, (_, i) => ({
      ...this.#message({ saleId: '100', itemId: '101', code: 'voucher' }, `filler-${i}`),
    }));
    await ledger.commitOrders(fillers);
  }

  close(): Promise<void> {
    return this.#world.close();
  }

  #call(): AdminCall {
    return { by: actor('admin', 'admin'), auditId: String(++this.#lastId), keyed: null, answer: () => '' };
  }

  #message(item: { saleId: string; itemId: string; code: string }, buyer: string): OrderMessage {
    return {
      orderId: String(++this.#lastId),
      saleId: item.saleId,
      itemId: item.itemId,
      itemCode: item.code,
      buyer,
      quantity: 1,
      slots: [1],
      price: { amount: 1, currency: 'CNY' },
      payWithinSeconds: 60,
      epoch: 1,
      key: null,
      fingerprint: 'x',
    };
  }

  async step(op: Op): Promise<void> {
    const { ledger, clock } = this.#world;
    switch (op.do) {
      case 'commit':
        await this.#commit(op.lies);
        break;
      case 'crash':
      case 'reopen':
        await this.#world[op.do]();
        break;
      case 'slice':
        await ledger.maintain(0);
        break;
      case 'fold':
        while (await ledger.maintain(1000));
        break;
      case 'pass':
        clock.advance(op.hours * 3600 * 1000);
        break;
      case 'prune':
        await ledger.pruneKeys(KEY_KEPT_MS);
        break;
      case 'rebuild':
        await this.#rebuild();
        break;
      case 'stock':
        await ledger.addStock(op.item.saleId, op.item.code, op.add, this.#call());
        break;
    }
    await this.judge();
  }

  async #commit(lies: Lie[]): Promise<void> {
    const { ledger } = this.#world;
    const batch: OrderMessage[] = [];
    for (const lie of lies) batch.push(await this.#tell(lie, batch));
    this.#sent.push(...batch);
    const clean = await this.#cleanOnes(batch);
    const revs = await this.#revs();
    const before = new Set(this.#known.keys());
    const epochs = new Map<string, number>();
    for (const { itemId } of ITEMS) epochs.set(itemId, (await this.#item(itemId)).epoch);

    // As the writer does it: a batch with a fault in it is sent again one by one.
    let stored: OrderRecord[][];
    try {
      stored = [await this.#commitOnce(batch)];
    } catch {
      stored = [];
      for (const message of batch) {
        const known = this.#known.get(message.orderId);
        const fault = known !== undefined && !sameContent(known.message, message);
        try {
          stored.push(await this.#commitOnce([message]));
          expect(fault, `order ${message.orderId} with other content was taken for the same`).toBe(false);
        } catch (error) {
          if (!(error instanceof DoorbusterError && error.code === 'order_id_reused')) throw error;
          expect(fault, `order ${message.orderId} is not stored with other content`).toBe(true);
        }
      }
    }
    for (const { message } of this.#live()) {
      if (before.has(message.orderId)) continue;
      expect(message.epoch, `order ${message.orderId} is of another epoch`).toBe(epochs.get(message.itemId));
    }
    const records = stored.flat();
    const byId = new Map(records.map((order) => [order.id, order]));
    for (const message of clean) {
      const { status, reason } = byId.get(message.orderId)!;
      expect(`${status} ${reason}`, `nothing is wrong with order ${message.orderId}`).toBe('reserved null');
    }
    if (stored.length === 1) {
      // One transaction: rev rises by one for an item of which units moved, and not otherwise.
      const after = await this.#revs();
      for (const { itemId } of ITEMS) {
        const moved = this.#live().some(({ message }) => !before.has(message.orderId) && message.itemId === itemId);
        expect(after.get(itemId)! - revs.get(itemId)!, `rev of item ${itemId}`).toBe(moved ? 1 : 0);
      }
    }
    for (const [orderId, order] of await ledger.storedAmong([...byId.keys()])) {
      expect(byId.get(orderId), 'what is answered is what is stored').toEqual(order);
    }
  }

  async #commitOnce(batch: OrderMessage[]): Promise<OrderRecord[]> {
    const { ledger, clock } = this.#world;
    const stored = await ledger.commitOrders(batch);
    for (const [at, { order, inserted }] of stored.entries()) {
      const message = batch[at]!;
      expect(order.id).toBe(message.orderId);
      const known = this.#known.get(order.id);
      expect(inserted, `order ${order.id} was inserted once`).toBe(known === undefined);
      if (inserted) this.#known.set(order.id, { message, live: order.status === 'reserved', atMs: clock.now() });
      else expect(sameContent(known!.message, message)).toBe(true);
      expect(order.status === 'reserved', 'the verdict on an order never changes').toBe(
        this.#known.get(order.id)!.live,
      );
    }
    return stored.map(({ order }) => order);
  }

  async #tell(lie: Lie, before: OrderMessage[]): Promise<OrderMessage> {
    const sent = [...this.#sent, ...before];
    const again = lie.again === null ? undefined : sent[lie.again % sent.length];
    if (again) return again;
    const { item, buyer, quantity, key } = lie;
    const message = this.#message(item, buyer);
    if (lie.id !== null) message.orderId = String(700 + lie.id);
    if (lie.saleId !== null) message.saleId = lie.saleId;
    const taken = [...this.#live().map((known) => known.message), ...before]
      .filter((other) => other.saleId === message.saleId && other.buyer === buyer)
      .flatMap(({ slots }) => slots);
    const free = [1, 2, 3].filter((slot) => !taken.includes(slot));
    const slots = lie.slots ?? free.slice(0, quantity);
    const epoch = (await this.#item(item.itemId)).epoch + lie.epoch;
    return {
      ...message,
      quantity: lie.slots && quantity === 3 ? 3 : Math.max(slots.length, 1),
      slots,
      epoch,
      key,
      fingerprint: lie.body,
    };
  }

  /** The orders of a batch that are right by themselves and beside each other. */
  async #cleanOnes(batch: OrderMessage[]): Promise<OrderMessage[]> {
    const nowMs = this.#world.clock.now();
    const live = this.#live();
    const clean: OrderMessage[] = [];
    for (const message of batch) {
      const { orderId, itemId, saleId, buyer, slots, quantity, key, epoch } = message;
      const others = batch.filter((other) => other !== message);
      const rivals = others.filter((other) => other.saleId === saleId && other.buyer === buyer);
      const row = await this.#item(itemId);
      const wanted = batch.filter((other) => other.itemId === itemId).reduce((sum, other) => sum + other.quantity, 0);
      const right =
        !this.#known.has(orderId) &&
        batch.filter((other) => other.orderId === orderId).length === 1 &&
        ITEMS.some((item) => item.itemId === itemId && item.saleId === saleId) &&
        epoch === row.epoch &&
        slots.length === quantity &&
        new Set(slots).size === quantity &&
        slots.every((slot) => slot >= 1 && slot <= PER_BUYER_MAX) &&
        !live.some((known) => overlap(known.message, message)) &&
        !rivals.some((other) => overlap(other, message) || (key !== null && other.key === key)) &&
        (key === null || this.#boundTo(saleId, buyer, key, nowMs) === null) &&
        wanted <= row.total - row.reserved;
      if (right) clean.push(message);
    }
    return clean;
  }

  async #rebuild(): Promise<void> {
    for (const saleId of SALES) {
      const [item] = (await this.#world.ledger.getSale(saleId))!.items;
      const snapshot = (await wholeSnapshot(this.#world.ledger, saleId))!;
      expect(snapshot.epoch, 'a rebuild raises the epoch').toBe(item!.epoch + 1);
      const mine = this.#live().filter(({ message }) => message.saleId === saleId);
      expect(new Set(snapshot.holds.map(({ orderId }) => orderId))).toEqual(
        new Set(mine.map(({ message }) => message.orderId)),
      );
      const places = snapshot.holds.flatMap(({ buyer, slots }) => slots.map((slot) => `${buyer} ${slot}`));
      expect(new Set(places).size, 'P2: two live orders in one slot').toBe(places.length);
      const keys = snapshot.keys.map(({ buyer, key }) => `${buyer} ${key}`);
      expect(new Set(keys).size, 'P5: one key, two orders').toBe(keys.length);
    }
  }

  async judge(): Promise<void> {
    const { ledger, clock } = this.#world;
    const rows = await ledger.storedAmong([...this.#known.keys()]);
    expect(rows.size, 'P3: what was stored is stored').toBe(this.#known.size);
    for (const { itemId } of ITEMS) {
      const { total, reserved, blocked } = await this.#item(itemId);
      const mine = [...rows.values()].filter((order) => order.itemId === itemId && order.status === 'reserved');
      const units = mine.reduce((sum, order) => sum + order.quantity, 0);
      expect(units, `P1: units of item ${itemId} above its total`).toBeLessThanOrEqual(total - blocked);
      expect(reserved, `P9: reserved of item ${itemId}`).toBe(units);
    }
    const live = this.#live();
    for (const [at, { message }] of live.entries()) {
      const { slots, saleId, itemId } = message;
      expect(
        ITEMS.some((item) => item.itemId === itemId && item.saleId === saleId),
        'P2: of another sale',
      ).toBe(true);
      expect(slots.every((slot) => slot >= 1 && slot <= PER_BUYER_MAX) && slots.length === message.quantity).toBe(true);
      const twin = live.slice(at + 1).find((other) => overlap(other.message, message));
      expect(twin?.message.orderId, `P2: in a slot of order ${message.orderId}`).toBeUndefined();
    }
    for (const buyer of BUYERS) {
      const listed = await ledger.listOrders({ buyer, status: 'reserved' }, { limit: 1000, before: null });
      const mine = live.filter(({ message }) => message.buyer === buyer).map(({ message }) => message.orderId);
      expect(listed.map(({ id }) => id).toSorted()).toEqual(mine.toSorted());
      for (const saleId of SALES) {
        for (const key of KEYS) {
          const bound = await ledger.findOrderKey({ saleId, buyer, key });
          expect(bound?.orderId ?? null, `P5: ${buyer}’s ${key}`).toBe(this.#boundTo(saleId, buyer, key, clock.now()));
        }
      }
    }
  }

  #live(): Known[] {
    return [...this.#known.values()].filter(({ live }) => live);
  }

  #boundTo(saleId: string, buyer: string, key: string, nowMs: number): string | null {
    const bound = this.#live().filter(
      ({ message, atMs }) =>
        message.saleId === saleId && message.buyer === buyer && message.key === key && nowMs - atMs < KEY_KEPT_MS,
    );
    expect(bound.length, `P5: ${buyer}’s ${key} has two orders`).toBeLessThanOrEqual(1);
    return bound[0]?.message.orderId ?? null;
  }

  async #item(itemId: string) {
    const { saleId } = ITEMS.find((item) => item.itemId === itemId)!;
    return (await this.#world.ledger.getSale(saleId))!.items.find((item) => item.id === itemId)!;
  }

  async #revs(): Promise<Map<string, number>> {
    const revs = new Map<string, number>();
    for (const { itemId } of ITEMS) revs.set(itemId, (await this.#item(itemId)).rev);
    return revs;
  }
}

function overlap(a: OrderMessage, b: OrderMessage): boolean {
  return a.saleId === b.saleId && a.buyer === b.buyer && a.slots.some((slot) => b.slots.includes(slot));
}

function sameContent(a: OrderMessage, b: OrderMessage): boolean {
  const content = ({ saleId, itemId, buyer, quantity, slots, fingerprint }: OrderMessage): string =>
    JSON.stringify([saleId, itemId, buyer, quantity, slots, fingerprint]);
  return content(a) === content(b);
}

/** The property on one adapter: `make` gives an empty ledger for each run. */
export function ledgerUnderLies(
  name: string,
  make: () => Promise<LedgerUnderTest>,
  runs: { short: number; long: number },
): void {
  it(
    `P1 P2 P5: whatever is sent, and whenever it crashes, what is stored keeps the promises (${name})`,
    async () => {
      await fc.assert(
        fc.asyncProperty(program, async (program) => {
          const run = new Run(await make());
          try {
            await run.start(program);
            for (const op of program.ops) await run.step(op);
            for (const op of ['rebuild', 'crash', 'fold', 'rebuild'] as const) await run.step({ do: op });
          } finally {
            await run.close();
          }
        }),
        seeded(`ledger ${name}`, runs),
      );
    },
    LONG_TIMEOUT_MS,
  );
}
