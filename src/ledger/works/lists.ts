import { invariant } from '../../base/errors.ts';
import { type LifeDialect, query, type Step, type Value } from './work.ts';

/**
 * Rows of one list at most, since SQLite reads it in one turn of the event loop: a page of 200, and one more that tells whether
 * there are others.
 */
export const LIST_MAX = 201;

/** The limit itself. A caller that asks for more would take a list that was cut for the end of it. */
export function bounded(limit: number, max = LIST_MAX): number {
  invariant(Number.isInteger(limit) && limit >= 1 && limit <= max, `a list has from 1 to ${max} rows, not ${limit}`);
  return limit;
}

type Group = readonly (readonly [column: string, value: Value])[];

/** A list along an index: its columns are those of the group and then the keys. Rows come with the largest key first. */
export interface Walk {
  /** The statement without its end. `given`: the values of its places. */
  readonly select: string;
  readonly given: readonly Value[];
  /** What all rows have: columns and their values. */
  readonly group: Group;
  readonly keys: readonly string[];
  /** The keys of the last row of the page before. */
  readonly before: readonly Value[] | null;
  readonly limit: number;
}

/** Reads a page by going to its place in the index: how that has to be said differs (`LifeDialect.walks`). */
export function walked(walk: Walk, { walks }: LifeDialect): Step {
  const { group, keys, before } = walk;
  const limit = bounded(walk.limit);
  if (walks === 'rows') return byRows(walk);
  const step = (of: Group, sorted: readonly string[], below: readonly Value[]): Parameters<typeof query> => {
    return part({ ...walk, group: of, keys: sorted, before: below }, walks === 'points');
  };
  if (before === null || keys.length === 1) return query(...step(group, keys, before ?? []));
  // Two ranges of the index: many rows may have the same first key, and would all be read to find the next below one second key.
  const [same, ...sameValues] = step([...group, [keys[0]!, before[0]!]], keys.slice(1), before.slice(1));
  const [less, ...lessValues] = step(group, keys, before.slice(0, 1));
  const names = keys.map((name) => name.slice(name.indexOf('.') + 1));
  return query(
    `SELECT * FROM (${same}) a UNION ALL SELECT * FROM (${less}) b ${sortedBy(names)}`,
    ...[...sameValues, ...lessValues, limit],
  );
}

function byRows({ select, given, group, keys, before, limit }: Walk): Step {
  const columns = group.map(([column]) => column);
  const values = group.map(([, value]) => value);
  const all = [...columns, ...keys];
  const row = (names: readonly string[]): string => `(${names.join(', ')})`;
  const places = (names: readonly string[]): string => row(names.map(() => '?'));
  const from = `${row(columns)} >= ${places(columns)}`;
  const to = before === null ? `${row(columns)} <= ${places(columns)}` : `${row(all)} < ${places(all)}`;
  return query(
    `${select} WHERE ${from} AND ${to} ${sortedBy(all)}`,
    ...[...given, ...values, ...values, ...(before ?? []), limit],
  );
}

/** `before`: of the first key only, or nothing. */
function part(walk: Walk, points: boolean): [sql: string, ...values: Value[]] {
  const { select, given, group, keys, limit } = walk;
  const before = walk.before ?? [];
  const where = [
    ...group.map(([column]) => (points ? `${column} = ?` : `${column} >= ? AND ${column} <= ?`)),
    ...before.map((_, at) => `${keys[at]} < ?`),
  ];
  const values = group.flatMap(([, value]) => (points ? [value] : [value, value]));
  const order = points ? keys : [...group.map(([column]) => column), ...keys];
  return [`${select} WHERE ${where.join(' AND ')} ${sortedBy(order)}`, ...given, ...values, ...before, limit];
}

function sortedBy(columns: readonly string[]): string {
  return `ORDER BY ${columns.map((name) => `${name} DESC`).join(', ')} LIMIT ?`;
}
