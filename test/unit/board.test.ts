import { beforeEach, describe, expect, it } from 'vitest';
import { Board, type SaleEvent } from '../../src/engine/board.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import type { SaleRecord } from '../../src/model/sale.ts';
import { type ManualRuntime, manualRuntime, T0 } from '../contract/manual.ts';

const FRESH_MS = 100;

describe('the board', () => {
  let runtime: ManualRuntime;
  let sale: SaleRecord;
  let reads: number;
  let board: Board;

  beforeEach(() => {
    runtime = manualRuntime();
    reads = 0;
    const item = { name: 'V', price: { amount: 1, currency: 'CNY' }, kind: 'counted' as const, total: 5 };
    const counts = { reserved: 0, sold: 0, blocked: 0, epoch: 2 };
    sale = {
      id: '5',
      name: 'S',
      opensAtMs: T0 + 10_000,
      closesAtMs: T0 + 20_000,
      perBuyer: 1,
      payWithinSeconds: 60,
      paused: false,
      closed: false,
      version: 1,
      createdAtMs: T0,
      readAtMs: T0,
      items: [
        { ...item, ...counts, id: '6', code: 'v', rev: 3 },
        { ...item, ...counts, id: '7', code: 'w', rev: 4 },
      ],
    };
    const ledger = {
      getSale: async (id: string) => {
        reads++;
        return id === sale.id ? structuredClone(sale) : null;
      },
    };
    board = new Board(runtime, ledger as unknown as Ledger, new MemoryGate(runtime, () => {}));
  });

  /** One unit of an item is reserved, as a commit does it. */
  function reserve(at: number): void {
    sale.items[at]!.reserved++;
    sale.items[at]!.rev++;
    board.touch('5');
  }

  async function watch(from: string | null = null): Promise<{ events: SaleEvent[]; stop: () => void }> {
    const events: SaleEvent[] = [];
    const stop = await board.watch('5', from, (event) => events.push(event));
    return { events, stop: stop! };
  }

  const said = (events: SaleEvent[]) =>
    events.map((event) => (event.type === 'state' ? event.state : `${event.item.code} ${event.item.free}`));

  const eventId = async (): Promise<string> => (await board.readNow('5'))!.eventId;

  it('an event’s id is epoch.rev: the same while nothing changes, and it grows with every change', async () => {
    const changes = [
      () => {},
      () => void sale.items[0]!.rev++,
      () => void sale.items[1]!.rev++,
      () => void sale.version++,
      () => {
        for (const item of sale.items) item.epoch++;
      },
    ];
    const seen: number[][] = [];
    for (const change of changes) {
      change();
      const id = await eventId();
      expect(id).toMatch(/^\d+\.\d+$/);
      expect(await eventId()).toBe(id);
      seen.push(id.split('.').map(Number));
    }
    for (const [at, [epoch, rev]] of seen.entries()) {
      const [epochBefore, revBefore] = seen[at - 1] ?? [0, 0];
      expect(epoch! > epochBefore! || (epoch === epochBefore && rev! > revBefore!), `${seen}`).toBe(true);
    }
    expect(seen.map(([epoch]) => epoch)).toEqual([2, 2, 2, 2, 3]);
  });

  it('a new watcher gets the whole sale first', async () => {
    const { events } = await watch();
    expect(said(events)).toEqual(['scheduled', 'v 5', 'w 5']);
    const id = await eventId();
    expect(events.every((event) => event.id === id)).toBe(true);
  });

  it('a watcher that has these counts does not get them again; one that has others gets all', async () => {
    const id = await eventId();
    expect((await watch(id)).events.filter(({ type }) => type === 'stock')).toEqual([]);
    for (const other of ['2.1', '1.99', '9.9', 'nonsense', `${id}0`]) {
      expect((await watch(other)).events, other).toHaveLength(3);
    }
  });

  it('then gets what has changed, with ids that only grow', async () => {
    const { events } = await watch();
    events.length = 0;
    reserve(0);
    reserve(0);
    await runtime.timers.advance(FRESH_MS);
    expect(said(events)).toEqual(['v 3']);
    reserve(1);
    await runtime.timers.advance(FRESH_MS);
    sale.paused = true;
    sale.version++;
    board.touch('5');
    await runtime.timers.advance(FRESH_MS);
    expect(said(events)).toEqual(['v 3', 'w 4', 'paused']);
    const revs = events.map(({ id }) => Number(id.split('.')[1]));
    expect(revs).toEqual(revs.toSorted((a, b) => a - b));
    expect(new Set(revs).size).toBe(3);
    expect(events.at(-1)!.id).toBe(await eventId());
  });

  it('reads once for all that happens within a tenth of a second, and for all who watch', async () => {
    const watchers = [await watch(), await watch(), await watch()];
    reads = 0;
    for (let i = 0; i < 50; i++) board.touch('5');
    await runtime.timers.advance(FRESH_MS);
    expect(reads).toBe(1);
    reserve(0);
    await runtime.timers.advance(FRESH_MS);
    expect(reads).toBe(2);
    for (const { events } of watchers) expect(said(events).at(-1)).toBe('v 4');
  });

  it('does not read what nobody watches, and shares a fresh read', async () => {
    board.touch('5');
    await runtime.timers.advance(FRESH_MS);
    expect(reads).toBe(0);
    await board.read('5');
    runtime.clock.advance(FRESH_MS - 1);
    await board.read('5');
    expect(reads).toBe(1);
    runtime.clock.advance(1);
    await board.read('5');
    expect(reads).toBe(2);
  });

  it('says when the window opens and closes, though nothing was written', async () => {
    const { events } = await watch();
    events.length = 0;
    await runtime.timers.advance(9_999);
    expect(events).toEqual([]);
    await runtime.timers.advance(1 + FRESH_MS + 1);
    expect(said(events)).toEqual(['open']);
    await runtime.timers.advance(10_000);
    expect(said(events)).toEqual(['open', 'closed']);
  });

  it('a watcher that comes back after the sale has opened is told so', async () => {
    const first = await watch();
    const lastEventId = first.events.at(-1)!.id;
    first.stop();
    await runtime.timers.advance(10_000);
    const second = await watch(lastEventId);
    expect(said(second.events)).toContain('open');
  });

  it('a watcher that stopped hears nothing more, and the last one leaves no timer', async () => {
    const one = await watch();
    const two = await watch();
    one.stop();
    reserve(0);
    await runtime.timers.advance(FRESH_MS);
    expect([one.events.length, two.events.length]).toEqual([3, 4]);
    two.stop();
    expect(runtime.timers.pending).toBe(0);
  });

  it('knows no sale that the ledger does not know', async () => {
    expect(await board.read('9')).toBeNull();
    expect(await board.watch('9', null, () => {})).toBeNull();
  });

  it('leaves no timer behind when it is closed', async () => {
    await watch();
    reserve(0);
    board.close();
    expect(runtime.timers.pending).toBe(0);
  });
});
