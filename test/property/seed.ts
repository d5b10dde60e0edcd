import type { Parameters } from 'fast-check';
import { LONG } from '../support/long.ts';

/**
 * The parameters of a property: its seed is printed before it runs, so that a run which never ends can be replayed
 * too: `FC_SEED=<seed> npx vitest run <file>`. On failure fast-check also prints the path to the shrunk example.
 */
export function seeded<T>(property: string, runs: { short: number; long: number }): Parameters<T> {
  const given = process.env.FC_SEED;
  const seed = given === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(given);
  console.log(`${property}: seed=${seed}`);
  return { seed, numRuns: LONG ? runs.long : runs.short };
}

export const LONG_TIMEOUT_MS = LONG ? 600_000 : 30_000;
