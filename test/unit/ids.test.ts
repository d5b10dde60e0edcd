import fc from 'fast-check';
import { afterEach, describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { unavailable } from '../../src/base/errors.ts';
import { composeId, ID_EPOCH_MS, IdSequence, idTimeMs, isId, type TakeBlock } from '../../src/base/ids.ts';
import { settled, T0 } from '../contract/manual.ts';
import { type SqliteUnderTest, sqliteUnderTest } from '../support/sqlite-ledger.ts';

/** A ledger row that starts at `next`. */
function blocksFrom(next: number): TakeBlock {
  return async (_, size) => {
    next += size;
    return { from: next - size, to: next };
  };
}

async function many(ids: IdSequence, count: number): Promise<string[]> {
  const taken = [];
  for (let i = 0; i < count; i++) taken.push(await ids.next());
  return taken;
}

function expectGrowing(ids: string[]): void {
  for (const [at, id] of ids.entries()) {
    if (at > 0) expect(BigInt(id), `${id} after ${ids[at - 1]}`).toBeGreaterThan(BigInt(ids[at - 1]!));
  }
}

describe('an id', () => {
  it('holds seconds since 2025 above the sequence', () => {
    expect(composeId(1, 2)).toBe(String(2n ** 32n + 2n));
    expect(composeId(0, 2 ** 32 + 5)).toBe('5');
    expect(idTimeMs(composeId(86_400, 7))).toBe(ID_EPOCH_MS + 86_400_000);
  });

  it('tells its time to the second', async () => {
    const clock = new ManualClock(T0 + 1234);
    const [id] = await many(new IdSequence('order', blocksFrom(1), clock, 10), 1);
    expect(idTimeMs(id!)).toBe(T0 + 1000);
  });

  it.each([
    ['1', true],
    [String(2n ** 63n - 1n), true],
    [String(2n ** 63n), false],
    ['9999999999999999999', false],
    ['99999999999999999999', false],
    ['0', false],
    ['01', false],
    ['', false],
    ['-1', false],
    ['+1', false],
    ['1.0', false],
    ['1e3', false],
    ['0x10', false],
    [' 1', false],
    ['1\n', false],
    ['１', false],
    ['abc', false],
  ])('isId(%j) is %s', (text, answer) => {
    expect(isId(text)).toBe(answer);
  });

  it('isId is exact around each digit of the largest one', () => {
    const largest = 2n ** 63n - 1n;
    const near = Array.from({ length: 19 }, (_, at) => 10n ** BigInt(at)).flatMap((step) => [
      ...[largest - step, largest + step, largest / step, step, step - 1n],
      ...[(largest / step) * step, (largest / step) * step - 1n, (largest / step + 1n) * step],
    ]);
    for (const one of near) expect([one, isId(one.toString())]).toEqual([one, one > 0n && one <= largest]);
  });
});

describe('a sequence of ids', () => {
  let world: SqliteUnderTest | null = null;

  afterEach(async () => {
    await world?.close();
    world = null;
  });

  it('grows with every id and with time', async () => {
    const clock = new ManualClock(T0);
    const ids = new IdSequence('order', blocksFrom(1), clock, 10);
    const taken = [];
    for (let second = 0; second < 5; second++) {
      taken.push(...(await many(ids, 7)));
      clock.advance(1000);
    }
    expectGrowing(taken);
    expect(taken.every(isId)).toBe(true);
  });

  it('goes on growing when the clock steps back, and when it stands', async () => {
    const clock = new ManualClock(T0);
    const ids = new IdSequence('order', blocksFrom(1), clock, 10);
    const taken = await many(ids, 5);
    clock.step(-3600_000);
    taken.push(...(await many(ids, 25)));
    clock.step(7200_000);
    taken.push(...(await many(ids, 5)));
    expectGrowing(taken);
  });

  it('works with a clock before 2025', async () => {
    const taken = await many(new IdSequence('order', blocksFrom(1), new ManualClock(0), 10), 3);
    expectGrowing(taken);
    expect(taken.every(isId)).toBe(true);
  });

  it('P3: never gives a number again after a crash, also with a clock that stepped back', async () => {
    world = sqliteUnderTest();
    const { clock } = world;
    const seen = new Set<string>();
    for (let life = 0; life < 4; life++) {
      // A new process does not know the unused rest of the last one's block.
      const ids = new IdSequence('order', (kind, size) => world!.ledger.takeIdBlock(kind, size), clock, 8);
      for (const id of await many(ids, 13)) {
        const sequence = String(BigInt(id) & (2n ** 32n - 1n));
        expect(seen.has(sequence), `number ${sequence} again`).toBe(false);
        seen.add(sequence);
      }
      clock.step(-5000);
      if (life % 2 === 0) await world.crash();
      else await world.reopen();
    }
  });

  it('keeps ids apart and well-formed when the sequence wraps at 2^32', async () => {
    const clock = new ManualClock(T0);
    const ids = new IdSequence('order', blocksFrom(2 ** 32 - 5), clock, 4);
    const taken = await many(ids, 10);
    expect(new Set(taken).size).toBe(10);
    expect(taken.every(isId)).toBe(true);
    expect(taken.every((id) => idTimeMs(id) >= T0)).toBe(true);
  });

  it('only grows, also where the sequence wraps', async () => {
    const ids = new IdSequence('order', blocksFrom(2 ** 32 - 5), new ManualClock(T0), 4);
    expectGrowing(await many(ids, 10));
  });

  it('gives each of many callers at once an id of their own, waiting for blocks as needed', async () => {
    const ids = new IdSequence('order', blocksFrom(1), new ManualClock(T0), 3);
    const taken = await Promise.all(Array.from({ length: 50 }, () => ids.next()));
    expect(new Set(taken).size).toBe(50);
  });

  it('fetches the next block when half is used, so that a crowd does not wait for it', async () => {
    let fetched = 0;
    const take = blocksFrom(1);
    const ids = new IdSequence(
      'order',
      (kind, size) => {
        fetched++;
        return take(kind, size);
      },
      new ManualClock(T0),
      10,
    );
    expect(ids.take(), 'nothing yet').toBeNull();
    await ids.refill();
    for (let i = 0; i < 5; i++) expect(ids.take()).not.toBeNull();
    expect(fetched).toBe(1);
    expect(ids.take()).not.toBeNull();
    expect(fetched).toBe(2);
    await settled();
    for (let i = 0; i < 14; i++) expect(ids.take(), `id ${i}`).not.toBeNull();
  });

  it('throws a failure of the ledger to whoever waits, and goes on when it is back', async () => {
    let out = true;
    const take = blocksFrom(1);
    const ids = new IdSequence(
      'order',
      async (kind, size) => {
        if (out) throw unavailable('the disk is full');
        return take(kind, size);
      },
      new ManualClock(T0),
      4,
    );
    await expect(ids.next()).rejects.toThrow('the disk is full');
    expect(ids.take()).toBeNull();
    out = false;
    const before = await many(ids, 2);
    out = true;
    // The current block is used to its end; the failed fetch in the background does not matter yet.
    before.push(...(await many(ids, 2)));
    await expect(ids.next()).rejects.toThrow('the disk is full');
    out = false;
    expectGrowing([...before, ...(await many(ids, 3))]);
  });

  it('P10: a ledger that is out is asked for the next block every 100 ms, not with every id; whoever waits asks at once', async () => {
    let asked = 0;
    let out = false;
    const take = blocksFrom(1);
    const clock = new ManualClock(T0);
    const ids = new IdSequence(
      'order',
      async (kind, size) => {
        asked++;
        if (out) throw unavailable('the ledger is out');
        return take(kind, size);
      },
      clock,
      100,
    );
    const takeTen = async (): Promise<void> => {
      for (let i = 0; i < 10; i++) {
        expect(ids.take()).not.toBeNull();
        await settled();
      }
    };
    await ids.refill();
    out = true;
    for (let i = 0; i < 50; i++) ids.take();
    expect(asked).toBe(1);
    await takeTen();
    expect(asked).toBe(2);
    clock.advance(99);
    // The pause is measured by the monotonic clock: setting the wall clock does not end it.
    clock.step(3_600_000);
    await takeTen();
    expect(asked).toBe(2);
    clock.advance(1);
    await takeTen();
    expect(asked).toBe(3);
    await takeTen();
    for (let i = 0; i < 10; i++) ids.take();
    expect(ids.take(), 'used up').toBeNull();
    await expect(ids.next()).rejects.toThrow('the ledger is out');
    expect(asked).toBe(4);
    out = false;
    expect(await ids.next()).not.toBeNull();
    expect(asked).toBe(5);
  });

  describe('that ids are given back to', () => {
    const numberOf = (id: string): number => Number(BigInt(id) & 0xffffffffn);

    /** A ledger that gives one block and then fails. */
    function oneBlock(from: number): TakeBlock {
      let given = false;
      return async (_, size) => {
        if (given) throw unavailable('the ledger is out');
        given = true;
        return { from, to: from + size };
      };
    }

    it('P10: refusals use up nothing: 100 000 and one are refused from a block of 100 000, and all of it is left', async () => {
      const ids = new IdSequence('order', oneBlock(1), new ManualClock(T0), 100_000);
      await ids.refill();
      for (let i = 0; i < 100_001; i++) ids.giveBack(ids.take()!);
      const taken = new Set<string>();
      for (let i = 0; i < 100_000; i++) taken.add(ids.take()!);
      expect(taken.size).toBe(100_000);
      expect(taken.has(null as unknown as string)).toBe(false);
      expect(ids.take(), 'exactly the block').toBeNull();
      ids.giveBack([...taken][77_777]!);
      expect(numberOf(ids.take()!)).toBe(numberOf([...taken][77_777]!));
      expect(ids.take()).toBeNull();
    });

    it('a returned number gets the current seconds, and moves no id into the future', async () => {
      const clock = new ManualClock(T0);
      const ids = new IdSequence('order', blocksFrom(1), clock, 10);
      const [first, second] = await many(ids, 2);
      for (let i = 0; i < 50; i++) {
        ids.giveBack(first!);
        expect(ids.take(), 'within the second it is the same id').toBe(first);
      }
      ids.giveBack(first!);
      clock.advance(3000);
      const again = ids.take()!;
      expect([idTimeMs(again), numberOf(again)]).toEqual([T0 + 3000, numberOf(first!)]);
      const next = ids.take()!;
      expect([idTimeMs(next), numberOf(next)]).toEqual([T0 + 3000, numberOf(second!) + 1]);
      clock.step(-60_000);
      ids.giveBack(again);
      expect(ids.take(), 'not back with the clock either').toBe(again);
    });

    it('a wrapped sequence goes one second ahead, a number that serves again does not', async () => {
      const ids = new IdSequence('order', blocksFrom(2 ** 32 - 2), new ManualClock(T0), 4);
      const [high, , wrapped] = (await many(ids, 3)) as [string, string, string];
      expect([idTimeMs(high), idTimeMs(wrapped), numberOf(wrapped)]).toEqual([T0, T0 + 1000, 0]);
      ids.giveBack(high);
      const again = ids.take()!;
      expect([idTimeMs(again), numberOf(again)]).toEqual([T0 + 1000, numberOf(high)]);
      expect(idTimeMs(ids.take()!)).toBe(T0 + 1000);
    });

    it('keeps no more than a block of them', async () => {
      const ids = new IdSequence('order', oneBlock(1), new ManualClock(T0), 4);
      const taken = await many(ids, 4);
      for (const id of [...taken, composeId(1, 99)]) ids.giveBack(id);
      for (let i = 0; i < 4; i++) expect(ids.take()).not.toBeNull();
      expect(ids.take()).toBeNull();
    });

    it('P3: no id is used twice, seconds never go back nor ahead of all clocks, whatever is given back when', () => {
      const op = fc.oneof(
        { weight: 6, arbitrary: fc.constant({ do: 'use' as const }) },
        { weight: 6, arbitrary: fc.constant({ do: 'take' as const }) },
        { weight: 5, arbitrary: fc.record({ do: fc.constant('back' as const), pick: fc.nat(99) }) },
        {
          weight: 2,
          arbitrary: fc.record({ do: fc.constant('pass' as const), ms: fc.integer({ min: 1, max: 2500 }) }),
        },
        {
          weight: 1,
          arbitrary: fc.record({ do: fc.constant('step' as const), ms: fc.integer({ min: -9000, max: 3000 }) }),
        },
      );
      return fc.assert(
        fc.asyncProperty(
          fc.array(op, { maxLength: 120, size: 'max' }),
          fc.constantFrom(1, 2 ** 32 - 20),
          async (ops, from) => {
            const clock = new ManualClock(T0);
            const ids = new IdSequence('order', blocksFrom(from), clock, 8);
            const used = new Set<string>();
            const open: string[] = [];
            let latestMs = 0;
            let highestMs = T0;
            for (const one of ops) {
              if (one.do === 'pass') clock.advance(one.ms);
              if (one.do === 'step') clock.step(one.ms);
              highestMs = Math.max(highestMs, clock.now());
              if (one.do === 'back' && open.length > 0) ids.giveBack(open.splice(one.pick % open.length, 1)[0]!);
              if (one.do !== 'use' && one.do !== 'take') continue;
              const id = await ids.next();
              expect(isId(id)).toBe(true);
              expect(used.has(id) || open.includes(id), `${id} belongs to somebody`).toBe(false);
              expect(idTimeMs(id)).toBeGreaterThanOrEqual(latestMs);
              // One second ahead, because the sequence wraps once.
              expect(idTimeMs(id)).toBeLessThanOrEqual(highestMs + 1000);
              latestMs = idTimeMs(id);
              if (one.do === 'use') used.add(id);
              else open.push(id);
            }
            const numbers = [...used, ...open].map(numberOf);
            expect(new Set(numbers).size, 'each number belongs to one').toBe(numbers.length);
          },
        ),
        { numRuns: 200 },
      );
    });
  });
});
