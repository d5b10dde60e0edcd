import type { SeatingPlan } from '../../src/cli/seating-plan.ts';

/**
 * A made-up theatre of 2 081 seats in the format of pretix, with what real plans have: zones and rows placed relative to each
 * other, curved rows, an aisle, a row in two parts, a row of two categories, odd and even sides, seats without a number, areas.
 */

type Zone = SeatingPlan['zones'][number];
type Row = Zone['rows'][number];
type Seat = Row['seats'][number];

const SPACING = 25;

let guids = 0;

export function seat(number: number | string, category: string, x: number, y = 0): Seat {
  guids++;
  return { seat_guid: `seat-${guids}`, seat_number: String(number), category, position: { x, y } };
}

export function row(name: string, y: number, seats: Seat[], x = 0): Row {
  return { row_number: name, position: { x, y }, seats };
}

export function zone(name: string, y: number, rows: Row[], x = 0): Zone {
  return { name, position: { x, y }, rows, areas: [] };
}

function upTo(count: number): number[] {
  return Array.from({ length: count }, (_, index) => index + 1);
}

function letter(index: number): string {
  return index < 26 ? String.fromCharCode(65 + index) : letter(Math.floor(index / 26) - 1) + letter(index % 26);
}

/** Rows A to AD of 40 seats; the first five are dearer in the middle, and an aisle runs between 20 and 21. */
function stalls(): Zone {
  const rows = upTo(30).map((n) =>
    row(
      letter(n - 1),
      n * 30,
      upTo(40).map((number) => {
        const category = n <= 5 && number > 10 && number <= 30 ? 'Premium' : 'Parkett';
        return seat(number, category, number * SPACING + (number > 20 ? 60 : 0));
      }),
    ),
  );
  // Room for wheelchairs: four numbers are not there.
  rows[29]!.seats = rows[29]!.seats.filter(({ seat_number }) => ![18, 19, 22, 23].includes(Number(seat_number)));
  return { ...zone('Parkett', 100, rows, 50), areas: [{ shape: 'rectangle', text: { text: 'Bühne' } }] };
}

/** Ten rows on arcs round the stage, numbered from the right; each further row is longer. */
function circle(): Zone {
  const rows = upTo(10).map((n) => {
    const count = 40 + 2 * n;
    const radius = 900 + 35 * n;
    const seats = upTo(count).map((number) => {
      const radians = ((number - (count + 1) / 2) * SPACING) / radius;
      return seat(number, '1. Rang', -radius * Math.sin(radians), radius * Math.cos(radians));
    });
    return row(String(n), 0, seats);
  });
  return zone('1. Rang', 400, rows, 600);
}

/** Odd numbers to the left, even ones to the right. */
function gallery(): Zone {
  const rows = upTo(6).map((n) =>
    row(
      String(n),
      n * 30,
      upTo(40).map((number) => seat(number, 'Galerie', (number % 2 === 0 ? number : -number) * (SPACING / 2))),
    ),
  );
  return zone('Galerie', 1500, rows, 600);
}

/** Two zones of one name, with the same rows and numbers. */
function boxes(side: number): Zone {
  const rows = upTo(10).map((n) =>
    row(
      `Loge ${n}`,
      n * 80,
      upTo(4).map((number) => seat(number, 'Loge/Box', number * SPACING)),
    ),
  );
  return zone('Logen', 200, rows, side * 700);
}

export function theatre(): SeatingPlan {
  const parts = zone('Balkon / Seite', 1200, [
    // One row, drawn left and right of the projection room.
    row(
      '1',
      0,
      upTo(11).map((number) => seat(number, '1. Rang', number * SPACING)),
    ),
    row(
      '1',
      0,
      upTo(11).map((number) => seat(number + 11, '1. Rang', number * SPACING)),
      500,
    ),
    // Only odd numbers.
    row(
      '2',
      30,
      upTo(22).map((number) => seat(2 * number - 1, '1. Rang', number * SPACING)),
    ),
  ]);
  const odd = zone('', 2000, [
    row('', 0, [
      seat('', 'Galerie', 0),
      seat('12a', 'Galerie', 25),
      seat('1.5', 'Galerie', 50),
      seat(' 007 ', 'Galerie', 75),
      seat('8', 'Stehplatz', 100),
      seat('9', '', 125),
      seat('9', 'Galerie', 150),
      { ...seat('10', 'Galerie', 175), seat_guid: 'seat-1' },
    ]),
    { seats: [{ seat_number: null, category: 'Galerie' }, { seat_number: 3 }, { seat_number: '1000000' }] },
  ]);
  return {
    name: 'Schauspielhaus, großer Saal',
    categories: ['Premium', 'Parkett', '1. Rang', 'Galerie', 'Loge/Box', 'Presse'].map((name) => ({ name })),
    zones: [stalls(), circle(), gallery(), boxes(-1), boxes(1), parts, odd],
  };
}

/** One block of so many rows, each with so many seats. */
export function stadium(rows: number, seats: number): SeatingPlan {
  const blocks = upTo(rows).map((n) =>
    row(
      String(n),
      n * 30,
      upTo(seats).map((number) => seat(number, 'A', number * SPACING)),
    ),
  );
  return { name: 'Stadium', categories: [{ name: 'A' }], zones: [zone('Block', 0, blocks)] };
}
