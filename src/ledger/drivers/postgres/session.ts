import type { Duplex } from 'node:stream';
import { Client, type ClientConfig, Pool, type PoolClient, type QueryResult } from 'pg';
import { type DatabaseUrl, parseDatabaseUrl, tlsOf } from '../../../base/database-url.ts';
import { unavailable } from '../../../base/errors.ts';
import type { Timers } from '../../../base/timers.ts';
import type { Result, Row, Value } from '../../works/work.ts';
import { notConnected, refused } from '../server/errors.ts';
import {
  CONNECT_MS_MAX,
  type Connections,
  exchange,
  type LastingSession,
  type PooledSession,
  SESSION_LIMITS,
  type Session,
} from '../server/session.ts';
import { driverError, isRefused } from './errors.ts';

/**
 * Every statement finds its few rows by an index, and is planned once for each connection. By default the database would plan
 * it again, or scan a table that was empty when last analysed and that a sale has filled since.
 */
const BY_INDEX = [
  'plan_cache_mode=force_generic_plan',
  'enable_seqscan=off',
  'enable_hashjoin=off',
  'enable_mergejoin=off',
  'jit=off',
]
  .map((setting) => `SET ${setting}`)
  .join('; ');

function connectionOptions(url: DatabaseUrl): ClientConfig {
  const tls = tlsOf(url);
  const ssl = tls && {
    rejectUnauthorized: tls.rejectUnauthorized,
    ...(tls.ca && { ca: tls.ca }),
    ...(!tls.named && { checkServerIdentity: () => undefined }),
  };
  return {
    connectionString: url.bare,
    // If the address does not say, PGSSLMODE may.
    ...(url.sslmode !== null && { ssl }),
    connectionTimeoutMillis: CONNECT_MS_MAX,
    application_name: 'doorbuster',
    client_encoding: 'UTF8',
    keepAlive: true,
    idle_in_transaction_session_timeout: SESSION_LIMITS.idleTransactionMs,
    lock_timeout: SESSION_LIMITS.lockWaitMs,
    statement_timeout: SESSION_LIMITS.statementMs,
    // Statements of one transaction go out together; if one fails the database refuses those behind it.
    pipeline: true,
  };
}

const numbered = new Map<string, string>();

/** `?` as $1, $2 …, and a list as an array. */
export function withNumbers(sql: string): string {
  let text = numbered.get(sql);
  if (text === undefined) {
    let count = 0;
    text = sql.replace(/IN \(\?\)|\?/g, (place) => (place === '?' ? `$${++count}` : `= ANY ($${++count})`));
    // Bounded: every statement is written out in the source.
    numbered.set(sql, text);
  }
  return text;
}

/** A prepared statement: the database parses it once for each connection, and soon reuses its plan. */
export interface Prepared {
  name: string;
  text: string;
}

const prepared = new Map<string, Prepared>();

export function preparedOf(sql: string): Prepared {
  let statement = prepared.get(sql);
  if (statement === undefined) {
    statement = { name: `s${prepared.size + 1}`, text: withNumbers(sql) };
    // Bounded: statements are written out in the source, or differ by the columns of the table that they write.
    prepared.set(sql, statement);
  }
  return statement;
}

export class PostgresSession implements Session {
  readonly #client: Client | PoolClient;
  readonly #timers: Timers | null;

  constructor(client: Client | PoolClient, timers: Timers | null) {
    this.#client = client;
    this.#timers = timers;
  }

  async query(sql: string, values: readonly Value[] = []): Promise<Result> {
    if (values.length > 0) return this.prepared(preparedOf(sql), values as unknown[]);
    return resultOf(await this.#run<QueryResult>({ text: sql }));
  }

  async script(sql: string): Promise<Result[]> {
    const answer = await this.#run<QueryResult | QueryResult[]>({ text: sql });
    return Array.isArray(answer) ? answer.map(resultOf) : [resultOf(answer)];
  }

  async prepared(statement: Prepared, values: unknown[]): Promise<Result> {
    return resultOf(await this.#run<QueryResult>({ ...statement, values }));
  }

  /** The database also answers the COMMIT of a failed transaction, with ROLLBACK. */
  async commit(): Promise<Result> {
    const answer = await this.#run<QueryResult>({ text: 'COMMIT' });
    if (answer.command !== 'COMMIT') throw unavailable(`the database has not committed (${answer.command})`);
    return resultOf(answer);
  }

  /** Sends what `send` sends in one write. Otherwise each would be a system call and wake the database. */
  together<T>(send: () => T): T {
    const { stream } = this.#connection;
    stream.cork();
    try {
      return send();
    } finally {
      stream.uncork();
    }
  }

  #run<T>(config: { name?: string; text: string; values?: unknown[] }): Promise<T> {
    return exchange<T>(
      this.#timers,
      () => this.#giveUp(),
      (done) => {
        this.#client.query(config as { text: string }, (error: unknown, answer: unknown) => done(error, answer as T));
      },
      driverError,
    );
  }

  #giveUp(): void {
    // The socket itself: end() would wait for the answer that does not come.
    this.#connection.stream.destroy();
  }

  get #connection(): { stream: Duplex } {
    return (this.#client as unknown as { connection: { stream: Duplex } }).connection;
  }
}

function resultOf({ rows, rowCount }: QueryResult): Result {
  return { rows: rows as Row[], affected: rowCount ?? 0 };
}

class PostgresPooledSession extends PostgresSession implements PooledSession {
  readonly id: number | null;
  readonly #client: PoolClient;
  #given = false;

  constructor(client: PoolClient, timers: Timers) {
    super(client, timers);
    this.#client = client;
    this.id = (client as unknown as { processID?: number | null }).processID ?? null;
  }

  release(): void {
    if (this.#given) return;
    this.#given = true;
    this.#client.release();
  }

  destroy(): void {
    if (this.#given) return;
    this.#given = true;
    this.#client.release(true);
  }
}

class PostgresLastingSession extends PostgresSession implements LastingSession {
  readonly #client: Client;
  #ended = false;

  constructor(client: Client, timers: Timers | null, lost: () => void) {
    super(client, timers);
    this.#client = client;
    const over = (): void => {
      if (this.#ended) return;
      this.#ended = true;
      client.end().catch(() => {});
      lost();
    };
    client.on('error', over);
    client.on('end', over);
  }

  rest(): void {
    (this.#client as unknown as { unref(): void }).unref();
  }

  destroy(): void {
    this.#ended = true;
    this.#client.end().catch(() => {});
  }
}

export class PostgresConnections implements Connections {
  readonly #url: DatabaseUrl;
  readonly #timers: Timers;
  readonly #pool: Pool;

  static async open(address: string, timers: Timers, poolMax: number): Promise<PostgresConnections> {
    const url = parseDatabaseUrl(address);
    const connections = new PostgresConnections(url, timers, poolMax);
    try {
      (await connections.#pool.connect()).release();
      return connections;
    } catch (error) {
      await connections.end();
      throw isRefused(error) ? refused(error, url.place) : notConnected(error, url.place);
    }
  }

  private constructor(url: DatabaseUrl, timers: Timers, poolMax: number) {
    this.#url = url;
    this.#timers = timers;
    this.#pool = new Pool({
      ...connectionOptions(url),
      max: poolMax,
      allowExitOnIdle: true,
      idleTimeoutMillis: 60_000,
    });
    // Idle connections that end leave the pool; nothing else is to be done.
    this.#pool.on('error', () => {});
    this.#pool.on('connect', (client) => {
      // The pool does not listen while a connection is in use, and an error without a listener ends the process.
      client.on('error', () => {});
      // Sent before anything else on this connection. Not as a connection option: some proxies refuse those.
      client.query(BY_INDEX, () => {});
    });
  }

  async take(): Promise<PooledSession> {
    try {
      return new PostgresPooledSession(await this.#pool.connect(), this.#timers);
    } catch (error) {
      throw notConnected(error, this.#url.place);
    }
  }

  async connect(lost: () => void): Promise<LastingSession> {
    return new PostgresLastingSession(await connect(this.#url), this.#timers, lost);
  }

  async connectPatiently(): Promise<LastingSession> {
    const session = new PostgresLastingSession(await connect(this.#url), null, () => {});
    await session.script(
      'SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0',
    );
    return session;
  }

  async end(): Promise<void> {
    await this.#pool.end();
  }
}

async function connect(url: DatabaseUrl): Promise<Client> {
  const client = new Client(connectionOptions(url));
  client.on('error', () => {});
  try {
    await client.connect();
    return client;
  } catch (error) {
    client.end().catch(() => {});
    throw isRefused(error) ? refused(error, url.place) : notConnected(error, url.place);
  }
}
