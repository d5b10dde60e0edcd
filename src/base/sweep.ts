import { backOffMs } from './back-off.ts';
import { pause, type Timers } from './timers.ts';

/**
 * The loops of work that no request asks for. They are all here because one of them once stopped a whole shop: it went on as
 * long as it had *read* something, could change nothing, and never let go of the event loop.
 *
 *   - a round says what it changed; the next one follows at once only after a change;
 *   - between two rounds, timers and I/O have their turn, also where a ledger answers without leaving this turn;
 *   - a round that fails is followed by a pause, which grows and is bounded.
 */
export interface Round {
  /** How many things are not as they were before: rows written, units moved. Never how many were looked at. */
  readonly changed: number;
  /** There may be more to do at once. */
  readonly more: boolean;
}

/** Of a round that does all that there is. */
export const NOTHING_MORE: Round = { changed: 0, more: false };

export interface SweepOptions {
  /** Between two rounds, unless the first left more to do. */
  readonly pauseMs: number;
  /** After failures in a row the pause doubles up to this. */
  readonly pauseMsMax: number;
  /** Ends it; a round that is under way is waited for. */
  readonly signal: AbortSignal;
  /** Gives up after so many failures in a row, and throws the last: another process may succeed. */
  readonly failuresMax?: number;
  /** The first failure in a row: an outage is logged once. */
  readonly failed: (error: unknown) => void;
  /** Replaces the pause after a round that succeeded, for work that can be woken. It must wait for a timer or for I/O. */
  readonly rest?: () => Promise<void>;
}

/** Runs rounds until the signal. */
export async function sweep(timers: Timers, round: () => Promise<Round>, options: SweepOptions): Promise<void> {
  const { pauseMs, pauseMsMax, signal, failuresMax, failed } = options;
  const rest = options.rest ?? (() => pause(timers, pauseMs, signal));
  let failures = 0;
  while (!signal.aborted) {
    let again = false;
    try {
      const { changed, more } = await round();
      failures = 0;
      again = more && changed > 0;
    } catch (error) {
      failures++;
      if (failures === failuresMax) throw error;
      if (failures === 1) failed(error);
    }
    if (again) await turn(timers);
    else if (failures > 0) await pause(timers, backOffMs(failures, pauseMs, pauseMsMax), signal);
    else await rest();
  }
}

/** Repeats a step that says how much it changed until that is nothing, or the signal. */
export async function drain(timers: Timers, step: () => Promise<number>, signal?: AbortSignal): Promise<void> {
  while (!signal?.aborted && (await step()) > 0) await turn(timers);
}

/**
 * One pass over rows in pages, each behind the last row of the page before it: rows that stay as they are hold up none
 * behind them, and the pass ends. The reader must give each row a place that does not depend on others, and read behind it.
 */
export async function* pages<T>(
  timers: Timers,
  sizeMax: number,
  read: (sizeMax: number, after: T | undefined) => Promise<T[]>,
  signal?: AbortSignal,
): AsyncGenerator<T[]> {
  let after: T | undefined;
  while (!signal?.aborted) {
    const page = await read(sizeMax, after);
    if (page.length > 0) yield page;
    if (page.length < sizeMax) return;
    after = page.at(-1);
    await turn(timers);
  }
}

/**
 * Does the work for each of them, some at a time, until the signal. One that fails or is slow holds up none of the others; the
 * first failure is thrown at the end.
 */
export async function each<T>(
  all: readonly T[],
  atOnce: number,
  work: (one: T) => Promise<unknown>,
  signal?: AbortSignal,
): Promise<void> {
  const failures: unknown[] = [];
  const left = all.values();
  const next = async (): Promise<void> => {
    for (const one of left) {
      if (signal?.aborted) return;
      await work(one).catch((error: unknown) => failures.push(error));
    }
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, all.length) }, next));
  if (failures.length > 0) throw failures[0];
}

/** Timers and I/O have their turn. */
export function turn(timers: Timers): Promise<void> {
  return new Promise((resolve) => timers.nextTurn(resolve));
}
