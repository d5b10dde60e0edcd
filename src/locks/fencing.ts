/**
 * Checks a lock's token at what the lock protects. A holder that was stopped, or cut off, for longer than its lease may
 * come back and write: no lock can stop that, only the resource can, by refusing a token smaller than the largest it has
 * seen. The same token passes again, as a holder writes more than once. Tokens travel as text: a driver that makes numbers
 * of them would round the large ones.
 *
 *   Redis   `fencedScript(lua)`, `runFenced`, `fencedSet`: a script runs only behind the check, in one atomic step.
 *   SQL     `fenceSql` gives the pieces of `UPDATE … SET …, fence = ? WHERE … AND fence <= ?`, and `assertFenced` looks at
 *           how many rows that changed. Works in SQLite, MySQL (`?`) and PostgreSQL (`$n`).
 *
 * A fence belongs to a resource and to one lock: tokens of locks with different names must not meet at it.
 */
import { createHash } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { messageOf, TerminalError } from '../base/errors.ts';
import { loadScripts } from '../base/redis/scripts.ts';
import { checkedSpan, refuseUnknown } from './client/checks.ts';
import { StaleFenceError } from './client/errors.ts';

/** A grant's token, or its decimal digits. */
export type FenceToken = bigint | string;

/** What we need of a client: ioredis' Redis and Cluster have it. */
export interface RedisCaller {
  call(command: string, ...args: (string | number | Buffer)[]): Promise<unknown>;
}

export interface Fence {
  /** The key that remembers the largest token. In a cluster it must share a slot with the script's keys: `{item}:fence`. */
  readonly fence: string;
  readonly token: FenceToken;
  /**
   * Forget the fence so many milliseconds after its last use: much longer than any holder could be late. Without it, it
   * stays until somebody deletes it (with the resource).
   */
  readonly keep?: number;
}

type Part = string | number | Buffer;

export interface FencedScript {
  /** Runs it with `keys` and `args` as its own KEYS and ARGV. StaleFenceError: a later holder was here; nothing was written. */
  run(redis: RedisCaller, fence: Fence, keys?: readonly (string | Buffer)[], args?: readonly Part[]): Promise<unknown>;
}

let lua: { guard: string; set: FencedScript } | null = null;
function ours(): { guard: string; set: FencedScript } {
  if (lua) return lua;
  const scripts = loadScripts(fileURLToPath(new URL('./redis/lua/', import.meta.url)));
  const guard = scripts.get('fence-guard')!.lua;
  lua = { guard, set: fenced(guard, scripts.get('fence-set')!.lua) };
  return lua;
}

/** A script of yours behind the check. Make it once and run it often: Redis knows it by its digest. */
export function fencedScript(script: string): FencedScript {
  if (typeof script !== 'string' || script.startsWith('#!')) {
    throw new TerminalError('invalid_argument', 'a fenced script must be Lua text, without a #! line');
  }
  return fenced(ours().guard, script);
}

function fenced(guard: string, script: string): FencedScript {
  const text = `${guard}\n${script}`;
  const sha = createHash('sha1').update(text).digest('hex');
  return {
    run: async (redis, { fence, token, keep }, keys = [], args = []) => {
      const keepMs = keep === undefined ? '' : String(Math.ceil(checkedSpan(keep, 'keep', 1)));
      const rest = [keys.length + 1, ...keys, fence, ...args, digits(token), keepMs === 'Infinity' ? '' : keepMs];
      try {
        return await evaluated(redis, sha, text, rest);
      } catch (error) {
        const stale = /^STALEFENCE (\d+)/.exec(messageOf(error));
        if (!stale) throw error;
        throw new StaleFenceError(`${fence} has seen token ${stale[1]}, which is later than ${token}`);
      }
    },
  };
}

async function evaluated(redis: RedisCaller, sha: string, text: string, rest: readonly Part[]): Promise<unknown> {
  try {
    return await redis.call('EVALSHA', sha, ...rest);
  } catch (error) {
    if (!messageOf(error).startsWith('NOSCRIPT')) throw error;
    return await redis.call('EVAL', text, ...rest);
  }
}

/** `fencedScript` for one use. */
export async function runFenced(
  redis: RedisCaller,
  fence: Fence,
  script: string,
  keys: readonly (string | Buffer)[] = [],
  args: readonly Part[] = [],
): Promise<unknown> {
  return await fencedScript(script).run(redis, fence, keys, args);
}

/** SET, unless a later holder has been here. */
export async function fencedSet(redis: RedisCaller, fence: Fence, key: string, value: Part): Promise<void> {
  await ours().set.run(redis, fence, [key], [value]);
}

export interface FenceSqlOptions {
  /** The column that remembers the largest token: `BIGINT NOT NULL DEFAULT 0` (NULL would refuse everybody). */
  column?: string;
  /** `?`, to be bound twice; or the place of the one parameter in PostgreSQL, `$3`. */
  parameter?: '?' | `$${number}`;
}

export interface FenceSql {
  /** For the SET clause: `fence = ?`. */
  readonly set: string;
  /** For the WHERE clause: `fence <= ?`. */
  readonly where: string;
  /** What to bind, as text: at both places for `?`, once for `$n`. */
  readonly value: string;
}

const FENCE_SQL_OPTIONS: ReadonlySet<string> = new Set(['column', 'parameter'] satisfies (keyof FenceSqlOptions)[]);

/**
 *     const fence = fenceSql(grant.token);
 *     const { changes } = db
 *       .prepare(`UPDATE stock SET free = ?, ${fence.set} WHERE item = ? AND ${fence.where}`)
 *       .run(free, fence.value, item, fence.value);
 *     assertFenced(changes, `stock of ${item}`);
 */
export function fenceSql(token: FenceToken, options: FenceSqlOptions = {}): FenceSql {
  refuseUnknown(options, FENCE_SQL_OPTIONS, 'fenceSql');
  const { column = 'fence', parameter = '?' } = options;
  // Both become part of a statement.
  if (!/^\w+(\.\w+)?$/.test(column)) throw new TerminalError('invalid_argument', `not a plain column: "${column}"`);
  if (!/^(\?|\$[1-9]\d*)$/.test(parameter)) {
    throw new TerminalError('invalid_argument', `a parameter is ? or $1, $2, …, not "${parameter}"`);
  }
  // PostgreSQL and SQLite allow no table name in SET.
  const bare = column.slice(column.indexOf('.') + 1);
  return { set: `${bare} = ${parameter}`, where: `${column} <= ${parameter}`, value: digits(token) };
}

/**
 * Throws StaleFenceError when a fenced UPDATE changed no row: a later holder was here (or there is no such row). With MySQL
 * count the rows that were found, as mysql2 does by default: a row that is set to what it was counts as not changed.
 */
export function assertFenced(changedRows: number | bigint, what: string): void {
  // `undefined`, or the driver's whole result, would pass for a row that was changed.
  if (typeof changedRows !== 'bigint' && !Number.isSafeInteger(changedRows)) {
    throw new TerminalError(
      'invalid_argument',
      'assertFenced needs the number of changed rows: rowCount of pg, affectedRows of mysql2, changes of SQLite',
    );
  }
  if (changedRows === 0 || changedRows === 0n) {
    throw new StaleFenceError(`${what} has seen a later holder, or is not there: nothing was written`);
  }
}

function digits(token: FenceToken): string {
  const text = String(token);
  // A number may have been rounded already, and leading zeros would make a token look longer than it is.
  if (typeof token === 'number' || !/^(0|[1-9]\d*)$/.test(text)) {
    throw new TerminalError('invalid_argument', 'a fencing token is a bigint or its decimal digits');
  }
  return text;
}
