import { lockItems, pruneOrderKeys } from '../../works/orders.ts';
import type { Cell, Cells, InsertStep, LifeDialect, Result, Step } from '../../works/work.ts';
import type { StepStatements } from '../server/dialect.ts';
import type { Session } from '../server/session.ts';
import { inlined, literal, literalsAlike, textLiteral } from './literal.ts';

/** Far below max_allowed_packet, which some set to 1 MiB. */
const PACKET_CHARACTERS_MAX = 400_000;
/** Rows of one statement; more are split into several statements. */
const ROWS_MAX = 500;
const LEAF_MAX = 4;

export const LIFE_DIALECT: LifeDialect = {
  forUpdate: 'FOR UPDATE',
  // MariaDB has no FOR SHARE.
  forShare: 'LOCK IN SHARE MODE',
  byPrimaryKey: 'FORCE INDEX (PRIMARY)',
  live: { from: 'payments p FORCE INDEX (payments_order)', where: 'p.counts IN (0, 1)' },
  ended: { from: 'payments q FORCE INDEX (payments_newest)', where: 'q.counts IS NULL' },
  walks: 'ranges',
  gateTasks: true,
  believes: true,
  pruneCallKeys: 'DELETE FROM call_keys WHERE created_at < ? ORDER BY created_at LIMIT ?',
  pruneOrderKeys,
  awaitWriters: (itemIds) => [lockItems(itemIds, 'FORCE INDEX (PRIMARY)')],
  due: { from: 'orders o FORCE INDEX (orders_due)', where: 'o.due_at <= ?', order: 'o.due_at' },
};

/** A round as text, in one packet, as in orders.ts and for the same reason. */
export class MysqlSteps implements StepStatements {
  readonly stopsAtFailure = true;

  /** The server cannot check counts by itself, but it stops at a statement that fails: with no count to check, COMMIT goes along. */
  commits(steps: readonly Step[]): boolean {
    return steps.every(({ expected }) => expected === undefined);
  }

  async run(session: Session, steps: readonly Step[]): Promise<Result[]> {
    const results: Result[] = steps.map(() => ({ rows: [], affected: 0 }));
    let packet: { at: number; sql: string }[] = [];
    let length = 0;
    const send = async (): Promise<void> => {
      if (packet.length === 0) return;
      const sent = packet;
      packet = [];
      length = 0;
      const answers = await session.script(sent.map(({ sql }) => sql).join('; '));
      for (const [place, { at }] of sent.entries()) {
        const { rows, affected } = answers[place]!;
        const before = results[at]!;
        const all = before.rows.length === 0 ? rows : [...before.rows, ...rows];
        results[at] = { rows: all, affected: before.affected + affected };
      }
    };
    for (const [at, step] of steps.entries()) {
      for (const sql of textsOf(step)) {
        if (length + sql.length > PACKET_CHARACTERS_MAX) await send();
        packet.push({ at, sql });
        length += sql.length;
      }
    }
    await send();
    return results;
  }
}

function* textsOf(step: Step): Generator<string> {
  if (step.do === 'query') yield inlined(step.sql, step.values);
  if (step.do === 'commit') yield 'COMMIT';
  if (!('rows' in step)) return;
  for (let from = 0; from < step.rows.length; from += ROWS_MAX) {
    yield textOf(step.rows.length <= ROWS_MAX ? step : { ...step, rows: step.rows.slice(from, from + ROWS_MAX) });
  }
}

function textOf(step: Extract<Step, { rows: unknown }>): string {
  const { table, rows } = step;
  switch (step.do) {
    case 'insert': {
      const columns = step.columns.map(quoted).join(',');
      const values = rows.map((cells) => `(${cells.map(literal).join(',')})`).join(',');
      return `INSERT INTO ${table} (${columns}) VALUES ${values}${onDuplicate(step)}`;
    }
    case 'find': {
      const { match } = step;
      const columns = step.columns.map((name) => `t.${quoted(name)}`).join(',');
      const found = match.map((name, at) => `t.${quoted(name)} = v.m${at}`).join(' AND ');
      // Joined: a list of pairs behind IN would be analysed pair by pair, for every index, which takes longer than the read.
      return `SELECT ${columns} FROM ${tableOf(rows)} STRAIGHT_JOIN ${table} t FORCE INDEX (PRIMARY) ON ${found}`;
    }
    case 'update': {
      const { match, set, and } = step;
      const cells = [...match, ...set].map((_, at) => cellOf(match[0]!, rows, at));
      const sets = set.map((name, at) => `${quoted(name)} = ${cells[match.length + at]}`);
      const others = match.slice(1).map((name, at) => `t.${quoted(name)} = ${cells[at + 1]}`);
      const ids = rows.map(([id]) => literal(id)).join(',');
      const where = [`t.${quoted(match[0]!)} IN (${ids})`, ...others, ...(and ? [inlined(and.sql, and.values)] : [])];
      return `UPDATE ${table} t SET ${sets.join(', ')} WHERE ${where.join(' AND ')}`;
    }
    case 'delete': {
      const { match } = step;
      // MariaDB finds no index for a list of one: it would read the whole table and lock each row that it meets.
      if (rows.length === 1) {
        const equal = match.map((name, at) => `${quoted(name)} = ${literal(rows[0]![at]!)}`);
        return `DELETE FROM ${table} WHERE ${equal.join(' AND ')}`;
      }
      const places = rows.map((cells) => `(${cells.map(literal).join(',')})`).join(',');
      return `DELETE FROM ${table} WHERE (${match.map(quoted).join(',')}) IN (${places})`;
    }
  }
}

/** Rows as a table `v` with columns m0, m1, …; what the first row has decides on the types. */
function tableOf(rows: readonly Cells[]): string {
  const cell = (value: Cell): string => (typeof value === 'string' ? JSON.stringify(value) : String(value));
  const json = `[${rows.map((cells) => `[${cells.map(cell).join(',')}]`).join(',')}]`;
  const columns = rows[0]!.map((value, at) => {
    const type = typeof value === 'string' ? 'VARCHAR(512) CHARACTER SET utf8mb4' : 'BIGINT';
    return `m${at} ${type} PATH '$[${at}]'`;
  });
  return `JSON_TABLE(${textLiteral(json)}, '$[*]' COLUMNS (${columns.join(', ')})) v`;
}

function onDuplicate({ columns, leavePresent, overwrite }: InsertStep): string {
  const [first] = columns;
  if (leavePresent) return ` ON DUPLICATE KEY UPDATE ${quoted(first!)} = ${quoted(first!)}`;
  if (overwrite === undefined) return '';
  const sets = columns
    .filter((name) => !overwrite.includes(name))
    .map((name) => `${quoted(name)} = VALUES(${quoted(name)})`);
  return ` ON DUPLICATE KEY UPDATE ${sets.join(', ')}`;
}

/**
 * The value of a column for each row, by its id, or the one value that all rows share. MySQL and MariaDB both understand it,
 * and it is quicker than a join with a table of literals.
 */
function cellOf(id: string, rows: readonly Cells[], at: number): string {
  const first = rows[0]![at];
  if (rows.every((cells) => cells[at] === first)) return literal(first);
  const values = literalsAlike(rows.map((cells) => cells[at]!));
  const places = rows.map(([name], place) => ({ name: BigInt(name!), value: values[place]! }));
  return chosen(
    `t.${quoted(id)}`,
    places.sort((a, b) => (a.name < b.name ? -1 : 1)),
  );
}

/** Nested by halves: a flat CASE would be searched from its beginning for every row. */
function chosen(id: string, places: readonly { name: bigint; value: string }[]): string {
  if (places.length <= LEAF_MAX) {
    const [last, ...others] = places.toReversed();
    if (others.length === 0) return last!.value;
    return `CASE ${id} ${others.map(({ name, value }) => `WHEN ${name} THEN ${value}`).join(' ')} ELSE ${last!.value} END`;
  }
  const middle = places.length >> 1;
  return `IF(${id} < ${places[middle]!.name}, ${chosen(id, places.slice(0, middle))}, ${chosen(id, places.slice(middle))})`;
}

function quoted(name: string): string {
  return `"${name}"`;
}
