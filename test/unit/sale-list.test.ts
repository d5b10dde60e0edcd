import { beforeEach, describe, expect, it, vi } from 'vitest';
import { RetryableError } from '../../src/base/errors.ts';
import type { Ledger, Page } from '../../src/ledger/port.ts';
import type { SaleRecord } from '../../src/model/sale.ts';
import type { Sale } from '../../src/views/present.ts';
import { SaleList } from '../../src/views/sale-list.ts';
import { type ManualRuntime, manualRuntime, settled } from '../contract/manual.ts';

const FRESH_MS = 500;
const PAGE_CHARS_MAX = 256 * 1024;
const WAITING_MAX = 32;
const MADE_UP_WAITING_MAX = 4;
const KEPT_PAGES_MAX = 64;

/** The public list of sales costs the same whoever looks (P10). */
describe('the list of sales', () => {
  let runtime: ManualRuntime;
  let sales: { id: string; name: string }[];
  let reads: Page[];
  let list: SaleList;
  let ledgerOut: Error | null;
  let held: Promise<void> | null;
  /** How long a step of reading holds the event loop. */
  let stepMs: number;

  beforeEach(() => {
    runtime = manualRuntime();
    sales = Array.from({ length: 25 }, (_, i) => ({ id: String(100 - i), name: `sale ${100 - i}` }));
    reads = [];
    ledgerOut = null;
    held = null;
    stepMs = 0;
    const ledger = {
      async listSales(page: Page) {
        reads.push(page);
        runtime.clock.advance(stepMs);
        if (ledgerOut) throw ledgerOut;
        const found = sales
          .filter(({ id }) => page.before === null || Number(id) < Number(page.before))
          .slice(0, page.limit);
        if (held) await held;
        return found as unknown as SaleRecord[];
      },
    };
    list = new SaleList({
      runtime,
      ledger: ledger as unknown as Ledger,
      present: async (record) => record as unknown as Sale,
    });
  });

  /** Lets what was begun come to its end, pauses included. */
  async function ended<T>(promise: Promise<T>): Promise<T> {
    let over = false;
    const done = promise.finally(() => {
      over = true;
    });
    done.catch(() => {});
    for (let i = 0; i < 2000 && !over; i++) {
      await runtime.timers.turn();
      if (!over) await runtime.timers.advance(5);
    }
    expect(over).toBe(true);
    return done;
  }

  const page = async (limit: number, before: string | null = null) => {
    const { body, tag } = await ended(list.page({ limit, before }));
    const { data, nextCursor } = JSON.parse(body.toString()) as { data: { id: string }[]; nextCursor: string | null };
    return { ids: data.map(({ id }) => id), nextCursor, tag };
  };

  it('has pages that follow one another, each sale once', async () => {
    const seen: string[] = [];
    let cursor: string | null = null;
    do {
      const { ids, nextCursor } = await page(7, cursor);
      seen.push(...ids);
      expect(nextCursor).toBe(seen.length < 25 ? ids.at(-1) : null);
      cursor = nextCursor;
    } while (cursor !== null);
    expect(seen).toEqual(sales.map(({ id }) => id));
    for (const limit of [24, 25, 26]) {
      expect((await page(limit)).nextCursor, `limit ${limit}`).toBe(limit === 24 ? '77' : null);
    }
    expect(await page(7, '76')).toMatchObject({ ids: [], nextCursor: null });
  });

  it('is read once for all who look within half a second, whatever their limit', async () => {
    const answers = await ended(Promise.all(Array.from({ length: 100 }, () => list.page({ limit: 50, before: null }))));
    expect(new Set(answers).size, 'and written once').toBe(1);
    const steps = reads.length;
    expect(steps).toBe(3);
    for (let limit = 1; limit <= 200; limit++) await page(limit);
    expect(reads).toHaveLength(steps);
    runtime.clock.advance(FRESH_MS);
    await page(50);
    expect(reads).toHaveLength(2 * steps);
  });

  it('is encoded once, whatever limits are asked for in turn: the tag of another limit needs no body (P10)', async () => {
    for (const sale of sales) sale.name = 'x'.repeat(1000);
    await page(50);
    const encoded = vi.spyOn(Buffer, 'from');
    const copied = vi.spyOn(Buffer, 'concat');
    const tags = new Set<string>();
    for (let n = 0; n < 200; n++) tags.add((await list.page({ limit: 1 + (n % 50), before: null })).tag);
    const chars = encoded.mock.calls.reduce((sum, [text]) => sum + String(text).length, 0);
    const copies = copied.mock.calls.length;
    vi.restoreAllMocks();
    expect(tags.size).toBe(25);
    expect(copies).toBe(0);
    expect(chars, 'the ends of the lists').toBeLessThan(200 * 50);
    expect((await page(3)).ids).toEqual(['100', '99', '98']);
  });

  it('a page has a size that it does not exceed by more than a sale, whatever the limit', async () => {
    const sale = 30_000;
    sales = Array.from({ length: 100 }, (_, i) => ({ id: String(500 - i), name: 'x'.repeat(sale) }));
    const { body } = await ended(list.page({ limit: 200, before: null }));
    expect(body.length).toBeGreaterThan(PAGE_CHARS_MAX);
    expect(body.length).toBeLessThan(PAGE_CHARS_MAX + 2 * sale);
    const seen: string[] = [];
    for (let cursor: string | null = null, first = true; first || cursor !== null; first = false) {
      const { ids, nextCursor } = await page(200, cursor);
      expect(ids.length).toBeGreaterThan(0);
      seen.push(...ids);
      cursor = nextCursor;
    }
    expect(seen).toEqual(sales.map(({ id }) => id));
    expect(Math.max(...reads.map(({ limit }) => limit)), 'and is read in small steps').toBeLessThanOrEqual(11);
  });

  it('whoever made or changed a sale sees it at once, also while it is being read', async () => {
    expect((await page(1)).ids).toEqual(['100']);
    const gate = Promise.withResolvers<void>();
    held = gate.promise;
    runtime.clock.advance(FRESH_MS);
    const before = list.page({ limit: 1, before: null });
    await settled();
    held = null;
    sales.unshift({ id: '101', name: 'new' });
    list.changed();
    const after = list.page({ limit: 1, before: null });
    gate.resolve();
    const [, answer] = await ended(Promise.all([before, after]));
    expect(JSON.parse(answer.body.toString()).data[0].id).toBe('101');
    expect((await page(1)).ids).toEqual(['101']);
  });

  it('ever new cursors wait for each other and leave the event loop to others; too many are refused', async () => {
    stepMs = 10;
    const cursors = Array.from({ length: 200 }, (_, i) => String(1000 + i));
    const startedMs = runtime.clock.monotonic();
    const asked = cursors.map((before) => list.page({ limit: 1, before }));
    const outcomes = Promise.allSettled(asked);
    // Whoever comes to the front of the shop does not wait behind them.
    const first = list.page({ limit: 1, before: null });
    await ended(first);
    expect(reads.length).toBeLessThanOrEqual(2 * 3);
    const settledAll = await ended(outcomes);
    const refused = settledAll.filter(({ status }) => status === 'rejected') as PromiseRejectedResult[];
    expect(refused).toHaveLength(200 - MADE_UP_WAITING_MAX);
    for (const { reason } of refused) expect(reason).toMatchObject({ code: 'overloaded' });
    expect(refused[0]!.reason).toBeInstanceOf(RetryableError);
    const tookMs = runtime.clock.monotonic() - startedMs;
    expect(tookMs, 'a quarter of the time at most').toBeGreaterThanOrEqual(4 * (reads.length - 3) * stepMs);
  });

  it('cursors that the list has handed out go before those that somebody made up, and do not lose their place to them', async () => {
    const { nextCursor } = await page(5);
    const madeUp = Array.from({ length: 200 }, (_, i) => String(1000 + i));
    const outcomes = Promise.allSettled(madeUp.map((before) => list.page({ limit: 1, before })));
    reads.length = 0;
    const second = await ended(list.page({ limit: 5, before: nextCursor }));
    expect(JSON.parse(second.body.toString()).data[0].id).toBe('95');
    expect(
      reads.filter(({ before }) => Number(before) >= 1000).length,
      'behind one that was under way',
    ).toBeLessThanOrEqual(1);
    await ended(outcomes);
  });

  it('as many as there are places of those that were handed out may wait, and one more is refused', async () => {
    sales = Array.from({ length: 120 }, (_, i) => ({ id: String(900 - i), name: 's' }));
    const cursors: string[] = [];
    for (let limit = 1; limit <= WAITING_MAX + 1; limit++) cursors.push((await page(limit)).nextCursor!);
    const outcomes = await ended(Promise.allSettled(cursors.map((before) => list.page({ limit: 1, before }))));
    expect(outcomes.map(({ status }) => status)).toEqual([...Array(WAITING_MAX).fill('fulfilled'), 'rejected']);
  });

  it('a page that one comes to from the first is kept, however many others are asked for', async () => {
    const { nextCursor } = await page(5);
    const third = (await page(5, nextCursor)).nextCursor!;
    await page(5, third);
    for (let i = 0; i < 2 * KEPT_PAGES_MAX; i++) await page(1, String(1000 + i));
    ledgerOut = new RetryableError('unavailable', 'the disk is full');
    expect((await page(5, nextCursor)).ids[0]).toBe('95');
    expect((await page(5, third)).ids[0]).toBe('90');
    await expect(page(5, '1000')).rejects.toThrow('the disk is full');
  });

  it('so many may wait for it, and further ones get what was seen last, or are refused (P10)', async () => {
    const gate = Promise.withResolvers<void>();
    held = gate.promise;
    const ask = () => list.page({ limit: 5, before: null });
    const waiting = Array.from({ length: 1024 }, ask);
    await settled();
    await expect(ask()).rejects.toMatchObject({ code: 'overloaded' });
    gate.resolve();
    const [first] = await ended(Promise.all(waiting));
    held = new Promise(() => {});
    runtime.clock.advance(FRESH_MS);
    const again = Array.from({ length: 1024 }, ask);
    await settled();
    expect((await ask()).tag).toBe(first!.tag);
    await runtime.timers.advance(1000);
    await Promise.all(again);
  });

  it('with the ledger out, shows what was seen last; what nobody has seen fails, and is tried again', async () => {
    const { tag } = await page(5);
    ledgerOut = new RetryableError('unavailable', 'the disk is full');
    runtime.clock.advance(10 * FRESH_MS);
    expect((await page(5)).tag).toBe(tag);
    await expect(page(5, '90')).rejects.toThrow('the disk is full');
    ledgerOut = null;
    expect((await page(5, '90')).ids).toHaveLength(5);
  });

  it('with a ledger that does not answer, shows what was seen last, and the rest fails in time', async () => {
    const { tag } = await page(5);
    held = new Promise(() => {});
    runtime.clock.advance(FRESH_MS);
    const again = list.page({ limit: 5, before: null });
    await settled();
    await runtime.timers.advance(1000);
    expect((await again).tag).toBe(tag);
    const unseen = list.page({ limit: 5, before: '90' });
    unseen.catch(() => {});
    await runtime.timers.advance(5000);
    await settled();
    await runtime.timers.advance(6000);
    await expect(unseen).rejects.toMatchObject({ code: 'unavailable' });
  });
});
