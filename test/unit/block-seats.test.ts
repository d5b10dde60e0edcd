import { rmSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { unavailable } from '../../src/base/errors.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { Gate } from '../../src/gate/port.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import { SaleSeats } from '../../src/model/sale-seats.ts';
import { buildSeatMap } from '../../src/model/seat-map.ts';
import { BlockSeats, type SeatsChange } from '../../src/sales/seats.ts';
import { type ManualRuntime, manualRuntime, T0 } from '../contract/manual.ts';
import { temporary } from '../support/sqlite-ledger.ts';

const BY = actor('admin', 'test');
const PRICE = { amount: 1, currency: 'CNY' };
const SETTLE_MS = 500;

/** Blocking on the in-process gate and a ledger whose answers, or the gate's, may be lost. */
describe('blocking seats', () => {
  let runtime: ManualRuntime;
  let folder: string;
  let ledger: SqliteLedger;
  let gate: MemoryGate;
  /** Which call fails next: before it does anything, or when it is done. */
  let fails: { call: string; when: 'before' | 'after' } | null;
  let block: BlockSeats;
  let ids: number;

  beforeEach(async () => {
    runtime = manualRuntime();
    runtime.timers.nextTurn = (run) => void setImmediate(run);
    folder = temporary();
    ledger = SqliteLedger.open(folder, runtime);
    gate = new MemoryGate(runtime, () => {});
    fails = null;
    ids = 100;
    const item = (code: string, row: string) => {
      const seats = buildSeatMap([{ section: 'S', row, from: 1, to: 4 }]);
      return { code, name: code, price: PRICE, stock: 4, seats };
    };
    const items = [item('a', 'A'), item('b', 'B')];
    const sale = { name: 'S', opensAtMs: T0 - 1, closesAtMs: T0 + 1e9, perBuyer: 9, payWithinSeconds: 60, items };
    await ledger.createSale(
      { ...sale, id: '5', itemIds: ['6', '7'] },
      { by: BY, keyed: null, auditId: '99', answer: () => '' },
    );
    await gate.install((await ledger.rebuildSnapshot('5'))!);
    const seats = new SaleSeats(
      '5',
      items.map(({ code, seats: map }, at) => ({ id: ['6', '7'][at]!, code, map })),
    );
    block = new BlockSeats({
      runtime,
      gate: failing(gate) as unknown as Gate,
      ledger: failing(ledger) as unknown as Ledger,
      auditIds: { next: async () => String(++ids) },
      seatsOf: async () => seats,
      present: () => '{}',
      changed: () => undefined,
      closing: () => false,
    });
  });

  afterEach(async () => {
    await ledger.close();
    rmSync(folder, { recursive: true, force: true });
  });

  function failing<T extends object>(of: T): T {
    return new Proxy(of, {
      get: (target, name) => {
        const own = Reflect.get(target, name) as unknown;
        if (typeof own !== 'function') return own;
        return async (...args: unknown[]) => {
          const mine = fails?.call === name ? fails : null;
          if (mine !== null) fails = null;
          if (mine?.when === 'before') throw unavailable('lost');
          const answer = await (own as (...given: unknown[]) => unknown).apply(target, args);
          if (mine?.when === 'after') throw unavailable('lost');
          return answer;
        };
      },
    });
  }

  const set = (blocked: boolean, ...seats: string[]): Promise<SeatsChange> =>
    block.set('5', seats, blocked, { by: BY, keyed: null });

  /** Both rows, as the gate has them: `h` is a hold of the house. */
  async function states(): Promise<string> {
    const seen = await gate.seats('5');
    return seen !== null && 'items' in seen ? seen.items.map((item) => item.states).join(' ') : '';
  }

  const inLedger = async () => (await ledger.blockedSeats('5')).map(({ seats }) => seats);

  async function settle(): Promise<void> {
    for (let rounds = 0; rounds < 5; rounds++) {
      await runtime.timers.advance(SETTLE_MS);
      for (let turns = 0; turns < 20; turns++) await new Promise((resolve) => setImmediate(resolve));
    }
  }

  it('of two items: gate, ledger, gate', async () => {
    expect(await set(true, 'S/B/2', 'S/A/1')).toMatchObject({ outcome: 'changed' });
    expect([await states(), await inLedger()]).toEqual(['bfff fbff', [[0], [1]]]);
    expect(await set(false, 'S/A/1')).toMatchObject({ outcome: 'changed' });
    expect([await states(), await inLedger()]).toEqual(['ffff fbff', [[], [1]]]);
    expect((await gate.view('5'))!.map(({ free, blocked, house }) => [free, blocked, house])).toEqual([
      [4, 0, 0],
      [3, 1, 0],
    ]);
  });

  it('all or none: what was held of the first item is free if the second has a taken seat', async () => {
    const wanted = { saleId: '5', orderId: '1', itemCode: 'b', buyer: 'ann', quantity: 1, seats: [2] };
    await gate.admit({ ...wanted, key: null, fingerprint: '' });
    expect(await set(true, 'S/A/1', 'S/B/3')).toEqual({ outcome: 'seat_taken', seats: ['S/B/3'] });
    expect([await states(), await inLedger()]).toEqual(['ffff ffrf', [[], []]]);
  });

  it.each([
    ['the ledger did not store it', { call: 'setBlocked', when: 'before' }, 'hfff hfff', 'ffff ffff', [[], []]],
    ['its COMMIT was answered too late', { call: 'setBlocked', when: 'after' }, 'hfff hfff', 'bfff bfff', [[0], [0]]],
    ['the gate did not hear of it', { call: 'applyBlocked', when: 'before' }, 'hfff hfff', 'bfff bfff', [[0], [0]]],
    ['the gate’s answer was lost', { call: 'applyBlocked', when: 'after' }, 'bfff hfff', 'bfff bfff', [[0], [0]]],
    ['a hold was not answered', { call: 'holdSeats', when: 'after' }, 'hfff ffff', 'ffff ffff', [[], []]],
  ] as const)(
    'P1: %s: nobody gets the seats until it is known, and then the gate has what the ledger has',
    async (_, fault, before, after, stored) => {
      fails = fault;
      await expect(set(true, 'S/A/1', 'S/B/1')).rejects.toThrow('lost');
      expect(await states()).toBe(before);
      await settle();
      expect([await states(), await inLedger()]).toEqual([after, stored]);
      expect((await gate.view('5'))!.map(({ house }) => house)).toEqual([0, 0]);
    },
  );

  it('what could not be settled is tried again, and a repeat of the call works meanwhile', async () => {
    fails = { call: 'setBlocked', when: 'after' };
    await expect(set(true, 'S/A/1')).rejects.toThrow('lost');
    fails = { call: 'saleAtRest', when: 'before' };
    await runtime.timers.advance(SETTLE_MS);
    expect(await states()).toBe('hfff ffff');
    expect(await set(true, 'S/A/2')).toMatchObject({ outcome: 'changed' });
    await settle();
    expect(await states()).toBe('bbff ffff');
  });
});
