import type { Mutant } from './mutant.ts';

const RULE = 'src/model/best-seats.ts';
const MAP = 'src/model/seat-map.ts';
const PLAN = 'src/cli/seating-plan.ts';
const BEST = ['test/unit/best-seats.test.ts'];
const PROPERTY = ['test/property/seats.property.test.ts'];
const MAPS = ['test/unit/seat-map.test.ts'];
const PLANS = ['test/unit/seating-plan.test.ts'];

export const SEATS: readonly Mutant[] = [
  // The rule of the best available seats
  {
    name: 'best seats: an orphan behind the window does not count',
    file: RULE,
    find: '(before === 1 ? 1 : 0) + (after === 1 ? 1 : 0)',
    replace: 'before === 1 ? 1 : 0',
    tests: PROPERTY,
  },
  {
    name: 'best seats: the distance forgets how long the window is',
    file: RULE,
    find: 'Math.abs(2 * start + k - n)',
    replace: 'Math.abs(2 * start - n)',
    tests: PROPERTY,
  },
  {
    name: 'best seats: gaps count as seats of the row',
    file: RULE,
    find: 'const n = statesOf(text).length;',
    replace: 'const n = text.length;',
    tests: BEST,
  },
  {
    name: 'best seats: a window reaches across a gap',
    file: RULE,
    find: 'text.split(GAP)',
    replace: "[text.replaceAll(GAP, '')]",
    tests: PROPERTY,
  },
  {
    name: 'best seats: a run is never taken whole',
    file: RULE,
    find: 'start + k <= run.end',
    replace: 'start + k < run.end',
    tests: BEST,
  },
  {
    name: 'best seats: apart, the last of equal rows',
    file: RULE,
    find: 'free.findIndex((count)',
    replace: 'free.findLastIndex((count)',
    tests: PROPERTY,
  },
  {
    name: 'best seats: apart, the last of equally near seats',
    file: RULE,
    find: 'distance(a) - distance(b) || a - b',
    replace: 'distance(a) - distance(b) || b - a',
    tests: PROPERTY,
  },

  // Seat maps
  {
    name: 'seat map: two items may have the same seat',
    file: MAP,
    find: 'known.get(name) ?? new Set()',
    replace: 'new Set<number>()',
    tests: MAPS,
  },
  {
    name: 'seat map: a row of 501 seats',
    file: MAP,
    find: 'to - from < SEAT_BOUNDS.rowSeatsMax',
    replace: 'to - from <= SEAT_BOUNDS.rowSeatsMax',
    tests: MAPS,
  },
  {
    name: 'seat map: 100 000 seats are too many',
    file: MAP,
    find: 'seats > saleSeatsMax',
    replace: 'seats >= saleSeatsMax',
    tests: MAPS,
  },
  {
    name: 'seat map: a list is numbered as it was written',
    file: MAP,
    find: 'numbers.toSorted((a, b) => a - b)',
    replace: '[...numbers]',
    tests: MAPS,
  },
  {
    name: 'seat map: a stored row takes the section of the row before',
    file: MAP,
    find: 'section = own || section;',
    replace: 'section ||= own!;',
    tests: MAPS,
  },

  // A seating plan
  {
    name: 'seating plan: zones of one name lose the seats that they share',
    file: PLAN,
    find: 'const section = collides ? sections.toldApart(given) : given;',
    replace: 'const section = given;',
    tests: PLANS,
  },
  {
    name: 'seating plan: a seat is placed without its zone',
    file: PLAN,
    find: 'placed(zone.position, drawn.position, seat.position)',
    replace: 'placed(drawn.position, seat.position)',
    tests: PLANS,
  },
  {
    name: 'seating plan: an aisle goes unnoticed',
    file: PLAN,
    find: 'const APART = 1.75;',
    replace: 'const APART = 17.5;',
    tests: PLANS,
  },
];
