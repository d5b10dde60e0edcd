import { beforeEach, describe, expect, it } from 'vitest';
import type { ItemKind } from '../../src/model/sale.ts';
import { buildSeatMap, type SeatMap } from '../../src/model/seat-map.ts';
import { SeatMaps } from '../../src/sales/seat-maps.ts';
import { type ManualRuntime, manualRuntime } from '../contract/manual.ts';

const row = (size: number): SeatMap => buildSeatMap([{ section: 'S', row: 'R', from: 1, to: size }]);

describe('kept seat maps', () => {
  let runtime: ManualRuntime;
  let sales: Map<string, { id: string; code: string; kind: ItemKind; size: number }[]>;
  let asked: string[];
  let exists: string[];
  let maps: SeatMaps;

  beforeEach(() => {
    runtime = manualRuntime();
    sales = new Map([['5', [{ id: '50', code: 'a', kind: 'seated', size: 4 }]]]);
    asked = [];
    exists = [];
    const ledger = {
      getSale: async (id: string) => {
        asked.push(`sale ${id}`);
        await null;
        return sales.has(id) ? { items: sales.get(id)! } : null;
      },
      seatMaps: async (id: string) => {
        asked.push(`maps ${id}`);
        await null;
        const seated = sales.get(id)!.filter(({ kind }) => kind === 'seated');
        return new Map(seated.map((item) => [item.id, row(item.size)]));
      },
    };
    maps = new SeatMaps({
      runtime,
      ledger: ledger as never,
      exists: async (id) => {
        exists.push(id);
        return sales.has(id);
      },
    });
  });

  it('a crowd that asks at once reads once, and later nobody does', async () => {
    expect(maps.peek('5')).toBeNull();
    const all = await Promise.all(Array.from({ length: 100 }, () => maps.of('5')));
    expect(new Set(all).size).toBe(1);
    expect(all[0]!.coded('a')!.map.size).toBe(4);
    expect(maps.peek('5')).toBe(all[0]);
    runtime.clock.advance(3600_000);
    expect(await maps.of('5')).toBe(all[0]);
    expect(asked).toEqual(['sale 5', 'maps 5']);
  });

  it('made-up ids do not reach the tables of seats', async () => {
    for (let id = 100; id < 200; id++) expect(await maps.of(String(id))).toBeNull();
    expect(asked).toEqual([]);
    expect(exists).toHaveLength(100);
  });

  it('a sale without seats is kept, and has no map to read', async () => {
    sales.set('6', [{ id: '60', code: 'v', kind: 'counted', size: 0 }]);
    expect((await maps.of('6'))!.items).toEqual([]);
    expect((await maps.of('6'))!.isCounted('v')).toBe(true);
    expect(asked).toEqual(['sale 6']);
  });

  it('what is not found is looked for in the sale, at most once a second, and its maps are read only if it has got an item', async () => {
    const hasB = (seats: { coded(code: string): unknown }) => seats.coded('b') !== null;
    const first = await maps.of('5', hasB);
    expect(first!.coded('b')).toBeNull();
    asked.length = 0;
    for (let at = 0; at < 50; at++) await maps.of('5', hasB);
    expect(asked).toEqual([]);
    runtime.clock.advance(1000);
    await Promise.all(Array.from({ length: 50 }, () => maps.of('5', hasB)));
    expect(asked).toEqual(['sale 5']);
    expect(maps.peek('5')).toBe(first);

    sales.get('5')!.push({ id: '51', code: 'b', kind: 'seated', size: 3 });
    expect((await maps.of('5', hasB))!.coded('b')).toBeNull();
    runtime.clock.advance(1000);
    asked.length = 0;
    expect((await maps.of('5', hasB))!.coded('b')!.map.size).toBe(3);
    expect(asked).toEqual(['sale 5', 'sale 5', 'maps 5']);
  });

  it('a change by this process is looked for at once; an order of a new item finds it in any case', async () => {
    const hasB = (seats: { coded(code: string): unknown }) => seats.coded('b') !== null;
    await maps.of('5');
    sales.get('5')!.push({ id: '51', code: 'b', kind: 'seated', size: 3 });
    maps.changed('5');
    expect((await maps.of('5', hasB))!.coded('b')).not.toBeNull();
    sales.get('5')!.push({ id: '52', code: 'c', kind: 'seated', size: 2 });
    expect((await maps.ofItem('5', '52'))!.item('52')!.code).toBe('c');
  });

  it('memory is bounded: the least recently used go', async () => {
    for (let id = 10; id < 22; id++)
      sales.set(String(id), [{ id: `${id}0`, code: 'a', kind: 'seated', size: 100_000 }]);
    for (let id = 10; id < 20; id++) await maps.of(String(id));
    expect(maps.peek('10')).not.toBeNull();
    await maps.of('10');
    await maps.of('20');
    expect(maps.peek('10')).not.toBeNull();
    expect(maps.peek('11')).toBeNull();
    expect(maps.peek('12')).not.toBeNull();
    asked.length = 0;
    expect((await maps.of('11'))!.size).toBe(100_000);
    expect(asked).toEqual(['sale 11', 'maps 11']);
  });

  it('a failed read is tried again', async () => {
    const good = sales.get('5')!;
    sales.set('5', null as never);
    await expect(maps.of('5')).rejects.toThrow();
    sales.set('5', good);
    expect((await maps.of('5'))!.size).toBe(4);
  });
});
