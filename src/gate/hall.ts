import { invariant } from '../base/errors.ts';
import { rowIndexOf, SEAT_STATES, type SeatMap, type SeatState } from '../model/seat-map.ts';

/**
 * The seats of one item, as a gate keeps them. A seat is free if nobody has it and it is not blocked. Both can be true at once: a
 * gate hears of blocks, moves and releases in any order, and while it is built a page may show an order on a seat that the next page
 * shows another order on. So a seat that is taken twice is free when both have left it, and a seat that is blocked and taken is
 * blocked when it is left.
 *
 * Which row an order gets is found by two numbers per row, its longest free run and its free seats; only rows that change are
 * looked at seat by seat. The rule itself is that of model/best-seats.ts.
 */
export class Hall {
  readonly map: SeatMap;
  readonly #states: Uint8Array;
  /** 1: the seat before it is no neighbour. */
  readonly #begins: Uint8Array;
  /** By row. */
  readonly #longest: Uint16Array;
  readonly #free: Uint16Array;
  /** Seats that several have, and how many beside the first. */
  readonly #further = new Map<number, number>();
  /** Seats that were changed since the last `changes`, and what was shown there before. */
  readonly #touched = new Map<number, number>();

  constructor(map: SeatMap) {
    const { rows, size } = map;
    this.map = map;
    this.#states = new Uint8Array(size).fill(FREE);
    this.#begins = new Uint8Array(size);
    this.#longest = new Uint16Array(rows.length);
    this.#free = new Uint16Array(rows.length);
    for (const [row, { numbers, first }] of rows.entries()) {
      for (let at = 0; at < numbers.length; at++) {
        if (at === 0 || numbers[at]! !== numbers[at - 1]! + 1) this.#begins[first + at] = 1;
      }
      this.#measure(row);
    }
  }

  has(seat: number): boolean {
    return seat >= 0 && seat < this.map.size;
  }

  isFree(seat: number): boolean {
    return this.#states[seat] === FREE;
  }

  /** Blocked, and nobody has it. */
  isBlocked(seat: number): boolean {
    return this.#states[seat] === BLOCKED;
  }

  isSold(seat: number): boolean {
    return this.#states[seat] === SOLD || this.#states[seat] === SOLD_BLOCKED;
  }

  /** Somebody has these seats from now on. */
  take(seats: readonly number[], as: 'reserved' | 'sold' | 'house'): void {
    for (const seat of seats) {
      const state = this.#states[seat]!;
      if (state === FREE) this.#set(seat, TAKEN[as]);
      else if (state === BLOCKED) this.#set(seat, TAKEN_BLOCKED[as]);
      else this.#further.set(seat, (this.#further.get(seat) ?? 0) + 1);
    }
  }

  /** Somebody who had these seats leaves them. */
  leave(seats: readonly number[]): void {
    for (const seat of seats) {
      const others = this.#further.get(seat);
      if (others === undefined) this.#set(seat, this.#isMarked(seat) ? BLOCKED : FREE);
      else if (others === 1) this.#further.delete(seat);
      else this.#further.set(seat, others - 1);
    }
  }

  /** An order that has these seats is paid. */
  sell(seats: readonly number[]): void {
    for (const seat of seats) {
      const state = this.#states[seat]!;
      if (state === RESERVED) this.#set(seat, SOLD);
      else if (state === RESERVED_BLOCKED) this.#set(seat, SOLD_BLOCKED);
    }
  }

  /** These are all that are blocked now. Returns by how many there are more than before. */
  block(seats: readonly number[]): number {
    const now = new Set(seats);
    let more = 0;
    for (let seat = 0; seat < this.map.size; seat++) {
      const marked = this.#isMarked(seat);
      if (marked === now.has(seat)) continue;
      this.#set(seat, (marked ? UNBLOCK : BLOCK).get(this.#states[seat]!)!);
      more += marked ? -1 : 1;
    }
    return more;
  }

  /** What is shown as changed since the last call, by state; also brings the rows up to date. */
  changes(): { state: SeatState; seats: number[] }[] {
    if (this.#touched.size === 0) return [];
    const changed = new Map<number, number[]>();
    const rows = new Set<number>();
    for (const [seat, before] of this.#touched) {
      const now = shown(this.#states[seat]!);
      rows.add(rowIndexOf(this.map, seat));
      if (now === before) continue;
      const seats = changed.get(now);
      if (seats) seats.push(seat);
      else changed.set(now, [seat]);
    }
    this.#touched.clear();
    for (const row of rows) this.#measure(row);
    return SHOWN.flatMap((code) => {
      const seats = changed.get(code)?.sort((a, b) => a - b);
      return seats ? [{ state: String.fromCharCode(code) as SeatState, seats }] : [];
    });
  }

  /** A character a seat, as `changes` names them. */
  states(): string {
    return Buffer.from(this.#states.map(shown)).toString('latin1');
  }

  /** The best `k` free seats, ascending; null: there are none such. */
  best(k: number, together: boolean): number[] | null {
    return together ? this.#bestTogether(k) : this.#bestApart(k);
  }

  #bestTogether(k: number): number[] | null {
    const row = this.#longest.findIndex((length) => length >= k);
    return row < 0 ? null : this.#window(row, k);
  }

  #bestApart(k: number): number[] | null {
    const chosen: number[] = [];
    const rows = new Set<number>();
    for (let left = k; left > 0; ) {
      let row = -1;
      for (let at = 0; at < this.#free.length; at++) {
        const free = rows.has(at) ? 0 : this.#free[at]!;
        if (free > (row < 0 ? 0 : this.#free[row]!)) row = at;
        if (free >= left) break;
      }
      if (row < 0) return null;
      const taken = Math.min(left, this.#free[row]!);
      for (const seat of this.#central(row, taken)) chosen.push(seat);
      rows.add(row);
      left -= taken;
    }
    return chosen.sort((a, b) => a - b);
  }

  /**
   * The best window of `k` in a row. A run that is not exactly one seat longer than `k` has windows that leave no orphan: at its
   * ends, and all that leave two seats or more on both sides. Of those the nearest to the centre is found at once.
   */
  #window(row: number, k: number): number[] {
    const { first, numbers } = this.map.rows[row]!;
    const n = numbers.length;
    const centre = (n - k) >> 1;
    let best = -1;
    let least = 0;
    const consider = (start: number, orphans: number): void => {
      // An orphan weighs more than any distance, which is at most n.
      const cost = orphans * (2 * n + 1) + Math.abs(2 * start + k - n);
      if (best >= 0 && (cost > least || (cost === least && start > best))) return;
      best = start;
      least = cost;
    };
    this.#runs(row, (start, end) => {
      const last = end - k;
      if (last < start) return;
      const orphans = last - start === 1 ? 1 : 0;
      consider(start, orphans);
      consider(last, orphans);
      if (last - start >= 4) consider(Math.min(Math.max(centre, start + 2), last - 2), 0);
    });
    invariant(best >= 0, `row ${row} has no run of ${k} free seats`);
    return Array.from({ length: k }, (_, at) => first + best + at);
  }

  /** Calls with each run of free neighbours of a row: its first place, and the place behind its last. */
  #runs(row: number, each: (start: number, end: number) => void): void {
    const { first, numbers } = this.map.rows[row]!;
    let start = -1;
    for (let at = 0; at < numbers.length; at++) {
      const free = this.#states[first + at] === FREE;
      if (start >= 0 && (!free || this.#begins[first + at] === 1)) {
        each(start, at);
        start = -1;
      }
      if (free && start < 0) start = at;
    }
    if (start >= 0) each(start, numbers.length);
  }

  /** The `k` free seats of a row that are nearest to its centre, from there to both ends. */
  #central(row: number, k: number): number[] {
    const { first, numbers } = this.map.rows[row]!;
    const n = numbers.length;
    const seats: number[] = [];
    let left = (n - 1) >> 1;
    let right = left + 1;
    while (seats.length < k) {
      // Of two that are equally near, the first.
      const at = right >= n || (left >= 0 && n - 1 - left <= right) ? left-- : right++;
      invariant(at >= 0, `row ${row} has no ${k} free seats`);
      if (this.#states[first + at] === FREE) seats.push(first + at);
    }
    return seats;
  }

  #set(seat: number, state: number): void {
    if (!this.#touched.has(seat)) this.#touched.set(seat, shown(this.#states[seat]!));
    this.#states[seat] = state;
  }

  #isMarked(seat: number): boolean {
    return UNBLOCK.has(this.#states[seat]!);
  }

  #measure(row: number): void {
    let longest = 0;
    let free = 0;
    this.#runs(row, (start, end) => {
      free += end - start;
      longest = Math.max(longest, end - start);
    });
    this.#longest[row] = longest;
    this.#free[row] = free;
  }

  // For a copy elsewhere

  /** A letter a seat: a capital where the seat before it is no neighbour. */
  letters(): Buffer {
    return Buffer.from(this.#states.map((state, seat) => (this.#begins[seat] === 1 ? state - CAPITAL : state)));
  }

  /** Of each row. */
  get longest(): Readonly<Uint16Array> {
    return this.#longest;
  }

  get free(): Readonly<Uint16Array> {
    return this.#free;
  }

  /** Seats that several have, and how many beside the first. */
  get further(): ReadonlyMap<number, number> {
    return this.#further;
  }
}

const code = (letter: string): number => letter.charCodeAt(0);
const CAPITAL = code('a') - code('A');

const FREE = code(SEAT_STATES.free);
const RESERVED = code(SEAT_STATES.reserved);
const SOLD = code(SEAT_STATES.sold);
const HOUSE = code(SEAT_STATES.house);
const BLOCKED = code(SEAT_STATES.blocked);
/** Somebody has it, and it is blocked as soon as it is left. */
const RESERVED_BLOCKED = code('x');
const SOLD_BLOCKED = code('y');
const HOUSE_BLOCKED = code('z');

const TAKEN = { reserved: RESERVED, sold: SOLD, house: HOUSE };
const TAKEN_BLOCKED = { reserved: RESERVED_BLOCKED, sold: SOLD_BLOCKED, house: HOUSE_BLOCKED };
const BLOCK = new Map([
  [FREE, BLOCKED],
  [RESERVED, RESERVED_BLOCKED],
  [SOLD, SOLD_BLOCKED],
  [HOUSE, HOUSE_BLOCKED],
]);
const UNBLOCK = new Map([...BLOCK].map(([plain, blocked]) => [blocked, plain]));
/** The order in which the changes of one call are told. */
const SHOWN = [FREE, RESERVED, SOLD, BLOCKED, HOUSE];

function shown(state: number): number {
  if (state === RESERVED_BLOCKED) return RESERVED;
  if (state === SOLD_BLOCKED) return SOLD;
  return state === HOUSE_BLOCKED ? BLOCKED : state;
}

/** The letters of a copy, as `states` has them. */
export function shownLetters(letters: string): string {
  return Buffer.from(Buffer.from(letters.toLowerCase(), 'latin1').map(shown)).toString('latin1');
}
