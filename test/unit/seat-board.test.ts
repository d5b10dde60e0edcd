import { beforeEach, describe, expect, it } from 'vitest';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { type SaleRecord, stampOf } from '../../src/model/sale.ts';
import { SaleSeats } from '../../src/model/sale-seats.ts';
import { buildSeatMap, encodeSeatMap } from '../../src/model/seat-map.ts';
import type { SnapshotPage } from '../../src/model/snapshot.ts';
import { Board, type SaleEvent } from '../../src/views/board.ts';
import { Pace } from '../../src/views/pace.ts';
import { parseRevision, positionOf, positionsOf, revisionText } from '../../src/views/positions.ts';
import { SeatBoard, type SeatsChanged, type SeatsSnapshot } from '../../src/views/seats.ts';
import { type ManualRuntime, manualRuntime, T0 } from '../contract/manual.ts';

const FRESH_MS = 100;
const ANSWER_MS = 500;
const PRICE = { amount: 1, currency: 'CNY' };
const MAP = buildSeatMap([
  { section: 'S', row: 'A', from: 1, to: 30 },
  { section: 'S', row: 'B', from: 1, to: 30, x: 1, y: 2 },
]);

/** The board with the seats of one sale, on the in-process gate. */
describe('what is shown of seats', () => {
  let runtime: ManualRuntime;
  let gate: MemoryGate;
  let sale: SaleRecord;
  let holds: SnapshotPage['holds'][number][];
  let asked: (string | undefined)[];
  let out: Error | null;
  let seatBoard: SeatBoard;
  let board: Board;
  let orders: number;

  beforeEach(async () => {
    runtime = manualRuntime();
    orders = 0;
    asked = [];
    holds = [];
    out = null;
    const item = { name: 'Row', price: PRICE, kind: 'seated' as const, onSale: true, total: MAP.size };
    sale = {
      ...{ id: '5', name: 'S', opensAtMs: T0 - 1000, closesAtMs: T0 + 1e9, perBuyer: 100, payWithinSeconds: 60 },
      ...{ paused: false, closed: false, version: 1, createdAtMs: T0, readAtMs: T0 },
      items: [{ ...item, id: '6', code: 'row', reserved: 0, sold: 0, blocked: 0, epoch: 2, rev: 1 }],
    } as SaleRecord;
    const ledger = {
      getSale: async (id: string) => (id === '5' ? structuredClone(sale) : null),
      saleStamps: async (ids: string[]) => new Map(ids.includes('5') ? [['5', stampOf(sale)]] : []),
      blockedSeats: async () => [{ itemId: '6', rev: 1, seats: [59] }],
      seatHolds: async function* () {
        yield { holds, keys: [] };
      },
    } as unknown as Ledger;
    gate = new MemoryGate(runtime, () => {});
    const seats = new SaleSeats('5', [{ id: '6', code: 'row', map: MAP }]);
    const pace = new Pace(runtime);
    seatBoard = new SeatBoard({
      runtime,
      gate: {
        seats: async (saleId, since) => {
          asked.push(since && revisionText(since));
          if (out !== null) throw out;
          return gate.seats(saleId, since);
        },
      },
      ledger,
      seatsOf: async (saleId) => (saleId === '5' ? seats : null),
      pace,
    });
    board = new Board(runtime, ledger, gate, pace, seatBoard);
    await install(2);
  });

  async function install(epoch: number, held: SnapshotPage['holds'] = []): Promise<void> {
    const snapshot = {
      ...{ saleId: '5', epoch, mayAdmit: true, version: 1, opensAtMs: T0 - 1000, closesAtMs: T0 + 1e9 },
      ...{ paused: false, closed: false, perBuyer: 100, payWithinSeconds: 60 },
      items: [
        {
          id: '6',
          code: 'row',
          price: PRICE,
          total: MAP.size,
          blocked: 0,
          rev: 1,
          seats: { map: encodeSeatMap(MAP), blocked: [] },
        },
      ],
      content: [{ holds: held, keys: [] }],
    };
    await gate.install(snapshot);
  }

  /** The order's id. */
  async function order(...seats: number[]): Promise<string> {
    const orderId = String(++orders);
    const wanted = { saleId: '5', orderId, itemCode: 'row', buyer: orderId, quantity: seats.length, seats };
    const verdict = await gate.admit({ ...wanted, key: null, fingerprint: '' });
    expect(verdict.outcome).toBe('admitted');
    return orderId;
  }

  const release = (orderId: string) => gate.release('5', { orderId, buyer: orderId });

  /** Time passes, with a turn of the event loop now and then. */
  async function pass(ms: number): Promise<void> {
    for (let left = ms; left > 0; left -= 10) {
      await runtime.timers.advance(Math.min(left, 10));
      await runtime.timers.turn();
    }
  }

  interface Heard {
    events: SaleEvent[];
    seats: () => (SeatsSnapshot | SeatsChanged)[];
    stop: () => void;
  }

  async function watch(from: string | null = null): Promise<Heard> {
    const events: SaleEvent[] = [];
    const stop = await board.watch('5', from, (some) => events.push(...some));
    return {
      events,
      stop: stop!,
      seats: () => events.flatMap((event) => (event.type === 'seats' ? [event.seats] : [])),
    };
  }

  /** Changes are told. */
  async function told(): Promise<void> {
    board.touch('5');
    await pass(FRESH_MS + 50);
  }

  describe('the answer for everybody', () => {
    const states = async () => JSON.parse((await seatBoard.answer('5'))!.body.toString()).items[0].rows;

    it('is made once in half a second, whoever asks; then only what has changed is read', async () => {
      const [first, second] = await Promise.all([seatBoard.answer('5'), seatBoard.answer('5')]);
      expect(first).toBe(second);
      expect(asked).toEqual([undefined]);
      await order(0, 1);
      expect(await seatBoard.answer('5')).toBe(first);
      await pass(ANSWER_MS);
      expect((await states())[0].states).toBe(`rr${'f'.repeat(28)}`);
      expect(asked).toEqual([undefined, '2.0']);
      // Nothing has changed: the same bytes, and the same tag.
      const changed = await seatBoard.answer('5');
      await pass(ANSWER_MS);
      expect(await seatBoard.answer('5')).toBe(changed);
      expect(changed!.tag).not.toBe(first!.tag);
    });

    it('has the place of a row', async () => {
      expect(Object.keys((await states())[0])).toEqual(['section', 'row', 'numbers', 'states']);
      expect((await states())[1]).toMatchObject({ x: 1, y: 2, angle: 0 });
    });

    it('is the last one while the gate cannot be read; without one it fails', async () => {
      out = new Error('out');
      await expect(seatBoard.answer('5')).rejects.toThrow('out');
      out = null;
      const first = await seatBoard.answer('5');
      out = new Error('out');
      await pass(2 * ANSWER_MS);
      expect(await seatBoard.answer('5')).toBe(first);
    });

    it('of an unknown sale is none', async () => {
      expect(await seatBoard.answer('7')).toBeNull();
    });

    it('of a sale without a gate comes from the ledger, if it is over; its orders are read again only if something has changed', async () => {
      await gate.remove('5');
      await expect(seatBoard.answer('5')).rejects.toThrow(/being rebuilt/);
      sale.closed = true;
      holds = [
        { orderId: '1', itemId: '6', buyer: 'a', slots: [1], seats: [0], paid: true },
        { orderId: '2', itemId: '6', buyer: 'b', slots: [1], seats: [1] },
      ];
      expect((await states()).map((row: { states: string }) => row.states)).toEqual([
        `sr${'f'.repeat(28)}`,
        `${'f'.repeat(29)}b`,
      ]);
      const first = await seatBoard.answer('5');
      holds = [];
      await pass(ANSWER_MS);
      expect(await seatBoard.answer('5')).toBe(first);
      sale.items[0]!.rev++;
      await pass(ANSWER_MS);
      expect((await states())[0].states).toBe('f'.repeat(30));
    });
  });

  describe('the stream', () => {
    it('begins with all states; what changes within 100 ms is one event, the same array for all, with what each seat is at its end', async () => {
      const one = await watch();
      const two = await watch();
      expect(one.seats()).toEqual([{ revision: '2.0', items: [{ code: 'row', states: 'f'.repeat(60) }] }]);
      const first = await order(0, 1);
      await order(2);
      await release(first);
      await told();
      expect(one.seats().slice(1)).toEqual([{ revision: '2.3', changes: { f: ['S/A/1', 'S/A/2'], r: ['S/A/3'] } }]);
      expect(two.events.at(-1)).toBe(one.events.at(-1));
      await told();
      expect(one.seats()).toHaveLength(2);
    });

    it('what a reader of the answer has brought in is told, too', async () => {
      const heard = await watch();
      await order(7);
      await pass(ANSWER_MS);
      await seatBoard.answer('5');
      await told();
      expect(heard.seats().slice(1)).toEqual([{ revision: '2.1', changes: { r: ['S/A/8'] } }]);
    });

    it('an event is never longer than all states: those are told instead', async () => {
      const heard = await watch();
      await order(...Array.from({ length: 20 }, (_, seat) => seat));
      await told();
      expect(heard.seats().at(-1)).toEqual({ revision: '2.1', changes: { r: expect.any(Array) } });
      await order(...Array.from({ length: 39 }, (_, seat) => seat + 20));
      await told();
      expect(heard.seats().at(-1)).toEqual({ revision: '2.2', items: [{ code: 'row', states: `${'r'.repeat(59)}f` }] });
    });

    it('whoever comes back gets what has changed since, also what was changed back; and nothing if nothing was', async () => {
      const stay = await watch();
      const gone = await order(0);
      await told();
      const at = stay.events.at(-1)!.id;
      expect(at).toMatch(/^2\.[0-9]+\/2\.1$/);
      await release(gone);
      await told();
      await order(5);
      await told();
      expect((await watch(at)).seats()).toEqual([{ revision: '2.3', changes: { f: ['S/A/1'], r: ['S/A/6'] } }]);
      expect((await watch(stay.events.at(-1)!.id)).events).toEqual([]);
      // Those who have the same get the same.
      const [a, b] = [await watch(at), await watch(at)];
      expect(a.events.at(-1)).toBe(b.events.at(-1));
    });

    it('the gate is asked for changes from before this process watched, once; beyond 4 096 of them all states are told', async () => {
      for (let at = 0; at < 3; at++) await order(at);
      const first = await watch('2.5/2.1');
      expect(first.seats()).toEqual([{ revision: '2.3', changes: { r: expect.arrayContaining(['S/A/2', 'S/A/3']) } }]);
      const before = asked.length;
      expect((await watch('2.5/2.2')).seats()[0]).toHaveProperty('changes');
      expect((await watch('2.5/2.0')).seats()[0]).toHaveProperty('changes');
      expect(asked).toHaveLength(before);
      first.stop();
    });

    it('of 4 096 changes all are known, of one more none', async () => {
      const seat = async (): Promise<void> => release(await order(3));
      for (let at = 0; at < 2048; at++) await seat();
      expect((await watch('2.5/2.0')).seats()).toEqual([{ revision: '2.4096', changes: { f: ['S/A/4'] } }]);
      await order(4);
      const events: SaleEvent[] = [];
      await another().watch('5', '2.5/2.0', (some) => events.push(...some));
      expect(events.at(-1)).toMatchObject({ type: 'seats', seats: { items: [{ code: 'row' }] } });
      const close: SaleEvent[] = [];
      await another().watch('5', '2.5/2.1', (some) => close.push(...some));
      expect(close.at(-1)).toMatchObject({ type: 'seats', seats: { changes: { r: ['S/A/5'] } } });
    });

    /** Another process of the shop, which has not watched before. */
    function another(): Board {
      const seats = new SaleSeats('5', [{ id: '6', code: 'row', map: MAP }]);
      const pace = new Pace(runtime);
      const ledger = {
        getSale: async () => structuredClone(sale),
        saleStamps: async () => new Map([['5', stampOf(sale)]]),
      };
      const own = new SeatBoard({ runtime, gate, ledger: ledger as never, seatsOf: async () => seats, pace });
      return new Board(runtime, ledger as never, gate, pace, own);
    }

    it('after a rebuild watchers are told what differs; who has a revision of the old gate that was not told gets all', async () => {
      const heard = await watch();
      await order(0);
      await told();
      await order(1);
      // The order of seat 1 was lost with the old gate.
      await install(3, [{ orderId: '1', itemId: '6', buyer: '1', slots: [1], seats: [0] }]);
      for (const seat of [9, 10, 11]) await order(seat);
      await told();
      const differs = { revision: '3.3', changes: { r: ['S/A/10', 'S/A/11', 'S/A/12'] } };
      expect(heard.seats().at(-1)).toEqual(differs);
      expect((await watch('2.5/2.1')).seats()).toEqual([differs]);
      // It has seat 2 as reserved, which is not among what differs.
      expect((await watch('2.5/2.2')).seats()[0]).toHaveProperty('items');
    });

    it('seats that cannot be read at first are told as soon as they can be, to all who wait', async () => {
      out = new Error('out');
      const one = await watch();
      const two = await watch();
      expect([one.seats(), one.events.length]).toEqual([[], 2]);
      expect(one.events[0]!.id).not.toContain('/');
      out = null;
      const three = await watch();
      expect(three.seats()).toHaveLength(1);
      await told();
      for (const heard of [one, two, three]) expect(heard.seats().at(-1)).toHaveProperty('items');
    });

    it('a crowd is told some at a time, and everybody once', async () => {
      let heard = 0;
      const hear = () => () => {
        heard++;
      };
      for (let at = 0; at < 1201; at++) await board.watch('5', null, hear());
      heard = 0;
      await order(0);
      board.touch('5');
      await pass(FRESH_MS + 200);
      expect(heard).toBe(1201);
    });

    it('poll finds what other processes sell, and asks little where nothing happens', async () => {
      const heard = await watch();
      asked.length = 0;
      await board.poll();
      expect(asked).toEqual(['2.0']);
      await order(4);
      await board.poll();
      await pass(50);
      expect(heard.seats().at(-1)).toEqual({ revision: '2.1', changes: { r: ['S/A/5'] } });
    });
  });
});

describe('the id of an event', () => {
  it('says how far a watcher has come in counts and in seats', () => {
    expect(positionOf('2.7', null)).toBe('2.7');
    expect(positionOf('2.7', '2.3')).toBe('2.7/2.3');
    expect(positionsOf('2.7/2.3')).toEqual({ counts: '2.7', seats: { epoch: 2, n: 3 } });
    expect(positionsOf('2.7')).toEqual({ counts: '2.7', seats: null });
    expect(positionsOf(null)).toEqual({ counts: null, seats: null });
  });

  it.each(['', '/', 'x', '2.7/', '2.7/x', '2.7/2', '2.7/-1.2', '2.7/2.3/4', `2.7/2.${'9'.repeat(16)}`, '2.7/2.1e3'])(
    '%j is no position of seats',
    (id) => {
      expect(positionsOf(id).seats).toBeNull();
    },
  );

  it('a revision is written and read', () => {
    expect(parseRevision(revisionText({ epoch: 12, n: 4096 }))).toEqual({ epoch: 12, n: 4096 });
  });
});
