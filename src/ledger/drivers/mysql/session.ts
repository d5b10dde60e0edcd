import {
  type Connection,
  createConnection,
  createPool,
  type Pool,
  type PoolConnection,
  type PoolOptions,
} from 'mysql2';
import { type DatabaseUrl, parseDatabaseUrl, tlsOf } from '../../../base/database-url.ts';
import type { Timers } from '../../../base/timers.ts';
import type { Result, Row, Value } from '../../works/work.ts';
import type { Isolation } from '../server/dialect.ts';
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
import { inlined } from './literal.ts';

function connectionOptions(url: DatabaseUrl): PoolOptions {
  const tls = tlsOf(url);
  return {
    uri: url.bare,
    ...(tls && {
      ssl: { rejectUnauthorized: tls.rejectUnauthorized, verifyIdentity: tls.named, ...(tls.ca && { ca: tls.ca }) },
    }),
    connectTimeout: CONNECT_MS_MAX,
    charset: 'utf8mb4',
    supportBigNumbers: true,
    bigNumberStrings: true,
    multipleStatements: true,
    // Values are in the text already (literal.ts); the driver would search it for placeholders.
    queryFormat: (sql: string) => sql,
    // FOUND_ROWS would count a row that an INSERT left as it was, and a repeated order would pass for a new one.
    flags: ['-FOUND_ROWS', '-LOCAL_FILES'],
    // We store text in VARBINARY columns; mysql2 would return a Buffer.
    typeCast: (field, next) => (TEXTS.has(field.type) ? field.string('utf8') : next()),
  };
}

const TEXTS = new Set(['VAR_STRING', 'STRING', 'VARCHAR', 'TINY_BLOB', 'BLOB', 'MEDIUM_BLOB', 'LONG_BLOB']);

const IDLE_TRANSACTION = 'idle_transaction_timeout';

/** Variables that only MySQL, only MariaDB or only some versions have: set where they exist. */
const LIMITS: Record<string, number> = {
  innodb_lock_wait_timeout: SESSION_LIMITS.lockWaitMs / 1000,
  /** MariaDB: ends a transaction that does nothing. */
  [IDLE_TRANSACTION]: SESSION_LIMITS.idleTransactionMs / 1000,
  /** MariaDB: any statement, in seconds. MySQL: reads only, in milliseconds. */
  max_statement_time: SESSION_LIMITS.statementMs / 1000,
  max_execution_time: SESSION_LIMITS.statementMs,
};

/**
 * How long a connection may be idle. MySQL has no such limit for transactions: there this one frees the row that a hanging
 * writer has locked, and idle connections of the pool come and go.
 */
const WAIT_SECONDS = 600;
const WAIT_SECONDS_MYSQL = 30;

interface ResultHeader {
  affectedRows: number;
}

type QueryResult = ResultHeader | Row[] | (ResultHeader | Row[])[];

class MysqlSession implements Session {
  readonly #connection: Connection;
  readonly #timers: Timers | null;

  constructor(connection: Connection, timers: Timers | null) {
    this.#connection = connection;
    this.#timers = timers;
  }

  async query(sql: string, values: readonly Value[] = []): Promise<Result> {
    return resultOf((await this.#run(inlined(sql, values))) as ResultHeader | Row[]);
  }

  async script(sql: string): Promise<Result[]> {
    const answer = await this.#run(sql);
    const several =
      Array.isArray(answer) && answer.length > 0 && answer.every((one) => Array.isArray(one) || isHeader(one));
    return several ? (answer as (ResultHeader | Row[])[]).map(resultOf) : [resultOf(answer as ResultHeader | Row[])];
  }

  #run(sql: string): Promise<QueryResult> {
    return exchange<QueryResult>(
      this.#timers,
      () => this.#connection.destroy(),
      (done) => {
        this.#connection.query(sql, (error, answer) => done(error, answer as unknown as QueryResult));
      },
      driverError,
    );
  }
}

function isHeader(answer: unknown): answer is ResultHeader {
  return (answer as { constructor?: { name?: string } } | null)?.constructor?.name === 'ResultSetHeader';
}

function resultOf(answer: ResultHeader | Row[]): Result {
  return Array.isArray(answer) ? { rows: answer, affected: 0 } : { rows: [], affected: answer.affectedRows };
}

class MysqlPooledSession extends MysqlSession implements PooledSession {
  readonly id: number | null;
  readonly #connection: PoolConnection;
  #given = false;

  constructor(connection: PoolConnection, timers: Timers) {
    super(connection, timers);
    this.#connection = connection;
    this.id = connection.threadId ?? null;
  }

  release(): void {
    if (this.#given) return;
    this.#given = true;
    this.#connection.release();
  }

  destroy(): void {
    if (this.#given) return;
    this.#given = true;
    this.#connection.destroy();
  }
}

class MysqlLastingSession extends MysqlSession implements LastingSession {
  readonly #connection: Connection;
  #ended = false;

  constructor(connection: Connection, timers: Timers | null, lost: () => void) {
    super(connection, timers);
    this.#connection = connection;
    const over = (): void => {
      if (this.#ended) return;
      this.#ended = true;
      connection.destroy();
      lost();
    };
    connection.on('error', over);
    connection.on('end', over);
    socketOf(connection).on('close', over);
  }

  rest(): void {
    socketOf(this.#connection).unref();
  }

  destroy(): void {
    this.#ended = true;
    this.#connection.destroy();
  }
}

/** The only way to mysql2's socket, without which idle connections keep the process alive. */
function socketOf(connection: Connection): import('node:net').Socket {
  return (connection as unknown as { stream: import('node:net').Socket }).stream;
}

export class MysqlConnections implements Connections {
  readonly #url: DatabaseUrl;
  readonly #timers: Timers;
  readonly #settings: string;
  readonly #limits: string;
  readonly #pool: Pool;
  readonly #ready = new WeakSet<PoolConnection>();

  /** Asks the server which variables it has, and decides what every session sets first. */
  static async open(address: string, timers: Timers, isolation: Isolation, poolMax: number): Promise<MysqlConnections> {
    const url = parseDatabaseUrl(address);
    const connection = await connect(url);
    try {
      const names = Object.keys(LIMITS).map((name) => `'${name}'`);
      const { rows } = await new MysqlSession(connection, timers).query(
        `SHOW VARIABLES WHERE Variable_name IN (${names.join(', ')})`,
      );
      const knows = (variable: string): boolean => rows.some((row) => row.Variable_name === variable);
      const limits = rows.map((row) => `${row.Variable_name} = ${LIMITS[row.Variable_name as string]}`);
      const level = isolation === 'repeatable read' ? 'REPEATABLE READ' : 'READ COMMITTED';
      const settings = [
        // Strict: a name that does not fit is an error and is not truncated. No mode that changes what a literal means.
        `SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,ANSI_QUOTES'`,
        // A statement outside a transaction commits, whatever the server's default is.
        'autocommit = 1',
        // UTC: in a local time zone one hour comes twice when daylight saving ends.
        `time_zone = '+00:00'`,
        `wait_timeout = ${knows(IDLE_TRANSACTION) ? WAIT_SECONDS : WAIT_SECONDS_MYSQL}`,
      ].join(', ');
      const isolated = `SET SESSION TRANSACTION ISOLATION LEVEL ${level}`;
      const limited = limits.map((limit) => `; SET SESSION ${limit}`).join('');
      return new MysqlConnections(url, timers, `${settings}; ${isolated}`, limited, poolMax);
    } finally {
      connection.destroy();
    }
  }

  private constructor(url: DatabaseUrl, timers: Timers, settings: string, limits: string, poolMax: number) {
    this.#url = url;
    this.#timers = timers;
    this.#settings = settings;
    this.#limits = limits;
    this.#pool = createPool({ ...connectionOptions(url), connectionLimit: poolMax });
    this.#pool.on('connection', (connection) => {
      // The pool listens only to the first error of a connection; a second one would end the process.
      connection.on('error', () => {});
    });
    this.#pool.on('release', (connection) => socketOf(connection).unref());
    this.#pool.on('acquire', (connection) => socketOf(connection).ref());
  }

  async take(): Promise<PooledSession> {
    const connection = await new Promise<PoolConnection>((resolve, reject) => {
      this.#pool.getConnection((error, taken) =>
        error ? reject(notConnected(error, this.#url.place)) : resolve(taken),
      );
    });
    // A connection that goes straight from one user to the next is not announced.
    socketOf(connection).ref();
    const session = new MysqlPooledSession(connection, this.#timers);
    if (!this.#ready.has(connection)) {
      try {
        await session.script(this.#settings + this.#limits);
      } catch (error) {
        session.destroy();
        throw error;
      }
      this.#ready.add(connection);
    }
    return session;
  }

  async connect(lost: () => void): Promise<LastingSession> {
    const session = await this.#connect(this.#timers, lost);
    await session.script(this.#settings + this.#limits);
    return session;
  }

  async connectPatiently(): Promise<LastingSession> {
    const session = await this.#connect(null, () => {});
    await session.script(this.#settings);
    return session;
  }

  async #connect(timers: Timers | null, lost: () => void): Promise<LastingSession> {
    return new MysqlLastingSession(await connect(this.#url), timers, lost);
  }

  end(): Promise<void> {
    return new Promise((resolve) => this.#pool.end(() => resolve()));
  }
}

function connect(url: DatabaseUrl): Promise<Connection> {
  return new Promise((resolve, reject) => {
    const connection = createConnection(connectionOptions(url));
    connection.on('error', () => {});
    connection.connect((error) => {
      if (error) reject(isRefused(error) ? refused(error, url.place) : notConnected(error, url.place));
      else resolve(connection);
    });
  });
}
