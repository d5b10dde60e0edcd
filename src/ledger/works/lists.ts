import { invariant } from '../../base/errors.ts';

/** Rows of one list at most: SQLite reads it in one turn of the event loop. A page of 200, and one more that tells whether there are others. */
export const LIST_MAX = 201;

/** The limit itself. A caller that asks for more would take a list that was cut for the end of it. */
export function bounded(limit: number, max = LIST_MAX): number {
  invariant(Number.isInteger(limit) && limit >= 1 && limit <= max, `a list has from 1 to ${max} rows, not ${limit}`);
  return limit;
}
