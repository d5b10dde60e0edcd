import { describe, expect, it } from 'vitest';
import {
  buildSeatMap,
  decodeSeatMap,
  encodeSeatMap,
  freeRowText,
  rowIndexOf,
  rowText,
  SEAT_BOUNDS,
  SEAT_NAME_LENGTH_MAX,
  type SeatRowDefinition,
  saleSeatFaults,
  seatMapFaults,
  seatName,
  seatNumbered,
  shownStates,
  statesOf,
} from '../../src/model/seat-map.ts';

const A = { section: 'Stalls', row: 'A', from: 1, to: 4 };
const B = { section: 'Stalls', row: 'B', numbers: [7, 1, 2, 6, 9], x: 10, y: 20.5, angle: -3 };
const BALCONY = { section: 'Balcony', row: 'A', from: 12, to: 12, x: 0, y: -1 };

describe('a seat map', () => {
  const map = buildSeatMap([A, B, BALCONY]);

  it('numbers seats from 0, row by row, each row ascending', () => {
    expect(map.size).toBe(10);
    expect(map.rows.map(({ first }) => first)).toEqual([0, 4, 9]);
    expect(Array.from({ length: 10 }, (_, seat) => seatName(map, seat))).toEqual([
      ...['Stalls/A/1', 'Stalls/A/2', 'Stalls/A/3', 'Stalls/A/4'],
      ...['Stalls/B/1', 'Stalls/B/2', 'Stalls/B/6', 'Stalls/B/7', 'Stalls/B/9'],
      'Balcony/A/12',
    ]);
    expect([0, 3, 4, 8, 9].map((seat) => rowIndexOf(map, seat))).toEqual([0, 0, 1, 1, 2]);
    for (const seat of [-1, 10, 0.5, Number.NaN]) expect(() => seatName(map, seat)).toThrow(RangeError);
  });

  it('finds a seat by its name, written as it is and not otherwise', () => {
    for (let seat = 0; seat < map.size; seat++) expect(seatNumbered(map, seatName(map, seat))).toBe(seat);
    const unknown = [
      ...['Stalls/A/0', 'Stalls/A/5', 'Stalls/B/3', 'Stalls/B/8', 'Stalls/C/1', 'Balcony/B/12', 'stalls/A/1'],
      ...['Stalls/A/01', 'Stalls/A/+1', 'Stalls/A/1.0', 'Stalls/A/1e0', 'Stalls/A/', 'Stalls/A', 'Stalls//1', ''],
      ...['Stalls/A/1/', '/Stalls/A/1', ' Stalls/A/1', 'Stalls/A/1 ', 'Stalls/A/1000000', `${'x'.repeat(300)}/A/1`],
    ];
    for (const name of unknown) expect([name, seatNumbered(map, name)]).toEqual([name, null]);
  });

  it('has the places of its rows, with an angle of 0 unless they have one', () => {
    expect(map.rows.map(({ place }) => place)).toEqual([
      undefined,
      { x: 10, y: 20.5, angle: -3 },
      { x: 0, y: -1, angle: 0 },
    ]);
  });

  it('is stored as ranges', () => {
    expect(encodeSeatMap(map)).toBe(
      ['1', 'Stalls\tA\t1-4', '\tB\t1-2,6-7,9\t10\t20.5\t-3', 'Balcony\tA\t12\t0\t-1\t0'].join('\n'),
    );
    expect(decodeSeatMap(encodeSeatMap(map))).toEqual(map);
    const hall = Array.from({ length: 200 }, (_, row) => ({ section: 'Hall', row: `${row + 1}`, from: 1, to: 500 }));
    expect(encodeSeatMap(buildSeatMap(hall)).length).toBeLessThan(200 * 15);
  });

  it.each(['', '2\nStalls\tA\t1-4', '1\nStalls\tA', '1\n\tA\t1', '1\nS\tA\t4-1', '1\nS\tA\tx', '1\nS\tA\t1\t2', '1\n'])(
    'does not read %j',
    (text) => {
      expect(() => decodeSeatMap(text)).toThrow(/a seat map has/);
    },
  );

  it('has row texts in which a run of free neighbours is f+', () => {
    expect(map.rows.map(freeRowText)).toEqual(['ffff', 'ff|ff|f', 'f']);
    expect(rowText(map.rows[1]!.numbers, 'frqsh')).toBe('fr|qs|h');
    expect(statesOf('fr|qs|h')).toBe('frqsh');
    expect(shownStates('frqsbh')).toBe('frrsbr');
  });
});

describe('a definition', () => {
  const paths = (...definitions: SeatRowDefinition[]): string[] =>
    seatMapFaults(definitions, '/seats').map(({ path }) => path);
  const messages = (...definitions: SeatRowDefinition[]): string =>
    seatMapFaults(definitions, '/seats')
      .map(({ message }) => message)
      .join('; ');

  it('may have what stands in a hall', () => {
    const named = { ...A, section: '1. Rang, links (冬) 🎭', row: 'A–Z' };
    const zero = { ...A, row: '0', from: 0, to: 0 };
    const last = { section: 'Stalls', row: 'last', numbers: [SEAT_BOUNDS.numberMax, 0] };
    expect(paths(A, B, BALCONY, named, zero, last)).toEqual([]);
  });

  it('has at least one row', () => {
    expect(seatMapFaults([], '/items/3/seats')).toEqual([
      { path: '/items/3/seats', message: 'needs at least one row' },
    ]);
  });

  it.each<[what: string, name: string, fault: RegExp | null]>([
    ['64 characters', 'x'.repeat(64), null],
    ['64 characters of two units each', '🎭'.repeat(64), null],
    ['65 characters', 'x'.repeat(65), /at most 64 characters/],
    ['300 characters', 'x'.repeat(300), /at most 64 characters/],
    ['none', '', /must not be empty/],
    ['a slash', 'A/B', /must not contain "\/"/],
    ['a blank before', ' A', /blanks/],
    ['a blank behind', 'A ', /blanks/],
    ['a blank of another width behind', 'A\u3000', /blanks/],
    ['blanks only', '  ', /blanks/],
    ['a line feed', 'A\nB', /control characters/],
    ['a tab', 'A\tB', /control characters/],
    ['a zero', 'A\0', /control characters/],
    ['half a character', 'A\ud800', /well-formed/],
  ])('names sections and rows: %s', (_, name, fault) => {
    for (const field of ['section', 'row']) {
      const faults = seatMapFaults([{ ...A, [field]: name }], '/seats');
      expect(faults).toEqual(
        fault === null ? [] : [{ path: `/seats/0/${field}`, message: expect.stringMatching(fault) }],
      );
    }
  });

  it('has seats by range or by list', () => {
    const { from: _, ...open } = A;
    const { from: __, to: ___, ...none } = A;
    for (const odd of [open, none, { ...A, numbers: [1] }, { ...open, numbers: [1] }]) {
      expect(paths(odd)).toEqual(['/seats/0']);
      expect(messages(odd)).toBe('must have either "from" and "to", or "numbers"');
    }
  });

  it('has whole numbers from 0 to 999 999', () => {
    for (const odd of [-1, 1.5, 1_000_000, Number.NaN, Number.POSITIVE_INFINITY, '3' as unknown as number]) {
      expect(paths({ ...A, from: odd, to: odd })).toEqual(['/seats/0/from', '/seats/0/to']);
      expect(paths({ section: 'S', row: 'A', numbers: [3, odd, 4] })).toEqual(['/seats/0/numbers/1']);
    }
  });

  it('has ranges that are not turned around', () => {
    expect(paths({ ...A, from: 5, to: 5 })).toEqual([]);
    expect(paths({ ...A, from: 6, to: 5 })).toEqual(['/seats/0/to']);
  });

  it('has 1 to 500 seats a row', () => {
    const list = (size: number) => Array.from({ length: size }, (_, index) => 3 * index);
    expect(paths({ ...A, from: 1, to: 500 }, { ...A, row: 'B', from: 0, to: 499 })).toEqual([]);
    expect(paths({ ...A, from: 1, to: 501 }, { ...A, row: 'B', from: 0, to: 500 })).toEqual([
      '/seats/0/to',
      '/seats/1/to',
    ]);
    expect(paths({ ...A, from: 0, to: 999_999 })).toEqual(['/seats/0/to']);
    expect(paths({ section: 'S', row: 'A', numbers: list(500) })).toEqual([]);
    expect(paths({ section: 'S', row: 'A', numbers: list(501) })).toEqual(['/seats/0/numbers']);
    expect(paths({ section: 'S', row: 'A', numbers: [] })).toEqual(['/seats/0/numbers']);
  });

  it('has no seat twice', () => {
    const list = { section: 'S', row: 'A', numbers: [4, 7, 4, 7] };
    expect(seatMapFaults([list], '/seats')).toEqual([
      { path: '/seats/0/numbers/2', message: 'the seat S/A/4 is given twice' },
    ]);
  });

  it('has no overlapping ranges', () => {
    expect(seatMapFaults([A, BALCONY, { ...A, from: 4, to: 9 }], '/seats')).toEqual([
      { path: '/seats/2', message: 'the seat Stalls/A/4 is given twice' },
    ]);
    expect(messages(A, { section: 'Stalls', row: 'A', numbers: [9, 3] })).toBe('the seat Stalls/A/3 is given twice');
  });

  it('has a row once', () => {
    expect(seatMapFaults([A, { ...A, from: 5, to: 9 }], '/seats')).toEqual([
      {
        path: '/seats/1',
        message: 'the row Stalls/A has an entry already: give all its seats in one list of numbers',
      },
    ]);
    expect(paths(A, { ...A, section: 'stalls' }, { ...A, row: 'a' })).toEqual([]);
  });

  it('has places that can be drawn', () => {
    expect(paths({ ...A, x: 1, y: 2 }, { ...B, angle: 359.9 })).toEqual([]);
    expect(paths({ ...A, x: 1 })).toEqual(['/seats/0']);
    expect(paths({ ...A, y: 1 })).toEqual(['/seats/0']);
    expect(paths({ ...A, angle: 1 })).toEqual(['/seats/0/angle']);
    for (const field of ['x', 'y', 'angle']) {
      for (const odd of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
        expect(paths({ ...A, x: 0, y: 0, [field]: odd })).toEqual([`/seats/0/${field}`]);
      }
    }
  });

  it('is told the first faults of many, not all', () => {
    const rows = Array.from({ length: 100_000 }, (_, index) => ({ ...A, row: `${index % 5}/`, section: ' ' }));
    expect(seatMapFaults(rows, '/seats')).toHaveLength(20);
    expect(
      seatMapFaults(
        Array.from({ length: 1000 }, () => A),
        '/seats',
      ),
    ).toHaveLength(20);
  });
});

describe('between the items of a sale', () => {
  const items = (...maps: SeatRowDefinition[][]) =>
    maps.map((seats, index) => ({ path: `/items/${index}/seats`, seats }));
  const rows = (count: number, size: number, section = 'S'): SeatRowDefinition[] =>
    Array.from({ length: count }, (_, row) => ({ section, row: `${row}`, from: 1, to: size }));

  it('no seat is in two, though they may share a row', () => {
    expect(saleSeatFaults(items([A], [{ ...A, from: 5, to: 9 }], [{ ...A, section: 'stalls' }]))).toEqual([]);
    expect(saleSeatFaults(items([A], [B, { section: 'Stalls', row: 'A', numbers: [9, 4, 3] }]))).toEqual([
      { path: '/items/1/seats/1', message: 'another item has the seat Stalls/A/3 already' },
    ]);
    const third = saleSeatFaults(items([A], [{ ...A, from: 5, to: 9 }], [{ ...A, from: 9, to: 9 }]));
    expect(third).toEqual([{ path: '/items/2/seats/0', message: 'another item has the seat Stalls/A/9 already' }]);
  });

  it('there are at most 100 000 seats', () => {
    expect(saleSeatFaults(items(rows(100, 500, 'S'), rows(100, 500, 'T')))).toEqual([]);
    expect(saleSeatFaults(items(rows(100, 500, 'S'), rows(100, 500, 'T'), rows(1, 1, 'U')))).toEqual([
      { path: '/items/2/seats', message: 'a sale has at most 100000 seats' },
    ]);
    expect(saleSeatFaults(items([...rows(200, 500), { section: 'T', row: 'A', numbers: [1] }]))).toHaveLength(1);
  });

  it('there are at most 20 000 rows', () => {
    expect(saleSeatFaults(items(rows(19_999, 1), rows(1, 1, 'T')))).toEqual([]);
    expect(saleSeatFaults(items(rows(19_999, 1), rows(2, 1, 'T')))).toEqual([
      { path: '/items/1/seats', message: 'a sale has at most 20000 rows' },
    ]);
  });

  it('built rows may stand beside new ones', () => {
    const map = buildSeatMap([A, B]);
    expect(saleSeatFaults([{ path: '', seats: map.rows }, ...items([BALCONY])])).toEqual([]);
    expect(saleSeatFaults([{ path: '', seats: map.rows }, ...items([{ ...B, numbers: [6] }])])).toHaveLength(1);
  });

  it('the first faults of many are told, not all', () => {
    expect(saleSeatFaults(items(rows(1000, 2), rows(1000, 2)))).toHaveLength(20);
  });
});

it('the longest name has 136 characters', () => {
  const longest = {
    section: 'x'.repeat(64),
    row: 'y'.repeat(64),
    from: SEAT_BOUNDS.numberMax,
    to: SEAT_BOUNDS.numberMax,
  };
  expect(seatMapFaults([longest], '')).toEqual([]);
  expect(seatName(buildSeatMap([longest]), 0)).toHaveLength(SEAT_NAME_LENGTH_MAX);
});
