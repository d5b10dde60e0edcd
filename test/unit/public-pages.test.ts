import { beforeEach, describe, expect, it } from 'vitest';
import { RetryableError } from '../../src/base/errors.ts';
import { type Part, PublicPages } from '../../src/views/public-pages.ts';
import { type ManualRuntime, manualRuntime, settled } from '../contract/manual.ts';

/** What anybody may read of posts costs the same whoever looks (P10). */
describe('pages for the public', () => {
  let runtime: ManualRuntime;
  let pages: PublicPages;
  let reads: string[];
  let rows: string[] | null;
  /** How long a read holds the event loop. */
  let busyMs: number;
  let held: Promise<void> | null;

  beforeEach(() => {
    runtime = manualRuntime();
    pages = new PublicPages(runtime, 'posts');
    reads = [];
    rows = ['c', 'b', 'a'];
    busyMs = 0;
    held = null;
  });

  const FRONT = { of: null, page: '', isFirst: true };

  function read(name: string) {
    return async (during: <T>(piece: () => T) => T): Promise<Part | null> => {
      reads.push(name);
      const found = during(() => {
        runtime.clock.advance(busyMs);
        return rows && { rows: rows.map((row) => ({ cursor: row, json: `"${row}"` })), more: false };
      });
      if (held) await held;
      return found;
    };
  }

  async function front(limit = 50): Promise<unknown> {
    const answer = await pages.page(FRONT, limit, read('front'));
    return answer && JSON.parse(String(answer.body));
  }

  it('are read once for all who look at the same time, whatever their limit, and kept for half a second', async () => {
    const [all, two] = await Promise.all([front(50), front(2)]);
    expect(all).toEqual({ data: ['c', 'b', 'a'], nextCursor: null });
    expect(two).toEqual({ data: ['c', 'b'], nextCursor: 'b' });
    runtime.clock.advance(499);
    await front();
    expect(reads).toHaveLength(1);
    rows = ['d'];
    runtime.clock.advance(1);
    expect(await front()).toEqual({ data: ['d'], nextCursor: null });
    expect(reads).toHaveLength(2);
  });

  it('are written once, within the pace, whatever limits are asked for in turn: a tag needs no body (P10)', async () => {
    let written = 0;
    const row = (name: string) => ({
      cursor: name,
      get json() {
        written++;
        runtime.clock.advance(10);
        return JSON.stringify(name.repeat(1000));
      },
    });
    const slow = async (): Promise<Part> => ({ rows: ['c', 'b', 'a'].map(row), more: false });
    const asked = { of: 'post:1', page: 'comments', isFirst: true };
    const tags = new Set<string>();
    for (let n = 0; n < 100; n++) {
      const answer = await pages.page(asked, 1 + (n % 4), slow);
      tags.add(answer!.tag);
      if (n < 4) expect(answer!.body, 'the length is known before').toHaveLength(answer!.bytes);
    }
    expect(written).toBe(3);
    expect(tags.size, 'of three rows and of four it is the same').toBe(3);
    // What it took to write them is followed by a pause, as reading is.
    void pages.page({ of: 'post:2', page: '', isFirst: true }, 50, read('next'));
    await runtime.timers.advance(200);
    expect(reads).toEqual([]);
    await runtime.timers.advance(100);
    expect(reads).toEqual(['next']);
  });

  it('show a change of this process at once, also if a read was under way', async () => {
    await front();
    const gate = Promise.withResolvers<void>();
    held = gate.promise;
    runtime.clock.advance(500);
    const old = front();
    await settled();
    rows = ['new'];
    pages.changed(null);
    held = null;
    expect(await front()).toEqual({ data: ['new'], nextCursor: null });
    gate.resolve();
    expect(await old).toMatchObject({ data: ['c', 'b', 'a'] });
    // What was read before the change is not kept after it.
    expect(await front()).toEqual({ data: ['new'], nextCursor: null });
    expect(reads).toHaveLength(3);
  });

  it('that are changed all the time are read at their pace, by one read that waits for all who come (P10)', async () => {
    busyMs = 10;
    await front();
    const seen: Promise<unknown>[] = [];
    for (let n = 0; n < 50; n++) {
      rows = [`change ${n}`];
      pages.changed(null);
      seen.push(front(), front());
      await settled();
    }
    // After its pause one read shows the last change to all of them.
    expect(reads).toHaveLength(1);
    await runtime.timers.advance(100);
    expect(reads).toHaveLength(2);
    const last = { data: ['change 49'], nextCursor: null };
    expect(await Promise.all(seen)).toEqual(seen.map(() => last));
    // And is kept, also if something else has changed meanwhile.
    pages.changed('post:9');
    expect(await front()).toEqual(last);
    expect(reads).toHaveLength(2);
  });

  it('that cannot be read in time are given up, and the next reader tries again', async () => {
    held = new Promise(() => {});
    const hanging = front();
    const failed = expect(hanging).rejects.toMatchObject({ code: 'unavailable' });
    await runtime.timers.advance(2000);
    await failed;
    held = null;
    expect(await front()).toMatchObject({ nextCursor: null });
  });

  it('of one thing are forgotten without those of another', async () => {
    const of = (name: string) => pages.page({ of: name, page: '', isFirst: true }, 50, read(name));
    await of('post:1');
    await of('post:11');
    pages.changed('post:1');
    await of('post:1');
    await of('post:11');
    expect(reads).toEqual(['post:1', 'post:11', 'post:1']);
  });

  it('that do not exist are remembered as well, and a failure is not', async () => {
    rows = null;
    expect(await front()).toBeNull();
    expect(await front()).toBeNull();
    expect(reads).toHaveLength(1);
    runtime.clock.advance(500);
    const failing = async (): Promise<Part> => {
      throw new RetryableError('unavailable', 'the ledger is out');
    };
    await expect(pages.page(FRONT, 50, failing)).rejects.toThrow('the ledger is out');
    rows = ['back'];
    expect(await front()).toMatchObject({ data: ['back'] });
  });

  it('that are made up wait for each other and are refused, and hold up neither the front page nor known posts', async () => {
    await pages.one('post:7', undefined, async () => '7');
    busyMs = 10;
    const made = Array.from({ length: 100 }, (_, at) =>
      pages.page({ of: `post:${1000 + at}`, page: '', isFirst: true }, 50, read('made up')),
    );
    const refused = made.map((one) =>
      one.then(
        () => false,
        (error: unknown) => (error as RetryableError).code,
      ),
    );
    await settled();
    // One was read at once; the others wait for its pause.
    expect(reads).toEqual(['made up']);
    expect((await front()) !== null && reads.at(-1)).toBe('front');
    await pages.page({ of: 'post:7', page: 'comments', isFirst: true }, 50, read('known'));
    expect(reads.at(-1)).toBe('known');
    // A cursor of a known post is made up as easily.
    await expect(
      pages.page({ of: 'post:7', page: 'comments 9', isFirst: false }, 50, read('cursor')),
    ).rejects.toMatchObject({ code: 'overloaded' });
    for (let turn = 0; turn < 400; turn++) {
      await runtime.timers.advance(50);
    }
    const codes = await Promise.all(refused);
    expect(codes.filter((code) => code === 'overloaded')).toHaveLength(100 - 1 - 32);
  });

  it('of known things are read in turns of addresses, each of which has a share of the places (P10)', async () => {
    for (let at = 0; at < 100; at++) await pages.one(`post:${at}`, undefined, async () => 'known');
    const outcomes: string[] = [];
    const ask = (at: number, from: string | null): void => {
      const asked = { of: `post:${at}`, page: 'comments', isFirst: true, reader: () => from };
      pages.page(asked, 50, read(`${from} ${at}`)).then(
        () => outcomes.push(`${from}: read`),
        (error: RetryableError) => outcomes.push(`${from}: ${error.code}`),
      );
    };
    busyMs = 10;
    for (let at = 0; at < 40; at++) ask(at, 'flood');
    await settled();
    expect(outcomes.filter((outcome) => outcome === 'flood: overloaded')).toHaveLength(40 - 1 - 8);
    for (let at = 40; at < 48; at++) ask(at, 'one');
    ask(48, 'one');
    ask(49, 'other');
    for (let at = 50; at < 60; at++) ask(at, null);
    await settled();
    expect(outcomes.filter((outcome) => outcome === 'one: overloaded')).toHaveLength(1);
    await runtime.timers.advance(400);
    expect(reads.slice(0, 5)).toEqual(['flood 0', 'flood 1', 'one 40', 'other 49', 'null 50']);
    await runtime.timers.advance(4000);
    expect(
      outcomes.filter((outcome) => outcome === 'null: read'),
      'a proxy has no share',
    ).toHaveLength(10);
  });

  it('are served up to two seconds old if they cannot be read now, but not what was deleted (P10)', async () => {
    const page = (at: number) => ({ of: `post:${at}`, page: 'comments', isFirst: true });
    const ask = (at: number) => pages.page(page(at), 50, read(`${at}`));
    for (let at = 0; at < 100; at++) await ask(at);
    const full = async (): Promise<void> => {
      await runtime.timers.advance(10_000);
      for (const at of [0, 1]) await ask(at);
      runtime.clock.advance(400);
      busyMs = 10;
      for (let at = 2; at < 2 + 1 + 64; at++) void ask(at);
      await settled();
      busyMs = 0;
      reads = [];
    };
    await full();
    pages.changed('post:0');
    rows = ['new'];
    const old = '{"data":["c","b","a"],"nextCursor":null}';
    // Read 410 ms ago: it may still be shown to others, for half a second in all.
    expect(String((await ask(0))!.body)).toBe(old);
    runtime.clock.advance(90);
    await expect(ask(0)).rejects.toMatchObject({ code: 'overloaded' });
    expect(String((await ask(1))!.body)).toBe(old);
    runtime.clock.advance(1499);
    expect(String((await ask(1))!.body)).toBe(old);
    runtime.clock.advance(1);
    await expect(ask(1)).rejects.toMatchObject({ code: 'overloaded' });
    expect(reads).toEqual([]);
    await runtime.timers.advance(10_000);
    expect(String((await ask(1))!.body)).toContain('new');
  });

  it('have a bounded number of readers who wait: for one page, and for all of a kind (P10)', async () => {
    const gate = Promise.withResolvers<void>();
    held = gate.promise;
    let refused = 0;
    const ask = (of: string | null, isFirst = true): void => {
      pages.page({ of, page: '', isFirst }, 50, read(String(of))).catch((error: RetryableError) => {
        if (error.code === 'overloaded') refused++;
      });
    };
    for (let n = 0; n < 256; n++) ask('post:0');
    await settled();
    expect(refused).toBe(0);
    ask('post:0');
    await settled();
    expect(refused).toBe(1);
    for (let n = 0; n < 1024 - 256; n++) ask(`post:${1 + (n % 8)}`);
    await settled();
    expect(refused).toBe(1);
    ask('post:1');
    ask('post:9');
    await settled();
    expect(refused).toBe(3);
    // The front page has room for as many of its own.
    const seen = front();
    await settled();
    gate.resolve();
    expect(await seen).toMatchObject({ nextCursor: null });
    await settled();
    expect(await pages.page({ of: 'post:1', page: '', isFirst: true }, 50, read('after'))).not.toBeNull();
  });

  it('take a tenth of the event loop’s time, however many are asked for', async () => {
    busyMs = 10;
    const startedMs = runtime.clock.monotonic();
    const asked = Array.from({ length: 10 }, (_, at) =>
      pages.page({ of: `post:${at}`, page: '', isFirst: true }, 50, read('one')),
    );
    let done = 0;
    for (const one of asked) void one.then(() => done++);
    for (let turn = 0; turn < 500 && done < 10; turn++) {
      await runtime.timers.advance(5);
    }
    expect(done).toBe(10);
    expect(runtime.clock.monotonic() - startedMs).toBeGreaterThanOrEqual(9 * 100);
  });
});
