import Type, { type Static } from 'typebox';
import { TerminalError } from '../base/errors.ts';
import { firstFault } from '../contract/validate.ts';
import { BOUNDS, type Fault } from '../model/sale.ts';
import {
  rangesOf,
  rowName,
  SEAT_BOUNDS,
  type SeatRowDefinition,
  saleSeatFaults,
  seatMapFaults,
} from '../model/seat-map.ts';
import { isCode, nameFault, plainText } from '../model/text.ts';

/**
 * Reads a seating plan in the JSON format of pretix and makes the definition of a sale from it: an item for each category. Seats
 * that a definition cannot have are left out, and everything that is not taken over as it is becomes a note. Nothing is read or
 * printed here.
 */

const Point = Type.Object({ x: Type.Number(), y: Type.Number() });
const MaybeText = Type.Optional(Type.Unsafe<string | null>({ type: ['string', 'null'] }));

/** Seats are placed relative to their row, rows to their zone. Plans differ in what they leave out and what they add. */
const PlanSeat = Type.Object({
  seat_guid: MaybeText,
  seat_number: Type.Optional(Type.Unsafe<string | number | null>({ type: ['string', 'number', 'null'] })),
  category: MaybeText,
  position: Type.Optional(Point),
});
const PlanRow = Type.Object({
  row_number: Type.Optional(Type.Unsafe<string | number | null>({ type: ['string', 'number', 'null'] })),
  position: Type.Optional(Point),
  seats: Type.Array(PlanSeat),
});
const PlanZone = Type.Object({
  name: MaybeText,
  zone_id: MaybeText,
  position: Type.Optional(Point),
  rows: Type.Array(PlanRow),
  areas: Type.Optional(Type.Array(Type.Unknown())),
});
const Plan = Type.Object({
  name: MaybeText,
  categories: Type.Optional(Type.Array(Type.Object({ name: Type.String() }))),
  zones: Type.Array(PlanZone),
});

export type SeatingPlan = Static<typeof Plan>;

/** What the definition lacks is null, so that the server refuses it until somebody has filled it in. */
export interface SaleDraft {
  readonly name: string;
  readonly opensAt: null;
  readonly closesAt: null;
  readonly perBuyer: number;
  readonly payWithin: number;
  readonly items: readonly {
    readonly code: string;
    readonly name: string;
    readonly price: { readonly amount: null; readonly currency: null };
    readonly seats: readonly SeatRowDefinition[];
  }[];
}

/** Each is a noun phrase: its count stands before it. */
const NOTES = {
  no_number: 'seats without a number, left out',
  number_not_whole: `seats whose number is not a whole one from 0 to ${SEAT_BOUNDS.numberMax}, left out`,
  seat_twice: 'seats with the name of another seat, left out',
  guid_twice: 'seats with the seat_guid of another seat, kept: here a seat’s name identifies it',
  unknown_category: 'seats with a category that the plan does not list, in an item of their own',
  no_category: 'seats without a category, in an item of their own',
  empty_category: 'categories without seats, left out',
  renamed: 'names that were changed',
  rows_split: 'rows with seats of several categories: each item has its part of the row',
  rows_joined: 'rows drawn in several parts: each is one row here',
  no_neighbours: 'rows without consecutive numbers: orders with `together` find no neighbours there',
  drawn_apart: 'rows with consecutive numbers that are drawn apart: orders with `together` take them for neighbours',
  areas: 'areas, left out: a standing area is an item with stock',
} as const;

export type NoteCode = keyof typeof NOTES;

export interface Note {
  readonly code: NoteCode;
  readonly says: string;
  readonly count: number;
  /** The first few. */
  readonly examples: readonly string[];
}

export interface SeatsImport {
  /** The plan's name; empty: it has none. */
  readonly plan: string;
  readonly seats: number;
  readonly leftOut: number;
  readonly sections: readonly { readonly section: string; readonly rows: number; readonly seats: number }[];
  /** `category` is empty for the seats that have none. */
  readonly items: readonly {
    readonly item: string;
    readonly category: string;
    readonly rows: number;
    readonly seats: number;
  }[];
  readonly notes: readonly Note[];
  /** Why the server would refuse the definition, even when it is filled in. */
  readonly faults: readonly Fault[];
  readonly sale: SaleDraft;
}

/** Throws a TerminalError whose message completes `<file> …`. */
export function parseSeatingPlan(text: string): SeatingPlan {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new TerminalError('plan_unreadable', `is not JSON: ${plainText((error as Error).message, 200)}`);
  }
  // The answer of pretix' API has the plan in `layout`.
  const { layout } = (value ?? {}) as { layout?: unknown };
  const plan = layout ?? value;
  if (plan === null || typeof plan !== 'object' || !('zones' in plan)) {
    throw new TerminalError('plan_unreadable', 'is not a seating plan: it has no zones');
  }
  const fault = firstFault(Plan, plan);
  if (fault) throw new TerminalError('plan_unreadable', `is not a seating plan: ${fault.path} ${fault.message}`);
  return plan as SeatingPlan;
}

/** Throws a TerminalError like `parseSeatingPlan` if no seat is left. */
export function importSeatingPlan(plan: SeatingPlan): SeatsImport {
  const notes = new Notes();
  const { found, leftOut } = namedSeats(plan, notes);
  if (found.length === 0) {
    const why = notes.list().filter(({ code }) => LEAVES_OUT.includes(code));
    const words = why.map(({ says, count }) => `${says}: ${count}`).join('; ');
    throw new TerminalError(
      'plan_unreadable',
      leftOut === 0 ? 'has no seats' : `has no seat that can be used: ${words}`,
    );
  }
  const items = itemsOf(plan, found, notes);
  noteRows(found, items, notes);
  const sale: SaleDraft = {
    name: cleaned(plan.name, BOUNDS.nameLengthMax) || 'Seating plan',
    opensAt: null,
    closesAt: null,
    perBuyer: BOUNDS.perBuyerDefault,
    payWithin: BOUNDS.payWithinSecondsDefault,
    items: items.map(({ code, name, rows }) => ({
      code,
      name,
      price: { amount: null, currency: null },
      seats: rows.map(definitionOf),
    })),
  };
  return {
    plan: cleaned(plan.name, BOUNDS.nameLengthMax),
    seats: found.length,
    leftOut,
    sections: sectionsOf(found),
    items: items.map(({ code, category, rows }) => ({
      item: code,
      category: plainText(category, BOUNDS.nameLengthMax),
      rows: rows.length,
      seats: rows.reduce((sum, { length }) => sum + length, 0),
    })),
    notes: notes.list(),
    faults: draftFaults(sale),
    sale,
  };
}

const LEAVES_OUT: readonly NoteCode[] = ['no_number', 'number_not_whole', 'seat_twice'];

/** The first few are enough to go on with. */
const FAULTS_MAX = 20;

function draftFaults({ items }: SaleDraft): Fault[] {
  const { itemsMax } = BOUNDS;
  if (items.length > itemsMax) return [{ path: '/items', message: `a sale has at most ${itemsMax} items` }];
  const seated = items.map(({ seats }, index) => ({ path: `/items/${index}/seats`, seats }));
  const faults = seated.flatMap(({ seats, path }) => seatMapFaults(seats, path));
  return faults.length > 0 ? faults.slice(0, FAULTS_MAX) : saleSeatFaults(seated);
}

// Seats

interface NamedSeat {
  readonly section: string;
  readonly row: string;
  readonly number: number;
  readonly category: string;
  /** The row of the plan that it is in: several of them may have the same name. */
  readonly drawn: unknown;
  /** On the plan; null: it is not placed. */
  readonly at: Static<typeof Point> | null;
}

function namedSeats({ zones }: SeatingPlan, notes: Notes): { found: NamedSeat[]; leftOut: number } {
  const found: NamedSeat[] = [];
  const names = new Set<string>();
  const sections = new Names((name, number) => {
    const suffix = ` (${number})`;
    return `${cut(name, SEAT_BOUNDS.nameLengthMax - suffix.length)}${suffix}`;
  });
  const guids = new Set<string>();
  let all = 0;
  for (const [index, zone] of zones.entries()) {
    const given = notes.named(zone.name || zone.zone_id || '', `Zone ${index + 1}`);
    const seats = seatsIn(zone, given, notes);
    // Two zones of one name may share it, unless a seat would then stand for two.
    const collides = sections.has(given) && seats.some((seat) => names.has(nameOf(seat)));
    const section = collides ? sections.toldApart(given) : given;
    if (collides) notes.add('renamed', `zone ${quoted(given)} is ${quoted(section)}`);
    sections.add(section);
    for (const seat of seats.map((one) => ({ ...one, section }))) {
      if (names.has(nameOf(seat))) notes.add('seat_twice', nameOf(seat));
      else found.push(seat);
      names.add(nameOf(seat));
    }
    for (const { seat_guid: guid } of zone.rows.flatMap(({ seats }) => seats)) {
      if (!guid) continue;
      if (guids.has(guid)) notes.add('guid_twice', plainText(guid, 100));
      guids.add(guid);
    }
    for (const _ of zone.areas ?? []) notes.add('areas', given);
    all += zone.rows.reduce((sum, { seats }) => sum + seats.length, 0);
  }
  return { found, leftOut: all - found.length };
}

/** The seats of a zone that have a whole number. */
function seatsIn(zone: SeatingPlan['zones'][number], section: string, notes: Notes): NamedSeat[] {
  return zone.rows.flatMap((drawn, index) => {
    const row = notes.named(drawn.row_number ?? '', `Row ${index + 1}`);
    return drawn.seats.flatMap((seat): NamedSeat[] => {
      const number = numberOf(seat.seat_number, `${section}/${row}`, notes);
      const category = seat.category?.trim() ?? '';
      const at = placed(zone.position, drawn.position, seat.position);
      return number === null ? [] : [{ section, row, number, category, drawn, at }];
    });
  });
}

const WHOLE = /^[0-9]{1,6}$/;

function numberOf(given: string | number | null | undefined, row: string, notes: Notes): number | null {
  const text = String(given ?? '').trim();
  if (WHOLE.test(text)) {
    const number = Number(text);
    if (String(number) !== text) notes.add('renamed', `seat ${quoted(text)} of ${row} is ${number}`);
    return number;
  }
  if (text === '') notes.add('no_number', row);
  else notes.add('number_not_whole', `${quoted(text)} of ${row}`);
  return null;
}

/** Null unless the seat has a position. */
function placed(...positions: readonly (Static<typeof Point> | undefined)[]): Static<typeof Point> | null {
  if (positions.at(-1) === undefined) return null;
  const sum = (of: 'x' | 'y'): number => positions.reduce((all, position) => all + (position?.[of] ?? 0), 0);
  const at = { x: sum('x'), y: sum('y') };
  return Number.isFinite(at.x) && Number.isFinite(at.y) ? at : null;
}

function nameOf({ section, row, number }: Pick<NamedSeat, 'section' | 'row' | 'number'>): string {
  return `${section}/${row}/${number}`;
}

/** Names that are taken. A name that comes again and again gets the next number each time, without trying all before it. */
class Names {
  readonly #taken = new Set<string>();
  readonly #nextNumber = new Map<string, number>();
  readonly #numbered: (name: string, number: number) => string;

  constructor(numbered: (name: string, number: number) => string) {
    this.#numbered = numbered;
  }

  has(name: string): boolean {
    return this.#taken.has(name);
  }

  add(name: string): void {
    this.#taken.add(name);
  }

  /** The name with a number, so that it is not taken. */
  toldApart(name: string): string {
    let number = this.#nextNumber.get(name) ?? 2;
    while (this.#taken.has(this.#numbered(name, number))) number++;
    this.#nextNumber.set(name, number + 1);
    return this.#numbered(name, number);
  }
}

function sectionsOf(seats: readonly NamedSeat[]): SeatsImport['sections'] {
  const sections = Map.groupBy(seats, ({ section }) => section);
  return [...sections].map(([section, own]) => ({
    section,
    rows: new Set(own.map(({ row }) => row)).size,
    seats: own.length,
  }));
}

// Items and their rows

interface Item {
  readonly code: string;
  readonly name: string;
  readonly category: string;
  /** In the order of the plan; the seats of each ascending. */
  readonly rows: readonly (readonly NamedSeat[])[];
}

function itemsOf(plan: SeatingPlan, seats: readonly NamedSeat[], notes: Notes): Item[] {
  const listed = new Set((plan.categories ?? []).map(({ name }) => name.trim()));
  const byCategory = Map.groupBy(seats, ({ category }) => category);
  for (const category of listed) if (!byCategory.has(category)) notes.add('empty_category', quoted(category));
  for (const [category, own] of byCategory) {
    if (category !== '' && listed.has(category)) continue;
    const code = category === '' ? 'no_category' : 'unknown_category';
    for (const seat of own) notes.add(code, category === '' ? nameOf(seat) : quoted(category));
  }
  const categories = [...listed, ...byCategory.keys()].filter((category) => byCategory.has(category));
  const codes = new Names((code, number) => `${code}-${number}`);
  return [...new Set(categories)].map((category, index) => {
    const code = codeOf(category === '' ? 'no category' : category, `category-${index + 1}`, codes);
    const name = cleaned(category, BOUNDS.nameLengthMax) || 'No category';
    const rows = Map.groupBy(byCategory.get(category)!, rowName).values();
    return { code, name, category, rows: [...rows].map((row) => row.toSorted((a, b) => a.number - b.number)) };
  });
}

/** The code of an item, made from the words of its category: `1er balcon, côté` is `1er-balcon-cote`. */
function codeOf(words: string, fallback: string, taken: Names): string {
  const plain = words
    .normalize('NFKD')
    .replaceAll(/\p{M}/gu, '')
    .toLowerCase()
    .replaceAll(/[^a-z0-9._]+/g, '-')
    .slice(0, 58)
    .replaceAll(/^[-._]+|[-._]+$/g, '');
  const base = isCode(plain) ? plain : fallback;
  const code = taken.has(base) ? taken.toldApart(base) : base;
  taken.add(code);
  return code;
}

function definitionOf(seats: readonly NamedSeat[]): SeatRowDefinition {
  const { section, row, at } = seats[0]!;
  const numbers = seats.map(({ number }) => number);
  const [range, ...more] = rangesOf(numbers);
  return { section, row, ...(more.length === 0 ? range : { numbers }), ...(at && placeOf(at, seats.at(-1)!.at ?? at)) };
}

/** A row begins where its first seat is, and points at its last one. A bend is not kept. */
function placeOf(first: Static<typeof Point>, last: Static<typeof Point>): { x: number; y: number; angle: number } {
  const degrees = (Math.atan2(last.y - first.y, last.x - first.x) * 180) / Math.PI;
  return { x: rounded(first.x, 100), y: rounded(first.y, 100), angle: rounded(degrees, 10) };
}

/** Not -0, which JSON would print as 0 in any case. */
function rounded(value: number, parts: number): number {
  return Math.round(value * parts) / parts + 0;
}

function noteRows(seats: readonly NamedSeat[], items: readonly Item[], notes: Notes): void {
  for (const [name, own] of Map.groupBy(seats, rowName)) {
    if (new Set(own.map(({ category }) => category)).size > 1) notes.add('rows_split', name);
    if (new Set(own.map(({ drawn }) => drawn)).size > 1) notes.add('rows_joined', name);
  }
  for (const row of items.flatMap(({ rows }) => rows)) {
    const pairs = row.slice(1).flatMap((seat, index) => {
      const before = row[index]!;
      return seat.number === before.number + 1 ? [[before, seat] as const] : [];
    });
    if (row.length > 1 && pairs.length === 0) notes.add('no_neighbours', rowName(row[0]!));
    else if (isDrawnApart(row, pairs)) notes.add('drawn_apart', rowName(row[0]!));
  }
}

/** Neighbours further from each other than this many usual distances have something between them: an aisle, other seats. */
const APART = 1.75;

function isDrawnApart(row: readonly NamedSeat[], pairs: readonly (readonly [NamedSeat, NamedSeat])[]): boolean {
  // Each seat is compared with each: a row that is too long for a definition is not worth it.
  if (pairs.length === 0 || row.length > SEAT_BOUNDS.rowSeatsMax) return false;
  const nearest = row.map((seat) => {
    let least = Number.POSITIVE_INFINITY;
    for (const other of row) if (other !== seat) least = Math.min(least, apart(seat, other));
    return least;
  });
  const usual = nearest.sort((a, b) => a - b)[nearest.length >> 1]!;
  return pairs.some(([one, other]) => apart(one, other) > APART ** 2 * usual);
}

/** The square of the distance; 0 for seats that are not placed, of which nothing is known. */
function apart({ at: one }: NamedSeat, { at: other }: NamedSeat): number {
  return one === null || other === null ? 0 : (one.x - other.x) ** 2 + (one.y - other.y) ** 2;
}

// Names and notes

const EXAMPLES_MAX = 5;

class Notes {
  readonly #notes = new Map<NoteCode, { count: number; examples: Set<string> }>();

  add(code: NoteCode, example: string): void {
    const note = this.#notes.get(code) ?? { count: 0, examples: new Set() };
    note.count++;
    if (note.examples.size < EXAMPLES_MAX) note.examples.add(example);
    this.#notes.set(code, note);
  }

  /** A name as a section or a row may have it. */
  named(given: string | number, fallback: string): string {
    const name = cleaned(String(given), SEAT_BOUNDS.nameLengthMax).replaceAll('/', '-') || fallback;
    if (name !== String(given)) this.add('renamed', `${quoted(String(given))} is ${quoted(name)}`);
    return name;
  }

  list(): Note[] {
    return (Object.keys(NOTES) as NoteCode[]).flatMap((code) => {
      const note = this.#notes.get(code);
      return note === undefined ? [] : [{ code, says: NOTES[code], count: note.count, examples: [...note.examples] }];
    });
  }
}

/** A text that passes for a name, or nothing. */
function cleaned(text: string | null | undefined, lengthMax: number): string {
  const name = cut(plainText(text, 2 * lengthMax), lengthMax);
  return nameFault(name, lengthMax) === null ? name : '';
}

function cut(text: string, lengthMax: number): string {
  return [...text].slice(0, lengthMax).join('').trim();
}

function quoted(text: string): string {
  return JSON.stringify(plainText(text, 100));
}
