import { describe, expect, it } from 'vitest';
import { importSeatingPlan, type NoteCode, parseSeatingPlan, type SeatingPlan } from '../../src/cli/seating-plan.ts';
import { reportOf } from '../../src/cli/seats.ts';
import { NewSale } from '../../src/contract/schemas.ts';
import { faults, firstFault } from '../../src/contract/validate.ts';
import { buildSeatMap, saleSeatFaults, seatMapFaults, seatName } from '../../src/model/seat-map.ts';
import { row, seat, stadium, theatre, zone } from '../support/seating-plan.ts';

function imported(plan: SeatingPlan) {
  return importSeatingPlan(parseSeatingPlan(JSON.stringify(plan)));
}

function plan(...zones: SeatingPlan['zones']): SeatingPlan {
  return { name: 'Hall', categories: [{ name: 'A' }, { name: 'B' }], zones };
}

/** A row of seats of category A. */
function numbered(name: string, numbers: readonly (number | string)[], y = 0, x = 0) {
  return row(
    name,
    y,
    numbers.map((number, index) => seat(number, 'A', 25 * index)),
    x,
  );
}

/** Names of the seats of each item. */
function namesOf({ sale }: ReturnType<typeof imported>): Record<string, string[]> {
  return Object.fromEntries(
    sale.items.map(({ code, seats }) => {
      const map = buildSeatMap(seats);
      return [code, Array.from({ length: map.size }, (_, index) => seatName(map, index))];
    }),
  );
}

function noteOf({ notes }: ReturnType<typeof imported>, code: NoteCode) {
  const note = notes.find((one) => one.code === code);
  return note && { count: note.count, examples: note.examples };
}

describe('a plan of realistic size', () => {
  const result = imported(theatre());
  const { sale } = result;

  it('is understood: sections, rows, seats, categories', () => {
    expect(result).toMatchObject({ plan: 'Schauspielhaus, großer Saal', seats: 2075, leftOut: 6, faults: [] });
    expect(result.sections.map(({ section, rows, seats }) => [section, rows, seats])).toEqual([
      ['Parkett', 30, 1196],
      ['1. Rang', 10, 510],
      ['Galerie', 6, 240],
      ['Logen', 10, 40],
      ['Logen (2)', 10, 40],
      ['Balkon - Seite', 2, 44],
      ['Zone 7', 2, 5],
    ]);
    expect(result.items.map(({ item, category, rows, seats }) => [item, category, rows, seats])).toEqual([
      ['premium', 'Premium', 5, 100],
      ['parkett', 'Parkett', 30, 1096],
      ['1.-rang', '1. Rang', 12, 554],
      ['galerie', 'Galerie', 7, 242],
      ['loge-box', 'Loge/Box', 20, 80],
      ['stehplatz', 'Stehplatz', 1, 1],
      ['no-category', '', 2, 2],
    ]);
  });

  it('becomes a definition that the checks accept', () => {
    const items = sale.items.map(({ seats }, index) => ({ path: `/items/${index}/seats`, seats }));
    expect(items.flatMap(({ seats, path }) => seatMapFaults(seats, path))).toEqual([]);
    expect(saleSeatFaults(items)).toEqual([]);
    expect(items.reduce((sum, { seats }) => sum + buildSeatMap(seats).size, 0)).toBe(result.seats);
  });

  it('is refused until times and prices are filled in, and accepted then', () => {
    // What a counted item would be in its place: the other fields of the definition are those of every sale.
    const counted = { ...sale, items: sale.items.map(({ seats, ...item }) => ({ ...item, stock: seats.length })) };
    const open = faults(NewSale, structuredClone(counted)).map(({ path }) => path);
    expect(open).toEqual(expect.arrayContaining(['/opensAt', '/closesAt', '/items/0/price/amount']));
    const filled = {
      ...counted,
      opensAt: '2026-11-11T00:00:00Z',
      closesAt: '2026-11-12T00:00:00Z',
      items: counted.items.map((item) => ({ ...item, price: { amount: 4500, currency: 'EUR' } })),
    };
    expect(faults(NewSale, filled)).toEqual([]);
  });

  it('keeps every seat that has a whole number, under its name', () => {
    const names = namesOf(result);
    expect(names.premium).toHaveLength(100);
    expect(names.premium!.slice(0, 2)).toEqual(['Parkett/A/11', 'Parkett/A/12']);
    expect(names.parkett).toContain('Parkett/A/10');
    expect(names.parkett).toContain('Parkett/AD/40');
    expect(names.parkett).not.toContain('Parkett/AD/18');
    expect(names['loge-box']).toContain('Logen/Loge 10/4');
    expect(names['loge-box']).toContain('Logen (2)/Loge 10/4');
    expect(names.stehplatz).toEqual(['Zone 7/Row 1/8']);
    const all = Object.values(names).flat();
    expect(new Set(all).size).toBe(2075);
  });

  it('writes rows as ranges where it can', () => {
    const parkett = sale.items[1]!.seats;
    expect(parkett[0]).toMatchObject({ row: 'A', numbers: expect.arrayContaining([1, 10, 31, 40]) });
    expect(parkett[5]).toEqual({ section: 'Parkett', row: 'F', from: 1, to: 40, x: 75, y: 280, angle: 0 });
  });

  it('says what it did not take over as it is', () => {
    expect(Object.fromEntries(result.notes.map(({ code, count }) => [code, count]))).toEqual({
      no_number: 2,
      number_not_whole: 3,
      seat_twice: 1,
      guid_twice: 1,
      unknown_category: 1,
      no_category: 2,
      empty_category: 1,
      renamed: 6,
      rows_split: 6,
      rows_joined: 1,
      no_neighbours: 2,
      // Rows with the aisle (5 dear and 25 others), odd and even sides (6), the one round the projection room.
      drawn_apart: 37,
      areas: 1,
    });
    expect(noteOf(result, 'rows_joined')).toEqual({ count: 1, examples: ['Balkon - Seite/1'] });
    expect(noteOf(result, 'no_neighbours')!.examples).toContain('Balkon - Seite/2');
    expect(noteOf(result, 'number_not_whole')!.examples[0]).toBe('"12a" of Zone 7/Row 1');
    expect(noteOf(result, 'empty_category')!.examples).toEqual(['"Presse"']);
    for (const { examples } of result.notes) expect(examples.length).toBeLessThanOrEqual(5);
  });
});

describe('places', () => {
  it('are those of the first seat, counted from zone and row, and point at the last seat', () => {
    const level = row('level', 30, [seat(2, 'A', 25), seat(1, 'A', 5)], 10);
    const up = row('up', 0, [seat(1, 'A', 0, 0), seat(2, 'A', 0, -25)]);
    const slope = row('slope', 0, [seat(1, 'A', 0, 0), seat(2, 'A', 25, 25)]);
    const back = row('back', 0, [seat(1, 'A', 50.004, 0), seat(2, 'A', 0, 0)]);
    const { sale } = imported(plan(zone('S', 200, [level, up, slope, back], 100)));
    expect(sale.items[0]!.seats.map(({ x, y, angle }) => [x, y, angle])).toEqual([
      [115, 230, 0],
      [100, 200, -90],
      [100, 200, 45],
      [150, 200, 180],
    ]);
  });

  it('are left out where a plan has none, or none that can be drawn', () => {
    const { sale } = imported(
      plan({ rows: [{ row_number: 'A', seats: [{ seat_number: '1' }, { seat_number: '2' }] }] }),
    );
    expect(sale.items[0]!.seats).toEqual([{ section: 'Zone 1', row: 'A', from: 1, to: 2 }]);
    const far = '{"zones":[{"rows":[{"row_number":"A","seats":[{"seat_number":"1","position":{"x":1e999,"y":0}}]}]}]}';
    expect(importSeatingPlan(parseSeatingPlan(far)).sale.items[0]!.seats[0]).not.toHaveProperty('x');
  });
});

describe('names', () => {
  it('are made such that a definition may have them', () => {
    const long = 'x'.repeat(300);
    const result = imported(
      plan(
        zone(' Rang\tlinks ', 0, [numbered('1/2', [1]), numbered('\u0000', [1]), numbered(long, [1])]),
        zone(long, 0, [numbered('A', [1])]),
        { ...zone('', 0, [numbered('A', [1])]), zone_id: 'left' },
      ),
    );
    expect(namesOf(result).a).toEqual([
      'Rang links/1-2/1',
      'Rang links/Row 2/1',
      `Rang links/${'x'.repeat(64)}/1`,
      `${'x'.repeat(64)}/A/1`,
      'left/A/1',
    ]);
    expect(result.faults).toEqual([]);
    expect(noteOf(result, 'renamed')).toMatchObject({ count: 5 });
  });

  it('of zones may be shared as long as no seat stands for two', () => {
    const shared = imported(
      plan(zone('S', 0, [numbered('A', [1, 2])]), zone('S', 0, [numbered('A', [3]), numbered('B', [1])])),
    );
    expect(namesOf(shared).a).toEqual(['S/A/1', 'S/A/2', 'S/A/3', 'S/B/1']);
    expect(noteOf(shared, 'rows_joined')).toEqual({ count: 1, examples: ['S/A'] });
    const three = imported(plan(...[1, 2, 3].map(() => zone('S', 0, [numbered('A', [1])]))));
    expect(namesOf(three).a).toEqual(['S/A/1', 'S (2)/A/1', 'S (3)/A/1']);
    expect(three.leftOut).toBe(0);
  });

  it('of seats that stand twice in a zone are given once', () => {
    const result = imported(plan(zone('S', 0, [numbered('A', [1, 2, 2]), numbered('A', [2, 3])])));
    expect(namesOf(result).a).toEqual(['S/A/1', 'S/A/2', 'S/A/3']);
    expect(noteOf(result, 'seat_twice')).toEqual({ count: 2, examples: ['S/A/2'] });
    expect(result).toMatchObject({ seats: 3, leftOut: 2, faults: [] });
  });

  it('of categories become codes, each another', () => {
    const categories = ['1er balcon, côté', '1er Balcon – Coté', '内场', '看台', '__proto__', 'x'.repeat(300), '-'];
    const seats = categories.map((category, index) => seat(index + 1, category, 25 * index));
    const { sale, faults } = imported({
      name: '',
      categories: categories.map((name) => ({ name })),
      zones: [zone('S', 0, [row('A', 0, seats)])],
    });
    expect(sale.items.map(({ code }) => code)).toEqual([
      '1er-balcon-cote',
      '1er-balcon-cote-2',
      'category-3',
      'category-4',
      'proto',
      'x'.repeat(58),
      'category-7',
    ]);
    expect(sale.items.map(({ name }) => name)).toEqual(categories.with(5, 'x'.repeat(200)));
    expect(sale.name).toBe('Seating plan');
    expect(faults).toEqual([]);
  });
});

describe('neighbours', () => {
  const noted = (seats: [number: number, x: number, y?: number][]): NoteCode[] =>
    imported(
      plan(
        zone('S', 0, [
          row(
            'A',
            0,
            seats.map(([number, x, y]) => seat(number, 'A', x, y)),
          ),
        ]),
      ),
    )
      .notes.map(({ code }) => code)
      .filter((code) => code === 'no_neighbours' || code === 'drawn_apart');

  it('are consecutive numbers side by side: nothing to say', () => {
    expect(
      noted([
        [1, 0],
        [2, 25],
        [3, 50],
      ]),
    ).toEqual([]);
    expect(
      noted([
        [3, 0],
        [2, 25],
        [1, 50],
      ]),
    ).toEqual([]);
    expect(noted([[1, 0]])).toEqual([]);
    // A bend, and a step that is a little wider.
    expect(
      noted([
        [1, 0],
        [2, 20, 15],
        [3, 45, 20],
        [4, 85, 20],
      ]),
    ).toEqual([]);
    // An aisle where the numbers have a gap, too.
    expect(
      noted([
        [1, 0],
        [2, 25],
        [11, 100],
        [12, 125],
      ]),
    ).toEqual([]);
    // All at one place: not drawn.
    expect(
      noted([
        [1, 0],
        [2, 0],
        [3, 0],
      ]),
    ).toEqual([]);
  });

  it('that are drawn apart are noted', () => {
    expect(
      noted([
        [1, 0],
        [2, 25],
        [3, 75],
        [4, 100],
      ]),
    ).toEqual(['drawn_apart']);
    expect(
      noted([
        [5, 0],
        [3, 25],
        [1, 50],
        [2, 75],
        [4, 100],
      ]),
    ).toEqual(['drawn_apart']);
  });

  it('that do not exist are noted', () => {
    expect(
      noted([
        [1, 0],
        [3, 25],
        [5, 50],
      ]),
    ).toEqual(['no_neighbours']);
  });
});

describe('bounds', () => {
  it('of a row', () => {
    expect(imported(stadium(1, 500)).faults).toEqual([]);
    expect(imported(stadium(1, 501)).faults).toEqual([
      { path: '/items/0/seats/0/to', message: 'a row has at most 500 seats' },
    ]);
  });

  it('of a sale: 100 000 seats', () => {
    const full = stadium(2000, 50);
    expect(importSeatingPlan(full)).toMatchObject({ seats: 100_000, faults: [] });
    full.zones[0]!.rows.push(numbered('one more', [1]));
    expect(importSeatingPlan(full).faults).toEqual([
      { path: '/items/0/seats', message: 'a sale has at most 100000 seats' },
    ]);
  });

  it('of items', () => {
    const of = (count: number) =>
      plan(
        zone('S', 0, [
          row(
            'A',
            0,
            Array.from({ length: count }, (_, index) => seat(index, `c${index}`, 25 * index)),
          ),
        ]),
      );
    expect(imported(of(200)).faults).toEqual([]);
    expect(imported(of(201)).faults).toEqual([{ path: '/items', message: 'a sale has at most 200 items' }]);
  });

  it('of what is told', () => {
    const rows = Array.from({ length: 50 }, (_, index) =>
      numbered(
        `${index}`,
        Array.from({ length: 501 }, (_, n) => n),
      ),
    );
    expect(imported(plan(zone('S', 0, rows))).faults).toHaveLength(20);
  });
});

describe('what is not a seating plan', () => {
  it.each([
    ['', /^is not JSON: /],
    ['{"zones":[}', /^is not JSON: /],
    ['null', /^is not a seating plan: it has no zones$/],
    ['[]', /no zones$/],
    ['"zones"', /no zones$/],
    ['5', /no zones$/],
    ['{"name":"x"}', /no zones$/],
    ['{"layout":"{}"}', /no zones$/],
    ['{"zones":{}}', /^is not a seating plan: \/zones must be array$/],
    ['{"zones":[null]}', /^is not a seating plan: \/zones\/0 must be object$/],
    ['{"zones":[{"name":"x"}]}', /^is not a seating plan: \/zones\/0\/rows is missing$/],
    ['{"zones":[{"rows":[{"seats":[5]}]}]}', /\/zones\/0\/rows\/0\/seats\/0 must be object$/],
    ['{"zones":[{"rows":[{"seats":[{"seat_number":[1]}]}]}]}', /\/seats\/0\/seat_number must be a text or a number$/],
    ['{"zones":[]}', /^has no seats$/],
    ['{"zones":[{"rows":[]}]}', /^has no seats$/],
    ['{"zones":[{"rows":[{"seats":[]}]}]}', /^has no seats$/],
    [
      '{"zones":[{"rows":[{"seats":[{"seat_number":"A"},{"seat_number":""}]}]}]}',
      /^has no seat that can be used: seats without a number, left out: 1; seats whose number .*: 1$/,
    ],
  ])('%s', (text, message) => {
    const read = () => importSeatingPlan(parseSeatingPlan(text));
    expect(read).toThrow(message);
    expect(read).not.toThrow(/\n/);
  });

  it('an answer of pretix’ API has the plan in its layout', () => {
    const text = JSON.stringify({ id: 1, name: 'Main plan', layout: plan(zone('S', 0, [numbered('A', [1])])) });
    expect(importSeatingPlan(parseSeatingPlan(text))).toMatchObject({ plan: 'Hall', seats: 1 });
  });
});

describe('a hostile plan', () => {
  it('of 20 000 zones and categories that have one name: each gets the next number, without trying all before it', () => {
    const zones = Array.from({ length: 20_000 }, (_, n) =>
      zone('Z', 0, [row('1', 0, [seat(1, `A${'!'.repeat(n % 142)}${'?'.repeat(n / 142)}`, 0)])]),
    );
    const startedMs = performance.now();
    const { sections, items, faults: found } = imported({ name: 'Hall', zones });
    // Each name against all others would be 200 million tries for either.
    expect(performance.now() - startedMs).toBeLessThan(8000);
    expect(sections.map(({ section }) => section).slice(0, 3)).toEqual(['Z', 'Z (2)', 'Z (3)']);
    expect([sections.at(-1)!.section, new Set(sections.map(({ section }) => section)).size]).toEqual([
      'Z (20000)',
      20_000,
    ]);
    expect([items[1]!.item, items.at(-1)!.item]).toEqual(['a-2', `a-${items.length}`]);
    expect(found).toEqual([{ path: '/items', message: 'a sale has at most 200 items' }]);
  });

  it('with a number in front of it that a name already has', () => {
    const same = (name: string) => zone(name, 0, [row('1', 0, [seat(1, 'A', 0)])]);
    const { sections } = imported(plan(same('Z'), same('Z (2)'), same('Z'), same('Z'), same('Z (2)')));
    expect(sections.map(({ section }) => section)).toEqual(['Z', 'Z (2)', 'Z (3)', 'Z (4)', 'Z (2) (2)']);
  });

  it('with a million faults is left at the first', () => {
    let looks = 0;
    const bad = {
      get name() {
        looks++;
        return 1;
      },
    };
    const schema = { type: 'array', items: { type: 'object', properties: { name: { type: 'string' } } } };
    expect(firstFault(schema, Array(1000).fill(bad))).toEqual({ path: '/0/name', message: 'must be string' });
    expect(looks).toBeLessThan(10);
    expect(firstFault(schema, [])).toBeUndefined();
  });

  it('of 200 000 sections is reported: their names are no arguments of a function', () => {
    const result = imported(plan(zone('Z', 0, [row('1', 0, [seat(1, 'A', 0)])])));
    const [section] = result.sections;
    const report = reportOf('plan.json', { ...result, sections: Array(200_000).fill(section) });
    expect(report.split('\n').length).toBeGreaterThan(200_000);
  });
});
