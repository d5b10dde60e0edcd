import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { unavailable } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import { type Gate, houseHoldId, type KeptGate, type SharedGate } from '../../src/gate/port.ts';
import { Rebuilder } from '../../src/gate/rebuild.ts';
import { RedisGate } from '../../src/gate/redis/gate.ts';
import { scriptNamed } from '../../src/gate/redis/scripts.ts';
import { GateUpkeep } from '../../src/gate/upkeep.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderRecord } from '../../src/model/order.ts';
import { buildSeatMap, encodeSeatMap } from '../../src/model/seat-map.ts';
import { SeatMover } from '../../src/orders/life/seat-mover.ts';
import { ownPrefix } from '../contract/gate-redis-world.ts';
import { SALE } from '../contract/ledger-life-kit.ts';
import { SeatKit, STALLS } from '../contract/ledger-seats-kit.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';
import { sqliteUnderTest } from '../support/sqlite-ledger.ts';

const range = (from: number, to: number): number[] => Array.from({ length: to - from + 1 }, (_, at) => from + at);

type AnyGate = KeptGate & Partial<Pick<SharedGate, 'houseHolds' | 'enlist' | 'emptiedAt' | 'setEmptied'>>;

/** A gate and a real ledger (SQLite), and what carries from one to the other: rebuilds, moves, upkeep. */
function seatsBetween(name: string, make: () => Promise<{ gate: AnyGate; end(): void }>): void {
  describe(`seats between the ledger and the gate: ${name}`, () => {
    let kit: SeatKit;
    let gate: AnyGate;
    let end: () => void;
    let rebuilder: Rebuilder;
    /** Happens when the pages of the next snapshot are read, and before the gate is told what has changed since. */
    let meanwhile: () => Promise<unknown>;

    beforeEach(async () => {
      ({ gate, end } = await make());
      kit = new SeatKit(sqliteUnderTest());
      await kit.createHall();
      meanwhile = async () => undefined;
      const ledger = new Proxy(kit.ledger, {
        get(target, property) {
          const value = Reflect.get(target, property, target) as unknown;
          if (property !== 'rebuildSnapshot') return typeof value === 'function' ? value.bind(target) : value;
          return async (...args: Parameters<Ledger['rebuildSnapshot']>) => {
            const snapshot = await target.rebuildSnapshot(...args);
            return snapshot && { ...snapshot, content: slowly(snapshot.content) };
          };
        },
      });
      rebuilder = new Rebuilder({
        runtime: systemRuntime(),
        gate,
        ledger,
        pipe: { caughtUp: async () => true, depthOf: async () => 0 },
        lock: async () => ({ release: async () => undefined }),
        drainMsMax: 1000,
        drainIdleMsMax: 1000,
        rebuilding: async () => ({ auditId: kit.id(), by: actor('system', 'gate') }),
        rebuilt: () => undefined,
      });
    });
    afterEach(async () => {
      end();
      await kit.world.close();
    });

    async function* slowly<T>(pages: AsyncIterable<T> | Iterable<T>): AsyncGenerator<T> {
      yield* pages;
      await meanwhile();
    }

    async function rebuild(): Promise<void> {
      const built = await rebuilder.build(SALE, (await gate.epochOf(SALE)) ?? 0);
      kit.epoch = built!.epoch;
    }

    async function states(): Promise<string> {
      const seen = await gate.seats(SALE);
      if (seen === null || !('items' in seen)) throw new Error('no seats are shown');
      return seen.items.find(({ itemId }) => itemId === STALLS)!.states;
    }

    /** The states as the ledger has them. */
    async function stored(): Promise<string> {
      const letters = Array.from({ length: 40 }, () => 'f');
      for (const seat of await kit.blocked()) letters[seat] = 'b';
      for (const { status, seats, itemId } of await kit.ledger.listOrders(
        { saleId: SALE },
        { limit: 200, before: null },
      )) {
        if (itemId !== STALLS || (status !== 'reserved' && status !== 'paid')) continue;
        for (const seat of seats!) letters[seat] = status === 'paid' ? 's' : 'r';
      }
      return letters.join('');
    }

    async function cancel(order: OrderRecord): Promise<void> {
      const { outcome } = await kit.one(kit.move('cancel', order));
      expect(outcome).toBe('moved');
    }

    const holdOf = ({ id, buyer }: OrderRecord) => ({ orderId: id, buyer });

    it('a rebuild restores every reserved, paid and blocked seat', async () => {
      await rebuild();
      await kit.sits('alice', [3, 4]);
      await kit.paidFor(await kit.sits('bob', [10]));
      await cancel(await kit.sits('carol', [20]));
      await kit.block(0, 39);
      await rebuild();
      expect(await states()).toBe(`b${'f'.repeat(2)}rr${'f'.repeat(5)}s${'f'.repeat(28)}b`);
      expect(await states()).toBe(await stored());
      expect((await gate.view(SALE))![0]).toMatchObject({ held: 3, blocked: 2, free: 35 });
    });

    it('P1: what is moved, ended, blocked and unblocked while a gate is built is told to it before it opens', async () => {
      await rebuild();
      const [a, b, c] = [await kit.sits('a', [1]), await kit.sits('b', [2]), await kit.sits('c', [3, 4])];
      await kit.block(30, 31);
      meanwhile = async () => {
        // 1 → 5 → 2: the seat of an order that has left it meanwhile; and back to where another one sat.
        await kit.moveTo(a, [5]);
        await kit.moveTo(b, [1]);
        await kit.moveTo(a, [2]);
        await cancel(c);
        await kit.unblock(30);
        await kit.block(3);
        meanwhile = async () => undefined;
      };
      await rebuild();
      expect(await states()).toBe(await stored());
      expect(await gate.holdOf(SALE, holdOf(a))).toMatchObject({ seats: [2] });
      expect(await gate.holdOf(SALE, holdOf(b))).toMatchObject({ seats: [1] });
      // The rows of these moves come once more, late.
      for (const move of await kit.ledger.seatMoves(9, 0)) await gate.moveSeats(SALE, move);
      expect(await states()).toBe(await stored());
    });

    it('P1: a move goes house → ledger → gate, and survives a rebuild between each two of these', async () => {
      for (const rebuilt of ['never', 'after the house', 'after the ledger', 'both']) {
        await rebuild();
        const order = await kit.sits(`buyer ${rebuilt}`, [7, 8]);
        // As the settled admission would have left it.
        await rebuild();
        const auditId = kit.id();
        const held = await gate.holdSeats(SALE, STALLS, [8, 9], { holdId: houseHoldId(auditId), order: holdOf(order) });
        expect(held).toEqual({ outcome: 'held' });
        if (rebuilt === 'after the house' || rebuilt === 'both') await rebuild();
        expect((await kit.moveTo(order, [8, 9], { auditId })).outcome).toBe('moved');
        if (rebuilt === 'after the ledger' || rebuilt === 'both') await rebuild();
        for (const move of await kit.ledger.seatMoves(9, 0)) {
          await gate.moveSeats(SALE, move);
          await gate.moveSeats(SALE, move);
        }
        expect(await states(), rebuilt).toBe(await stored());
        expect((await gate.view(SALE))![0], rebuilt).toMatchObject({ house: 0, held: 2 });
        await cancel(order);
        await gate.release(SALE, holdOf(order));
        expect(await states(), rebuilt).toBe(await stored());
      }
    });

    it('rows of moves are carried to the gate: by whoever moved, and else by the sweep; each until it is told', async () => {
      const order = await kit.sits('alice', [3]);
      await rebuild();
      let out = true;
      const touched: string[] = [];
      const told: Pick<Gate, 'moveSeats'> = {
        moveSeats: (saleId, move) => {
          if (out) throw unavailable('the gate is out');
          return gate.moveSeats(saleId, move);
        },
      };
      const quiet = { ...systemRuntime().log, warn: () => undefined };
      const runtime = { ...systemRuntime(), log: quiet as unknown as ReturnType<typeof systemRuntime>['log'] };
      const mover = new SeatMover({ ledger: kit.ledger, gate: told, touched: (id) => touched.push(id) }, runtime);
      await kit.moveTo(order, [5]);
      const [move] = await kit.ledger.seatMoves(9, 0);
      await mover.add(move!);
      expect(await kit.ledger.seatMoves(9, 0), 'its row stands').toHaveLength(1);
      kit.world.clock.advance(5000);
      await expect(mover.sweep()).rejects.toThrow('the gate is out');
      expect(mover.counters).toEqual({ waiting: 1, oldestMs: 5000 });
      out = false;
      const again = new SeatMover({ ledger: kit.ledger, gate: told, touched: (id) => touched.push(id) }, runtime);
      expect(await again.sweep()).toEqual({ changed: 1, more: false });
      expect(await kit.ledger.seatMoves(9, 0)).toEqual([]);
      expect(await states()).toBe(await stored());
      expect(touched).toContain(SALE);
      await kit.moveTo(order, [6]);
      await mover.add((await kit.ledger.seatMoves(9, 0))[0]!);
      expect(await kit.ledger.seatMoves(9, 0)).toEqual([]);
      expect(await states()).toBe(await stored());
    });
  });
}

seatsBetween('memory', async () => ({ gate: new MemoryGate(systemRuntime(), () => undefined), end: () => undefined }));

describeWithAnyRedis('seats between the ledger and Redis', () => {
  let target: string;
  let eye: Redis;
  let prefix: string;

  beforeAll(async () => {
    target = await redisUrl();
    eye = new Redis(target);
  });
  afterAll(async () => {
    eye.disconnect();
    await cleanUpServers();
  });

  const make = async (): Promise<{ gate: RedisGate; end(): void }> => {
    prefix = ownPrefix();
    const gate = new RedisGate({ target, prefix }, systemRuntime());
    return { gate, end: () => gate.close() };
  };
  seatsBetween('redis', make);

  it('P1: a part of the seats that comes when the gate is built changes nothing', async () => {
    const { gate, end } = await make();
    const map = buildSeatMap([{ section: 'S', row: 'A', from: 1, to: 4 }]);
    const nowMs = Date.now();
    await gate.install({
      ...{ saleId: '7', epoch: 3, version: 1, opensAtMs: nowMs - 1000, closesAtMs: nowMs + 3_600_000, mayAdmit: true },
      ...{ paused: false, closed: false, perBuyer: 1, payWithinSeconds: 900, content: [] },
      items: [
        {
          ...{ id: '11', code: 'stalls', price: { amount: 1, currency: 'CNY' }, total: 4, blocked: 0, rev: 1 },
          seats: { map: encodeSeatMap(map), blocked: [] },
        },
      ],
    });
    const begin = `${prefix}:{7:0}:`;
    const keys = [`${begin}epochs`, `${begin}3:items`, `${begin}3:seats`];
    const before = await eye.get(keys[2]!);
    expect(await eye.eval(scriptNamed('build-seats').lua, 3, ...keys, '3', 'somebody', '0', 'Rrrr')).toBe(-1);
    expect(await eye.get(keys[2]!)).toBe(before);
    end();
  });

  it('P1: a gate whose seats are gone is stale', async () => {
    const { gate, end } = await make();
    const map = buildSeatMap([{ section: 'S', row: 'A', from: 1, to: 4 }]);
    const nowMs = Date.now();
    await gate.install({
      ...{ saleId: '7', epoch: 3, version: 1, opensAtMs: nowMs - 1000, closesAtMs: nowMs + 3_600_000, mayAdmit: true },
      ...{ paused: false, closed: false, perBuyer: 1, payWithinSeconds: 900, content: [] },
      items: [
        {
          ...{ id: '11', code: 'stalls', price: { amount: 1, currency: 'CNY' }, total: 4, blocked: 0, rev: 1 },
          seats: { map: encodeSeatMap(map), blocked: [] },
        },
      ],
    });
    const asked = { saleId: '7', orderId: '1', buyer: 'b', itemCode: 'stalls', quantity: 1, key: null } as const;
    expect(await gate.epochOf('7')).toBe(3);
    await eye.del(`${prefix}:{7:0}:3:seats`);
    expect(await gate.epochOf('7')).toBeNull();
    expect(await gate.admit({ ...asked, seats: 'any', fingerprint: 'x' })).toEqual({ outcome: 'stale' });
    expect(await gate.seats('7')).toBeNull();
    end();
  });

  it('P10: what a process keeps waiting for Redis is bounded; whoever is refused has left no trace', async () => {
    const { gate, end } = await make();
    const rows = range(1, 30).map((row) => ({ section: 'S', row: String(row), from: 1, to: 50 }));
    const map = buildSeatMap(rows);
    const nowMs = Date.now();
    await gate.install({
      ...{ saleId: '7', epoch: 1, version: 1, opensAtMs: nowMs - 1000, closesAtMs: nowMs + 3_600_000, mayAdmit: true },
      ...{ paused: false, closed: false, perBuyer: 1, payWithinSeconds: 900, content: [] },
      items: [
        {
          ...{ id: '11', code: 'stalls', price: { amount: 1, currency: 'CNY' }, total: map.size, blocked: 0, rev: 1 },
          seats: { map: encodeSeatMap(map), blocked: [] },
        },
      ],
    });
    // Four calls of 64 are under way, 1 024 orders wait, and one is too many.
    const said = await Promise.allSettled(
      range(1, 1281).map((at) =>
        gate.admit({
          ...{ saleId: '7', orderId: String(at), buyer: `b${at}`, itemCode: 'stalls', quantity: 1 },
          ...{ seats: 'together', key: null, fingerprint: 'stalls x1 together' },
        }),
      ),
    );
    const refused = said.filter(({ status }) => status === 'rejected');
    expect(refused).toMatchObject([{ reason: { name: 'NotAdmittedError', code: 'overloaded' } }]);
    expect(said.at(-1)).toBe(refused[0]);
    expect((await gate.view('7'))![0]).toMatchObject({ queued: 1280, free: 220 });
    end();
  });

  it('P1: seats that the house left behind are given back, after the gate has heard what the ledger did with them', async () => {
    const { gate, end } = await make();
    const kit = new SeatKit(sqliteUnderTest());
    await kit.createHall();
    const order = await kit.sits('alice', [3]);
    const { log } = systemRuntime();
    const runtime = { ...systemRuntime(), log: { ...log, warn: () => undefined } as unknown as typeof log };
    const rebuilder = new Rebuilder({
      ...{ runtime, gate, ledger: kit.ledger, drainMsMax: 1000, drainIdleMsMax: 1000, rebuilt: () => undefined },
      pipe: { caughtUp: async () => true, depthOf: async () => 0 },
      lock: async () => ({ release: async () => undefined }),
      rebuilding: async () => ({ auditId: kit.id(), by: actor('system', 'gate') }),
    });
    await rebuilder.build(SALE);
    // Three processes died: before and after the ledger moved an order, and after it blocked a seat.
    const moved = kit.id();
    await gate.holdSeats(SALE, STALLS, [5], {
      holdId: houseHoldId(moved),
      order: { orderId: order.id, buyer: 'alice' },
    });
    await kit.moveTo(order, [5], { auditId: moved });
    await gate.holdSeats(SALE, STALLS, [6], { holdId: houseHoldId(kit.id()) });
    await gate.holdSeats(SALE, STALLS, [7], { holdId: houseHoldId(kit.id()) });
    await kit.block(7);
    const upkeep = new GateUpkeep({
      ...{ runtime, gate, ledger: kit.ledger, rebuilder },
      lead: () => ({ stop: async () => undefined }),
    });
    const seen: string[] = [];
    const states = async (): Promise<string> => {
      const all = (await gate.seats(SALE))!;
      return 'items' in all ? all.items[0]!.states.slice(0, 9) : '';
    };
    await upkeep.round();
    seen.push(await states());
    // They are young: whoever took them may be at work. Make them old.
    const house = `${prefix}:{${SALE}:0}:${await gate.epochOf(SALE)}:house`;
    for (const [holdId, value] of Object.entries(await eye.hgetall(house))) {
      const [number, units, , seats] = value.split(' ');
      await eye.hset(house, holdId, `${number} ${units} ${Date.now() - 61_000} ${seats}`);
    }
    await new GateUpkeep({
      ...{ runtime, gate, ledger: kit.ledger, rebuilder },
      lead: () => ({ stop: async () => undefined }),
    }).round();
    seen.push(await states());
    expect(seen).toEqual(['fffrfhhhf', 'fffffrfbf']);
    // The order's new seat was never free in between.
    const since = (await gate.seats(SALE, { epoch: 1, n: 0 }))!;
    const changes = 'changes' in since ? since.changes : [];
    expect(changes.filter(({ seats, state }) => state === 'f' && (seats.includes(5) || seats.includes(7)))).toEqual([]);
    end();
    await kit.world.close();
  });
});
