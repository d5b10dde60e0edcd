import { GAP, SEAT_STATES, statesOf } from './seat-map.ts';

/**
 * Best available: the exact rule, written to be read. It looks at every window of every row. Gates find the same seats with
 * less work, and are compared with this file; nothing here or there is rounded.
 *
 * Rows stand in the order of the definition, as row texts (seat-map.ts). A place is that of a seat in its row, from 0. A row of n
 * seats has its centre at n / 2, and `k` seats from `start` on have theirs at start + k / 2: twice the distance between the two
 * is |2 · start + k - n|.
 */

/** Seats in one row. */
export interface RowSeats {
  /** The index of the row. */
  readonly row: number;
  /** Their places in the row, ascending. */
  readonly seats: number[];
}

/**
 * `k` neighbours: the best window of the first row that has a free run of at least `k`. Null: no row has one, though `k` seats
 * or more may be free.
 */
export function bestTogether(rows: readonly string[], k: number): RowSeats | null {
  for (const [row, text] of rows.entries()) {
    const start = bestWindow(text, k);
    if (start !== null) return { row, seats: Array.from({ length: k }, (_, index) => start + index) };
  }
  return null;
}

/**
 * Any `k` seats: all in the first row that has as many free; if none has, all free seats of the row with the most (the earliest
 * of them), and the rest in the same way among the other rows. Ascending by row. Null: fewer than `k` are free.
 */
export function bestApart(rows: readonly string[], k: number): RowSeats[] | null {
  const free = rows.map(freeCount);
  const chosen: RowSeats[] = [];
  for (let left = k; left > 0; ) {
    const most = free.reduce((highest, count) => Math.max(highest, count), 0);
    if (most === 0) return null;
    const row = free.findIndex((count) => count >= Math.min(left, most));
    const taken = Math.min(left, most);
    chosen.push({ row, seats: centralFree(rows[row]!, taken) });
    free[row] = 0;
    left -= taken;
  }
  return chosen.sort((a, b) => a.row - b.row);
}

/**
 * Where the best window of `k` free neighbours begins, or null: the row has no such run. Best is the one that leaves the fewest
 * orphans, then the one nearest to the centre, then the first.
 */
export function bestWindow(text: string, k: number): number | null {
  const n = statesOf(text).length;
  let best: readonly [orphans: number, distance: number, start: number] | null = null;
  for (const run of freeRuns(text)) {
    for (let start = run.start; start + k <= run.end; start++) {
      const candidate = [orphansLeft(run, start, k), Math.abs(2 * start + k - n), start] as const;
      if (best === null || isBetter(candidate, best)) best = candidate;
    }
  }
  return best === null ? null : best[2];
}

/** The `k` free seats nearest to the centre, each measured as a window of one; of two equally near ones the first. Ascending. */
export function centralFree(text: string, k: number): number[] {
  const states = statesOf(text);
  const distance = (place: number): number => Math.abs(2 * place + 1 - states.length);
  return [...states]
    .flatMap((state, place) => (state === SEAT_STATES.free ? [place] : []))
    .sort((a, b) => distance(a) - distance(b) || a - b)
    .slice(0, k)
    .sort((a, b) => a - b);
}

interface Run {
  readonly start: number;
  /** The place behind its last seat. */
  readonly end: number;
}

/** Free neighbours, as long as they go: up to the row's end, a gap or a seat that is not free. */
function freeRuns(text: string): Run[] {
  const runs: Run[] = [];
  let start = 0;
  for (const part of text.split(GAP)) {
    for (const { 0: run, index } of part.matchAll(/f+/g)) {
      runs.push({ start: start + index, end: start + index + run.length });
    }
    start += part.length;
  }
  return runs;
}

/**
 * How many free runs of length 1 a window leaves that were not there before: a single seat beside it, which hardly anybody
 * buys. Where the window takes a whole run it leaves none.
 */
function orphansLeft(run: Run, start: number, k: number): number {
  const before = start - run.start;
  const after = run.end - (start + k);
  return (before === 1 ? 1 : 0) + (after === 1 ? 1 : 0);
}

function isBetter(one: readonly number[], other: readonly number[]): boolean {
  const at = one.findIndex((value, index) => value !== other[index]);
  return at >= 0 && one[at]! < other[at]!;
}

export function freeCount(text: string): number {
  return text.split(SEAT_STATES.free).length - 1;
}
