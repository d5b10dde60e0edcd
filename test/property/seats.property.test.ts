import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { bestApart, bestTogether } from '../../src/model/best-seats.ts';
import {
  buildSeatMap,
  decodeSeatMap,
  encodeSeatMap,
  freeRowText,
  rowName,
  rowText,
  type SeatRowDefinition,
  saleSeatFaults,
  seatMapFaults,
  seatName,
  seatNumbered,
  statesOf,
} from '../../src/model/seat-map.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

const RUNS = { short: 3000, long: 100_000 };

/** Row texts, from empty to full, with gaps. Most seats are free in one and taken in the next, so that all sorts of runs occur. */
const row = fc
  .tuple(fc.integer({ min: 1, max: 9 }), fc.array(fc.tuple(fc.nat(9), fc.nat(7)), { minLength: 1, maxLength: 24 }))
  .map(([fill, seats]) =>
    seats
      .map(([taken, gap], place) => {
        const state = taken < fill ? 'f' : 'qrsbh'[(taken + place) % 5]!;
        return gap === 0 && place > 0 ? `|${state}` : state;
      })
      .join(''),
  );
const rows = fc.array(row, { minLength: 1, maxLength: 8 });
const k = fc.oneof(fc.integer({ min: 1, max: 8 }), fc.integer({ min: 1, max: 100 }));

/** A row's text as a list of seats, each with the state and with the index of its character. */
function seatsOf(text: string): { state: string; at: number }[] {
  return [...text].flatMap((state, at) => (state === '|' ? [] : [{ state, at }]));
}

/** Places of free seats that have no free neighbour. */
function singles(text: string): Set<number> {
  return new Set(
    seatsOf(text).flatMap(({ state, at }, place) =>
      state === 'f' && text[at - 1] !== 'f' && text[at + 1] !== 'f' ? [place] : [],
    ),
  );
}

function withTaken(text: string, places: readonly number[]): string {
  const letters = [...text];
  for (const place of places) letters[seatsOf(text)[place]!.at] = 'r';
  return letters.join('');
}

/** The rank of a window as the rule words it: it is taken, and the lonely seats before and after are compared. */
function rankOf(text: string, start: number, k: number): number[] {
  const places = Array.from({ length: k }, (_, index) => start + index);
  const before = singles(text);
  const orphans = [...singles(withTaken(text, places))].filter((place) => !before.has(place));
  return [orphans.length, Math.abs(2 * start + k - seatsOf(text).length), start];
}

/** Every start of `k` free neighbours: in the text they are one run of characters. */
function startsOf(text: string, k: number): number[] {
  return seatsOf(text).flatMap(({ at }, place) => (text.slice(at, at + k) === 'f'.repeat(k) ? [place] : []));
}

function byRank(a: readonly number[], b: readonly number[]): number {
  return a[0]! - b[0]! || a[1]! - b[1]! || a[2]! - b[2]!;
}

describe('best available', () => {
  it(
    'together is the window of the first row with a run that no other window of it beats',
    () => {
      fc.assert(
        fc.property(rows, k, (texts, k) => {
          const best = bestTogether(texts, k);
          const first = texts.findIndex((text) => text.includes('f'.repeat(k)));
          if (best === null) {
            expect(first).toBe(-1);
            return;
          }
          expect(best.row).toBe(first);
          const ranks = startsOf(texts[first]!, k).map((start) => rankOf(texts[first]!, start, k));
          const [least] = ranks.toSorted(byRank);
          expect(rankOf(texts[first]!, best.seats[0]!, k)).toEqual(least);
          expect(best.seats).toEqual(Array.from({ length: k }, (_, index) => best.seats[0]! + index));
        }),
        seeded('best together', RUNS),
      );
    },
    LONG_TIMEOUT_MS,
  );

  it(
    'together never takes a seat that is not free, nor across a gap',
    () => {
      fc.assert(
        fc.property(rows, k, (texts, k) => {
          const best = bestTogether(texts, k);
          if (best === null) return;
          const text = texts[best.row]!;
          const taken = best.seats.map((place) => seatsOf(text)[place]!);
          expect(taken.map(({ state }) => state).join('')).toBe('f'.repeat(k));
          expect(taken.at(-1)!.at - taken[0]!.at).toBe(k - 1);
        }),
        seeded('free neighbours', RUNS),
      );
    },
    LONG_TIMEOUT_MS,
  );

  it(
    'apart is exactly k free seats, or nothing if fewer are free',
    () => {
      fc.assert(
        fc.property(rows, k, (texts, k) => {
          const chosen = bestApart(texts, k);
          const free = texts.join('').replaceAll(/[^f]/g, '').length;
          if (chosen === null) {
            expect(free).toBeLessThan(k);
            return;
          }
          const seats = chosen.flatMap(({ row, seats }) => seats.map((place) => `${row}.${place}`));
          expect(new Set(seats).size).toBe(k);
          for (const { row, seats } of chosen) {
            expect(seats.map((place) => seatsOf(texts[row]!)[place]!.state)).toEqual(seats.map(() => 'f'));
            expect(seats).toEqual(seats.toSorted((a, b) => a - b));
          }
          expect(chosen.map(({ row }) => row)).toEqual(chosen.map(({ row }) => row).toSorted((a, b) => a - b));
        }),
        seeded('k free seats', RUNS),
      );
    },
    LONG_TIMEOUT_MS,
  );

  it(
    'apart is in the first row that has room, else takes the fullest whole and goes on among the others',
    () => {
      fc.assert(
        fc.property(rows, k, (texts, k) => {
          const chosen = bestApart(texts, k);
          if (chosen === null) return;
          const free = texts.map((text) => seatsOf(text).filter(({ state }) => state === 'f').length);
          const first = free.findIndex((count) => count >= k);
          if (first >= 0) {
            expect(chosen.map(({ row }) => row)).toEqual([first]);
            return;
          }
          const fullest = free.indexOf(Math.max(...free));
          const whole = seatsOf(texts[fullest]!).flatMap(({ state }, place) => (state === 'f' ? [place] : []));
          expect(chosen.find(({ row }) => row === fullest)?.seats).toEqual(whole);
          const others = texts.with(fullest, withTaken(texts[fullest]!, whole));
          expect(chosen.filter(({ row }) => row !== fullest)).toEqual(bestApart(others, k - whole.length));
        }),
        seeded('rows of seats apart', RUNS),
      );
    },
    LONG_TIMEOUT_MS,
  );

  it(
    'apart leaves no free seat that is nearer to the centre than one it takes',
    () => {
      fc.assert(
        fc.property(rows, k, (texts, k) => {
          for (const { row, seats } of bestApart(texts, k) ?? []) {
            const all = seatsOf(texts[row]!);
            const rank = (place: number): number[] => [0, Math.abs(2 * place + 1 - all.length), place];
            const left = all.flatMap(({ state }, place) => (state === 'f' && !seats.includes(place) ? [place] : []));
            for (const taken of seats)
              for (const place of left) expect(byRank(rank(taken), rank(place))).toBeLessThan(0);
          }
        }),
        seeded('the centre of a row', RUNS),
      );
    },
    LONG_TIMEOUT_MS,
  );

  it(
    'k = 1 finds a seat either way, or neither does',
    () => {
      fc.assert(
        fc.property(rows, (texts) => {
          const together = bestTogether(texts, 1);
          const apart = bestApart(texts, 1);
          // Of the same row; the seat may be another one, since only together looks at orphans.
          expect(apart?.map(({ row }) => row)).toEqual(together === null ? undefined : [together.row]);
        }),
        seeded('one seat', RUNS),
      );
    },
    LONG_TIMEOUT_MS,
  );
});

/** Few names and numbers, so that rows and seats collide. */
const definition: fc.Arbitrary<SeatRowDefinition> = fc
  .tuple(
    fc.constantFrom('S', 'T', '座'),
    fc.constantFrom('A', 'B', 'C', 'AA'),
    fc.oneof(
      fc.tuple(fc.nat(12), fc.nat(4)).map(([from, more]) => ({ from, to: from + more })),
      fc.array(fc.nat(12), { minLength: 1, maxLength: 5 }).map((numbers) => ({ numbers })),
      fc.uniqueArray(fc.nat(999_999), { minLength: 1, maxLength: 5 }).map((numbers) => ({ numbers })),
    ),
    fc.option(
      fc.record({
        x: fc.double({ noNaN: true, noDefaultInfinity: true }),
        y: fc.double({ noNaN: true, noDefaultInfinity: true }),
        angle: fc.double({ min: -360, max: 360, noNaN: true }),
      }),
      { nil: {} },
    ),
  )
  .map(([section, row, numbers, place]) => ({ section, row, ...numbers, ...place }));
const definitions = fc.array(definition, { minLength: 1, maxLength: 6 });

function namesOf(rows: readonly SeatRowDefinition[]): string[] {
  return rows.flatMap(({ section, row, from = 0, to = -1, numbers }) =>
    (numbers ?? Array.from({ length: to - from + 1 }, (_, index) => from + index)).map(
      (number) => `${section}/${row}/${number}`,
    ),
  );
}

function isUnique(values: readonly string[]): boolean {
  return new Set(values).size === values.length;
}

describe('seat maps', () => {
  it(
    'a definition is right if no row and no seat stands twice, and then every seat has its name, also after the ledger',
    () => {
      fc.assert(
        fc.property(definitions, (rows) => {
          const right = isUnique(rows.map(rowName)) && isUnique(namesOf(rows));
          expect(seatMapFaults(rows, '/seats').length === 0).toBe(right);
          if (!right) return;
          const map = buildSeatMap(rows);
          const names = Array.from({ length: map.size }, (_, seat) => seatName(map, seat));
          expect(names.toSorted()).toEqual(namesOf(rows).toSorted());
          expect(names.map((name) => seatNumbered(map, name))).toEqual(names.map((_, seat) => seat));
          const stored = decodeSeatMap(encodeSeatMap(map));
          expect(stored).toEqual(map);
          expect(names.map((name) => seatNumbered(stored, name))).toEqual(names.map((_, seat) => seat));
        }),
        seeded('definitions', RUNS),
      );
    },
    LONG_TIMEOUT_MS,
  );

  it(
    'items are right together if no seat is in two of them',
    () => {
      fc.assert(
        fc.property(fc.array(definitions, { minLength: 1, maxLength: 4 }), (maps) => {
          const items = maps
            .map((seats, index) => ({ path: `/items/${index}/seats`, seats }))
            .filter(({ seats, path }) => seatMapFaults(seats, path).length === 0);
          const right = isUnique(items.flatMap(({ seats }) => namesOf(seats)));
          expect(saleSeatFaults(items).length === 0).toBe(right);
        }),
        seeded('items', RUNS),
      );
    },
    LONG_TIMEOUT_MS,
  );

  it(
    'a row text has a gap exactly where numbers are not consecutive',
    () => {
      fc.assert(
        fc.property(fc.uniqueArray(fc.nat(30), { minLength: 1, maxLength: 20 }), (given) => {
          const numbers = given.toSorted((a, b) => a - b);
          const states = numbers.map((number) => 'fqrsbh'[number % 6]).join('');
          const expected = numbers
            .map((number, place) => (place > 0 && numbers[place - 1] !== number - 1 ? '|' : '') + states[place])
            .join('');
          expect(rowText(numbers, states)).toBe(expected);
          expect(statesOf(expected)).toBe(states);
          expect(freeRowText({ numbers })).toBe(expected.replaceAll(/[a-z]/g, 'f'));
        }),
        seeded('row texts', RUNS),
      );
    },
    LONG_TIMEOUT_MS,
  );
});
