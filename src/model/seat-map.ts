import type { Fault } from './sale.ts';
import { nameFault } from './text.ts';

/**
 * The numbered seats of an item. A row is a section and a row name, with ascending numbers; two seats are neighbours if their
 * numbers are consecutive. A *seat number* (`seat`) is the place of a seat in its item, counted from 0: the rows in the order of
 * the definition, and the seats of a row in ascending order. Gate, messages and ledger carry seat numbers. Names
 * (`Stalls/A/12`) exist at the edge only. So a map never changes once its sale exists: a stored seat number would then mean
 * another seat.
 */
export interface SeatMap {
  readonly rows: readonly SeatRow[];
  /** How many seats it has. */
  readonly size: number;
}

export interface SeatRow {
  readonly section: string;
  readonly row: string;
  /** Ascending. */
  readonly numbers: readonly number[];
  /** The seat number of its first seat. */
  readonly first: number;
  readonly place?: RowPlace;
}

/**
 * Where a row is drawn on a plan: where its first seat is, and the direction from there in degrees, clockwise from the right (y
 * grows downwards). Nothing but a picture depends on it.
 */
export interface RowPlace {
  readonly x: number;
  readonly y: number;
  readonly angle: number;
}

/**
 * A row as a sale's definition has it: `from` … `to`, both inclusive, or `numbers`, in any order. A built row is a valid
 * definition, too.
 */
export interface SeatRowDefinition {
  readonly section: string;
  readonly row: string;
  readonly from?: number;
  readonly to?: number;
  readonly numbers?: readonly number[];
  readonly x?: number;
  readonly y?: number;
  /** Needs `x` and `y`; 0 without it. */
  readonly angle?: number;
}

export const SEAT_BOUNDS = {
  /** Of a section and of a row, in characters. */
  nameLengthMax: 64,
  numberMax: 999_999,
  rowSeatsMax: 500,
  saleRowsMax: 20_000,
  saleSeatsMax: 100_000,
} as const;

/** The longest seat name, in characters: section, row and number with two slashes. */
export const SEAT_NAME_LENGTH_MAX = 2 * SEAT_BOUNDS.nameLengthMax + String(SEAT_BOUNDS.numberMax).length + 2;

// What may be defined

/** A definition may have a fault in each of its rows; the first few are enough. */
const FAULTS_MAX = 20;

/** What is wrong with the seats of one item. `path`: where they are (a JSON pointer), such as `/items/0/seats`. */
export function seatMapFaults(definitions: readonly SeatRowDefinition[], path: string): Fault[] {
  if (definitions.length === 0) return [{ path, message: 'needs at least one row' }];
  const faults: Fault[] = [];
  const known = new Map<string, SeatRowDefinition>();
  for (const [index, definition] of definitions.entries()) {
    const at = `${path}/${index}`;
    const own = [...nameFaults(definition, at), ...numberFaults(definition, at), ...placeFaults(definition, at)];
    faults.push(...own);
    if (own.length === 0) {
      const name = rowName(definition);
      const earlier = known.get(name);
      if (earlier === undefined) known.set(name, definition);
      else faults.push({ path: at, message: rowTwice(name, earlier, definition) });
    }
    if (faults.length >= FAULTS_MAX) return faults.slice(0, FAULTS_MAX);
  }
  return faults;
}

/**
 * What is wrong between the seated items of a sale, none of which has a fault of its own. `path`: where the item's seats are.
 * Two items may share a row, but no seat.
 */
export function saleSeatFaults(
  items: readonly { readonly path: string; readonly seats: readonly SeatRowDefinition[] }[],
): Fault[] {
  const { saleRowsMax, saleSeatsMax } = SEAT_BOUNDS;
  let rows = 0;
  let seats = 0;
  for (const item of items) {
    rows += item.seats.length;
    for (const definition of item.seats) seats += rowSize(definition);
    if (rows > saleRowsMax) return [{ path: item.path, message: `a sale has at most ${saleRowsMax} rows` }];
    if (seats > saleSeatsMax) return [{ path: item.path, message: `a sale has at most ${saleSeatsMax} seats` }];
  }
  const faults: Fault[] = [];
  const known = new Map<string, Set<number>>();
  for (const item of items) {
    for (const [index, definition] of item.seats.entries()) {
      const name = rowName(definition);
      const numbers = numbersOf(definition);
      const taken = known.get(name) ?? new Set();
      const twice = numbers.find((number) => taken.has(number));
      if (twice !== undefined) {
        faults.push({ path: `${item.path}/${index}`, message: `another item has the seat ${name}/${twice} already` });
        if (faults.length >= FAULTS_MAX) return faults;
      }
      for (const number of numbers) taken.add(number);
      known.set(name, taken);
    }
  }
  return faults;
}

function nameFaults(definition: SeatRowDefinition, at: string): Fault[] {
  return (['section', 'row'] as const).flatMap((field) => {
    const text = definition[field];
    const slash = text.includes('/') ? 'must not contain "/": it separates the parts of a seat’s name' : null;
    const message = nameFault(text, SEAT_BOUNDS.nameLengthMax) ?? slash;
    return message === null ? [] : [{ path: `${at}/${field}`, message }];
  });
}

function numberFaults(definition: SeatRowDefinition, at: string): Fault[] {
  const { from, to, numbers } = definition;
  if (numbers !== undefined && from === undefined && to === undefined) return listFaults(definition, numbers, at);
  if (numbers !== undefined || from === undefined || to === undefined) {
    return [{ path: at, message: 'must have either "from" and "to", or "numbers"' }];
  }
  const faults = [
    ...(isSeatNumber(from) ? [] : [{ path: `${at}/from`, message: NOT_A_NUMBER }]),
    ...(isSeatNumber(to) ? [] : [{ path: `${at}/to`, message: NOT_A_NUMBER }]),
  ];
  if (faults.length > 0) return faults;
  if (from > to) return [{ path: `${at}/to`, message: 'must not be less than "from"' }];
  return to - from < SEAT_BOUNDS.rowSeatsMax ? [] : [{ path: `${at}/to`, message: ROW_TOO_LONG }];
}

function listFaults(definition: SeatRowDefinition, numbers: readonly number[], at: string): Fault[] {
  const path = `${at}/numbers`;
  if (numbers.length === 0) return [{ path, message: 'needs at least one' }];
  if (numbers.length > SEAT_BOUNDS.rowSeatsMax) return [{ path, message: ROW_TOO_LONG }];
  const seen = new Set<number>();
  for (const [index, number] of numbers.entries()) {
    if (!isSeatNumber(number)) return [{ path: `${path}/${index}`, message: NOT_A_NUMBER }];
    if (seen.has(number)) {
      return [{ path: `${path}/${index}`, message: `the seat ${rowName(definition)}/${number} is given twice` }];
    }
    seen.add(number);
  }
  return [];
}

const NOT_A_NUMBER = `must be a whole number from 0 to ${SEAT_BOUNDS.numberMax}`;
const ROW_TOO_LONG = `a row has at most ${SEAT_BOUNDS.rowSeatsMax} seats`;

function isSeatNumber(number: number): boolean {
  return Number.isInteger(number) && number >= 0 && number <= SEAT_BOUNDS.numberMax;
}

function placeFaults({ x, y, angle }: SeatRowDefinition, at: string): Fault[] {
  const faults = Object.entries({ x, y, angle }).flatMap(([field, value]) =>
    value === undefined || Number.isFinite(value)
      ? []
      : [{ path: `${at}/${field}`, message: 'must be a finite number' }],
  );
  if ((x === undefined) !== (y === undefined)) {
    return [...faults, { path: at, message: 'must have both "x" and "y", or neither' }];
  }
  if (angle !== undefined && x === undefined) {
    return [...faults, { path: `${at}/angle`, message: 'needs "x" and "y"' }];
  }
  return faults;
}

function rowTwice(name: string, earlier: SeatRowDefinition, definition: SeatRowDefinition): string {
  const before = new Set(numbersOf(earlier));
  const twice = numbersOf(definition).find((number) => before.has(number));
  return twice === undefined
    ? `the row ${name} has an entry already: give all its seats in one list of numbers`
    : `the seat ${name}/${twice} is given twice`;
}

function rowSize({ from, to, numbers }: SeatRowDefinition): number {
  return numbers === undefined ? to! - from! + 1 : numbers.length;
}

function numbersOf({ from, to, numbers }: SeatRowDefinition): number[] {
  if (numbers !== undefined) return numbers.toSorted((a, b) => a - b);
  return Array.from({ length: to! - from! + 1 }, (_, index) => from! + index);
}

/** The definition has no faults. */
export function buildSeatMap(definitions: readonly SeatRowDefinition[]): SeatMap {
  const rows: SeatRow[] = [];
  let size = 0;
  for (const definition of definitions) {
    const { section, row, x, y, angle = 0 } = definition;
    const numbers = numbersOf(definition);
    // -0 is the same place as 0, and reads so when it comes back from the ledger.
    const place = x === undefined || y === undefined ? {} : { place: { x: x + 0, y: y + 0, angle: angle + 0 } };
    rows.push({ section, row, numbers, first: size, ...place });
    size += numbers.length;
  }
  return { rows, size };
}

// Names

/** Rows of two items may have the same; in a map each has its own. */
export function rowName({ section, row }: Pick<SeatRow, 'section' | 'row'>): string {
  return `${section}/${row}`;
}

/** The index of the row that a seat is in. Its place in that row is `seat - rows[index].first`. */
export function rowIndexOf({ rows, size }: SeatMap, seat: number): number {
  if (!Number.isInteger(seat) || seat < 0 || seat >= size)
    throw new RangeError(`a map of ${size} seats has no ${seat}`);
  let low = 0;
  let high = rows.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (rows[middle]!.first <= seat) low = middle;
    else high = middle - 1;
  }
  return low;
}

export function seatName(map: SeatMap, seat: number): string {
  const row = map.rows[rowIndexOf(map, seat)]!;
  return `${rowName(row)}/${row.numbers[seat - row.first]}`;
}

/** Rows by name, for maps that were asked for a seat. It lives as long as its map. */
const indexes = new WeakMap<SeatMap, ReadonlyMap<string, SeatRow>>();

const NAME = /^([^/]+\/[^/]+)\/(0|[1-9][0-9]{0,5})$/;

/** The seat number of a name; null: the map has no such seat. Names are compared bytewise: `Stalls/A/012` is none. */
export function seatNumbered(map: SeatMap, name: string): number | null {
  let index = indexes.get(map);
  if (index === undefined) {
    index = new Map(map.rows.map((row) => [rowName(row), row]));
    indexes.set(map, index);
  }
  const [, row, number] = NAME.exec(name) ?? [];
  const found = row === undefined ? undefined : index.get(row);
  if (found === undefined) return null;
  const place = placeIn(found.numbers, Number(number));
  return place === null ? null : found.first + place;
}

/** Where a number stands in an ascending list of at most 500. */
function placeIn(numbers: readonly number[], number: number): number | null {
  let low = 0;
  let high = numbers.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const found = numbers[middle]!;
    if (found === number) return middle;
    if (found < number) low = middle + 1;
    else high = middle - 1;
  }
  return null;
}

// In the ledger

/**
 * A map as one text. The first line is the number of this format. Each further line is a row: section (empty: that of the row
 * before), row name, numbers as ranges (`1-9,12,14-20`), and x, y and angle if it has a place. Names contain no control
 * characters, so that tabs and line feeds separate.
 */
const FORMAT = '1';

export function encodeSeatMap({ rows }: SeatMap): string {
  let section = '';
  const lines = rows.map(({ section: own, row, numbers, place }) => {
    const parts = [own === section ? '' : own, row, encodeNumbers(numbers)];
    section = own;
    return [...parts, ...(place ? [place.x, place.y, place.angle] : [])].join('\t');
  });
  return [FORMAT, ...lines].join('\n');
}

/** Throws if `encodeSeatMap` of this version has not written this. */
export function decodeSeatMap(text: string): SeatMap {
  const [format, ...lines] = text.split('\n');
  if (format !== FORMAT) {
    throw new Error(`a seat map has the format ${JSON.stringify(format?.slice(0, 20))}; this version reads ${FORMAT}`);
  }
  let section = '';
  const definitions = lines.map((line): SeatRowDefinition => {
    const [own, row, numbers, ...place] = line.split('\t');
    section = own || section;
    if (!section || !row || !numbers || (place.length !== 0 && place.length !== 3)) {
      throw new Error(`a seat map has a row ${JSON.stringify(line.slice(0, 200))}`);
    }
    const [x, y, angle] = place.map(Number);
    const where = x === undefined ? {} : { x, y: y!, angle: angle! };
    return { section, row, numbers: decodeNumbers(numbers), ...where };
  });
  return buildSeatMap(definitions);
}

function encodeNumbers(numbers: readonly number[]): string {
  return rangesOf(numbers)
    .map(({ from, to }) => (from === to ? `${from}` : `${from}-${to}`))
    .join(',');
}

function decodeNumbers(text: string): number[] {
  return text.split(',').flatMap((range) => {
    const [from = Number.NaN, to = from] = range.split('-').map(Number);
    if (!isSeatNumber(from) || !isSeatNumber(to) || from > to) throw new Error(`a seat map has the seats ${range}`);
    return numbersOf({ section: '', row: '', from, to });
  });
}

/** Ascending numbers as runs of consecutive ones. */
export function rangesOf(numbers: readonly number[]): { from: number; to: number }[] {
  const ranges: { from: number; to: number }[] = [];
  for (const number of numbers) {
    const last = ranges.at(-1);
    if (last?.to === number - 1) last.to = number;
    else ranges.push({ from: number, to: number });
  }
  return ranges;
}

// States

export const SEAT_STATES = {
  free: 'f',
  /** Held by an order that the ledger has not decided yet. */
  queued: 'q',
  reserved: 'r',
  sold: 's',
  blocked: 'b',
  /** Held by the house: a move or a block is under way. */
  house: 'h',
} as const;

export type SeatState = (typeof SEAT_STATES)[keyof typeof SEAT_STATES];

/** Stands between two seats of a row text that are not neighbours. */
export const GAP = '|';

/**
 * A row text: the states of a row, a character a seat, with `|` where the numbers are not consecutive. So a run of free
 * neighbours is `f+` in it.
 */
export function rowText(numbers: readonly number[], states: string): string {
  let start = 0;
  const runs = rangesOf(numbers).map(({ from, to }) => {
    const end = start + to - from + 1;
    const run = states.slice(start, end);
    start = end;
    return run;
  });
  return runs.join(GAP);
}

/** A row text in which every seat is free. */
export function freeRowText({ numbers }: Pick<SeatRow, 'numbers'>): string {
  return rowText(numbers, SEAT_STATES.free.repeat(numbers.length));
}

/** The states of a row text, a character a seat. */
export function statesOf(text: string): string {
  return text.replaceAll(GAP, '');
}

/** States as the public sees them: whatever an order or the house holds is reserved. */
export function shownStates(states: string): string {
  return states.replaceAll(/[qh]/g, SEAT_STATES.reserved);
}
