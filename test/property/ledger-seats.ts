import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { Moved, SeatsMoved } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderMessage, OrderStatus } from '../../src/model/order.ts';
import { type LifeUnderTest, PAY_WITHIN_MS, PRICE, SALE } from '../contract/ledger-life-kit.ts';
import { BALCONY, mapOf, SeatKit, STALLS, STANDING, seatedItem } from '../contract/ledger-seats-kit.ts';
import { wholeSnapshot } from '../support/snapshot.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

/** Few enough that most of what is asked for is taken. */
const SIZES: Record<string, number> = { [STALLS]: 12, [BALCONY]: 4 };
const STANDING_STOCK = 1000;

// Programs

interface Wanted {
  readonly itemId: string;
  readonly seats: number[];
}

/** Orders are meant by their number among those that there are. */
type Op =
  | { do: 'commit'; batch: (Wanted | { again: number } | 'standing')[] }
  | { do: 'move'; order: number; seats: number[] }
  | { do: 'block'; blocked: boolean; wanted: Wanted[] }
  | { do: 'end'; orders: number[]; event: 'cancel' | 'expire' | 'refund' }
  | { do: 'pay'; order: number }
  | { do: 'fill'; ahead: boolean }
  | { do: 'late' | 'slice' | 'fold' | 'crash' | 'reopen' | 'rebuild' };

/** Mostly the latest: what happens to old ones is soon the same. */
const number = fc.oneof({ weight: 3, arbitrary: fc.nat(3) }, { weight: 1, arbitrary: fc.nat(40) });

const seatsOf = (itemId: string, maxLength: number): fc.Arbitrary<number[]> =>
  fc
    .uniqueArray(fc.nat(SIZES[itemId]! - 1), { minLength: 1, maxLength })
    .map((seats) => seats.toSorted((a, b) => a - b));

const wanted: fc.Arbitrary<Wanted> = fc
  .oneof({ weight: 3, arbitrary: fc.constant(STALLS) }, { weight: 1, arbitrary: fc.constant(BALCONY) })
  .chain((itemId) => seatsOf(itemId, 3).map((seats) => ({ itemId, seats })));

const op: fc.Arbitrary<Op> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('commit' as const),
      batch: fc.array(
        fc.oneof(
          { weight: 6, arbitrary: wanted },
          { weight: 2, arbitrary: fc.record({ again: number }) },
          { weight: 1, arbitrary: fc.constant('standing' as const) },
        ),
        { minLength: 1, maxLength: 4 },
      ),
    }),
  },
  {
    weight: 6,
    arbitrary: fc.record({ do: fc.constant('move' as const), order: number, seats: seatsOf(STALLS, 12) }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('block' as const),
      blocked: fc.boolean(),
      wanted: fc.uniqueArray(wanted, { minLength: 1, maxLength: 2, selector: ({ itemId }) => itemId }),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constant('end' as const),
      orders: fc.uniqueArray(number, { minLength: 1, maxLength: 3 }),
      event: fc.constantFrom('cancel' as const, 'expire' as const, 'refund' as const),
    }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('pay' as const), order: number }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('fill' as const), ahead: fc.boolean() }) },
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constantFrom(
        ...(['late', 'slice', 'slice', 'fold', 'crash', 'reopen', 'rebuild'] as const satisfies Op['do'][]),
      ),
    }),
  },
);

// The model: what the ledger should say, in the plainest words

interface ModelOrder {
  readonly message: OrderMessage;
  status: OrderStatus;
  seats: number[];
  version: number;
  expiresAtMs: number;
}

class Model {
  readonly orders: ModelOrder[] = [];
  /** 'item seat' of the house. */
  readonly blocked = new Set<string>();

  isLive({ status }: ModelOrder): boolean {
    return status === 'reserved' || status === 'paid';
  }

  ownerOf(itemId: string, seat: number): ModelOrder | undefined {
    return this.orders.find(
      (order) => this.isLive(order) && order.message.itemId === itemId && order.seats.includes(seat),
    );
  }

  isFree(itemId: string, seat: number, but?: ModelOrder): boolean {
    const owner = this.ownerOf(itemId, seat);
    return (owner === undefined || owner === but) && !this.blocked.has(`${itemId} ${seat}`);
  }

  blockedOf(itemId: string): number[] {
    return [...this.blocked]
      .map((place) => place.split(' '))
      .filter(([item]) => item === itemId)
      .map(([, seat]) => Number(seat))
      .toSorted((a, b) => a - b);
  }

  units(itemId: string, status: OrderStatus): number {
    return this.orders
      .filter((order) => order.message.itemId === itemId && order.status === status)
      .reduce((sum, { message }) => sum + message.quantity, 0);
  }

  end(order: ModelOrder, event: 'cancel' | 'expire' | 'refund', nowMs: number): Moved['outcome'] {
    const to = { cancel: 'cancelled', expire: 'expired', refund: 'refunded' } as const;
    if (order.status === to[event]) return 'repeat';
    if (order.status !== (event === 'refund' ? 'paid' : 'reserved')) return 'refused';
    if (event === 'expire' && nowMs < order.expiresAtMs) return 'not_due';
    order.status = to[event];
    order.version++;
    return 'moved';
  }
}

// A run of a program on a ledger and on the model

class Run {
  readonly #kit: SeatKit;
  readonly #model = new Model();
  #fillers = 0;
  #buyers = 0;

  constructor(world: LifeUnderTest) {
    this.#kit = new SeatKit(world);
  }

  async start(): Promise<void> {
    const items = [
      seatedItem('stalls', mapOf(SIZES[STALLS]!)),
      { code: 'standing', name: 'standing', price: PRICE, stock: STANDING_STOCK },
      seatedItem('balcony', mapOf(SIZES[BALCONY]!, 'Balcony')),
    ];
    await this.#kit.createHall(SALE, { items });
    for (const saleId of ['100', '900']) await this.#kit.createSale(saleId);
  }

  close(): Promise<void> {
    return this.#kit.world.close();
  }

  #latest(number: number): ModelOrder | undefined {
    const { orders } = this.#model;
    return orders[orders.length - 1 - (number % Math.max(orders.length, 1))];
  }

  async step(op: Op): Promise<void> {
    const kit = this.#kit;
    const { ledger, world } = kit;
    switch (op.do) {
      case 'commit':
        await this.#commit(op.batch);
        break;
      case 'move':
        await this.#move(op);
        break;
      case 'block':
        await this.#block(op);
        break;
      case 'end':
        await this.#end(op);
        break;
      case 'pay': {
        const order = this.#latest(op.order);
        if (order?.status !== 'reserved' || kit.nowMs >= order.expiresAtMs) return;
        await kit.paidFor((await kit.stored(order.message.orderId))!);
        Object.assign(order, { status: 'paid', version: order.version + 1 });
        break;
      }
      case 'fill': {
        const saleId = op.ahead ? '100' : '900';
        const batch = Array.from({ length: 63 }, () => kit.message(`filler-${++this.#fillers}`, { saleId }));
        await ledger.commitOrders(batch);
        break;
      }
      case 'late':
        world.clock.advance(PAY_WITHIN_MS);
        break;
      case 'slice':
        await ledger.maintain(0);
        break;
      case 'fold':
        while (await ledger.maintain(1000));
        break;
      case 'crash':
      case 'reopen':
        await world[op.do]();
        break;
      case 'rebuild':
        await this.#rebuild();
        break;
    }
    await this.#judge();
  }

  async #commit(wishes: Extract<Op, { do: 'commit' }>['batch']): Promise<void> {
    const kit = this.#kit;
    const model = this.#model;
    const batch: OrderMessage[] = [];
    const expected: string[] = [];
    const before = model.orders.length;
    for (const wish of wishes) {
      if (typeof wish === 'object' && 'again' in wish) {
        // As it was admitted, whatever it was moved to since and whatever has become of it.
        const order = this.#latest(wish.again);
        if (order === undefined) continue;
        batch.push(order.message);
        const fresh = model.orders.indexOf(order) >= before;
        expected.push(`${fresh && order.status === 'rejected' ? 'seat_taken' : this.#said(order)} false`);
        continue;
      }
      const buyer = `buyer-${++this.#buyers}`;
      const message =
        wish === 'standing' ? kit.standing(buyer) : kit.seated(buyer, wish.seats, { itemId: wish.itemId });
      const seats = message.seats ?? [];
      const taken = !seats.every((seat) => model.isFree(message.itemId, seat));
      const status = taken ? 'rejected' : 'reserved';
      const order: ModelOrder = { message, status, seats, version: 1, expiresAtMs: kit.nowMs + PAY_WITHIN_MS };
      model.orders.push(order);
      batch.push(message);
      expected.push(`${this.#said(order)} true`);
    }
    if (batch.length === 0) return;
    const stored = await kit.ledger.commitOrders(batch);
    const said = stored.map(({ order, inserted }) => `${order.reason ?? order.status} ${inserted}`);
    expect(said, JSON.stringify(batch.map(({ orderId, seats }) => [orderId, seats]))).toEqual(expected);
  }

  #said({ status }: ModelOrder): string {
    return status === 'rejected' ? 'seat_taken' : status;
  }

  async #move({ order: number, seats: drawn }: Extract<Op, { do: 'move' }>): Promise<void> {
    const order = this.#latest(number);
    if (order === undefined) return;
    const { itemId, orderId, quantity } = order.message;
    const size = SIZES[itemId] ?? SIZES[STALLS]!;
    // As many as the order has, of its own item.
    const seats = [...new Set(drawn.map((seat) => seat % size))].slice(0, quantity).toSorted((a, b) => a - b);
    if (seats.length < quantity) return;
    let expected: SeatsMoved['outcome'];
    const taken = seats.filter((seat) => !this.#model.isFree(itemId, seat, order));
    if (order.message.seats === undefined || !this.#model.isLive(order)) expected = 'not_movable';
    else if (seats.join() === order.seats.join()) expected = 'repeat';
    else expected = taken.length > 0 ? 'seat_taken' : 'moved';
    const rev = await this.#rev(itemId);
    const wanted = { orderId, seats, by: actor('admin', 'x'), auditId: this.#kit.id(), fence: null };
    const moved = await this.#kit.ledger.moveSeats(wanted);
    expect(moved.outcome, `order ${orderId} to ${seats}`).toBe(expected);
    if (moved.outcome === 'seat_taken') expect(moved.taken).toEqual(taken);
    expect(await this.#rev(itemId)).toBe(rev + (expected === 'moved' ? 1 : 0));
    if (expected === 'moved') Object.assign(order, { seats, version: order.version + 1 });
  }

  async #rev(itemId: string): Promise<number> {
    return (await this.#kit.ledger.getSale(SALE))!.items.find(({ id }) => id === itemId)!.rev;
  }

  async #block({ wanted: some, blocked }: Extract<Op, { do: 'block' }>): Promise<void> {
    const model = this.#model;
    const taken = some.flatMap(({ itemId, seats }) => {
      const theirs = seats.filter((seat) => model.ownerOf(itemId, seat) !== undefined);
      return theirs.length === 0 ? [] : [{ itemId, seats: theirs }];
    });
    const change = await this.#kit.ledger.setBlocked(SALE, some, blocked, this.#kit.call());
    if (taken.length > 0) {
      const byItem = taken.toSorted((a, b) => Number(a.itemId) - Number(b.itemId));
      expect(change).toEqual({ outcome: 'seat_taken', taken: byItem });
      return;
    }
    expect(change.outcome).toBe('changed');
    for (const { itemId, seats } of some) {
      for (const seat of seats) model.blocked[blocked ? 'add' : 'delete'](`${itemId} ${seat}`);
    }
  }

  async #end({ orders: numbers, event }: Extract<Op, { do: 'end' }>): Promise<void> {
    const kit = this.#kit;
    const orders = new Set(numbers.flatMap((number) => this.#latest(number) ?? []));
    const some = [...orders].filter(({ status }) => status !== 'rejected');
    const expected = some.map((order) => this.#model.end(order, event, kit.nowMs));
    const moves = some.map(({ message }) => kit.move(event, { id: message.orderId }));
    const moved = await kit.ledger.moveOrders(moves);
    expect(moved.map(({ outcome }) => outcome)).toEqual(expected);
  }

  async #rebuild(): Promise<void> {
    const model = this.#model;
    const { items, holds, epoch } = (await wholeSnapshot(this.#kit.ledger, SALE))!;
    this.#kit.epoch = epoch;
    expect(items.map(({ seats }) => seats?.blocked ?? null)).toEqual([
      model.blockedOf(STALLS),
      null,
      model.blockedOf(BALCONY),
    ]);
    const live = model.orders
      .filter((order) => model.isLive(order))
      .map(({ message: { orderId, itemId, buyer, slots, seats: seated }, seats, status }) => ({
        ...{ orderId, itemId, buyer, slots },
        ...(seated !== undefined && { seats, paid: status === 'paid' }),
      }));
    expect(holds, 'P1: the seats of live orders').toEqual(live);
  }

  async #judge(): Promise<void> {
    const { ledger } = this.#kit;
    const model = this.#model;
    const stored = await ledger.storedAmong(model.orders.map(({ message }) => message.orderId));
    expect([...stored.values()].map(({ id, status, version, seats }) => `${id} ${status} ${version} ${seats}`)).toEqual(
      model.orders.map(({ message, status, version, seats }) => {
        return `${message.orderId} ${status} ${version} ${message.seats === undefined ? undefined : seats}`;
      }),
    );
    for (const { id, total, reserved, sold, blocked } of (await ledger.getSale(SALE))!.items) {
      const counts = [model.units(id, 'reserved'), model.units(id, 'paid'), model.blockedOf(id).length];
      expect([reserved, sold, blocked], `P9: units of item ${id}`).toEqual(counts);
      if (id === STANDING) continue;
      const free = Array.from({ length: total }, (_, seat) => seat).filter((seat) => model.isFree(id, seat));
      expect(free.length + reserved + sold + blocked, `P9: every seat of item ${id} is somewhere`).toBe(total);
    }
    await this.#kit.judge();
  }

  /** At rest: what is in the tables agrees with itself. */
  async end(): Promise<void> {
    for (const op of ['rebuild', 'crash', 'fold', 'rebuild'] as const) await this.step({ do: op });
    await this.#kit.judge(true);
  }
}

/** The property on one adapter: `make` gives an empty ledger for each run. */
export function seatsKept(
  name: string,
  make: () => Promise<LifeUnderTest>,
  runs: { short: number; long: number; opsMax: number },
): void {
  it(
    `P1 P4 P9: whatever is ordered, moved, blocked, ended and sent again, every seat is where the model says (${name})`,
    async () => {
      const program = fc.array(op, { minLength: 10, maxLength: runs.opsMax, size: 'max' });
      await fc.assert(
        fc.asyncProperty(program, async (ops) => {
          const run = new Run(await make());
          try {
            await run.start();
            for (const one of ops) await run.step(one);
            await run.end();
          } finally {
            await run.close();
          }
        }),
        seeded(`seats ${name}`, runs),
      );
    },
    LONG_TIMEOUT_MS,
  );
}
