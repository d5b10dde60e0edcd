import { spawn } from 'node:child_process';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { main } from '../../src/cli/main.ts';
import { admin, place } from '../support/distributed-calls.ts';
import { until } from '../support/fault-wait.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { ADMIN_KEY, AUTH_SECRET, BIN, cleanUp, createSale, run, startServer, track } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import {
  describeWithMysql,
  describeWithOwnPostgres,
  describeWithPostgres,
  describeWithRedis,
} from '../support/servers/describe.ts';
import { mysqlQuery, mysqlUrl } from '../support/servers/mariadb.ts';
import { type PostgresServer, postgresQuery, postgresUrl, startPostgres } from '../support/servers/postgres.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** How a shop of several processes starts: what it refuses, in one line, and what it waits for. */

const KEYS = { DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET, PORT: '0' };
/** Nobody listens on port 1. */
const NO_REDIS = 'redis://127.0.0.1:1';
const NO_DATABASE = 'postgres://doorbuster:hunter2@127.0.0.1:1/doorbuster';

interface Ended {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** Expects exit code `code` after one line, which matches `words` and contains no secret. */
async function expectRefused(args: string[], env: Record<string, string>, words: RegExp, code = 1): Promise<void> {
  expectOneLine(args, await run(args, { ...KEYS, ...env }), words, code);
}

function expectOneLine(args: string[], ended: Ended, words: RegExp, code = 1): void {
  const got = { code: ended.code, stderr: ended.stderr.trimEnd(), stdout: ended.stdout };
  expect(got).toEqual({ code, stderr: expect.stringMatching(words), stdout: '' });
  expect(got.stderr.split('\n')).toHaveLength(1);
  expect(got.stderr).toMatch(new RegExp(`^doorbuster ${args[0]}: `));
  expect(got.stderr).not.toMatch(/hunter2|\bat .+:\d+:\d+/);
}

afterAll(async () => {
  await cleanUp();
  await cleanUpServers();
});

afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
  // `serve` adds this listener for the life of its process; here one process runs many.
  process.removeAllListeners('SIGXFSZ');
});

/** Runs the command line in this process, for commands that are refused before they start anything. */
async function runHere(args: string[], env: Record<string, string>): Promise<Ended> {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
  const said = { stdout: '', stderr: '' };
  vi.spyOn(console, 'log').mockImplementation((line) => {
    said.stdout += `${line}\n`;
  });
  vi.spyOn(console, 'error').mockImplementation((line) => {
    said.stderr += `${line}\n`;
  });
  for (const [name, value] of Object.entries({ ...KEYS, ...env })) vi.stubEnv(name, value);
  return { code: await main(args), ...said };
}

describe('settings that describe no deployment', () => {
  it.each<[string, string[], Record<string, string>, RegExp]>([
    ['REDIS_URL alone', ['serve'], { REDIS_URL: NO_REDIS }, /REDIS_URL.*DATABASE_URL/],
    ['sqlite: with Redis', ['serve'], { REDIS_URL: NO_REDIS, DATABASE_URL: 'sqlite:./data' }, /DATABASE_URL.*sqlite:/],
    [
      'Redis of another scheme',
      ['serve'],
      { REDIS_URL: 'http://:hunter2@127.0.0.1', DATABASE_URL: NO_DATABASE },
      /REDIS_URL must begin with redis:/,
    ],
    [
      'a database of another kind',
      ['serve'],
      { REDIS_URL: NO_REDIS, DATABASE_URL: 'mongodb://u:hunter2@127.0.0.1/x' },
      /DATABASE_URL must begin with .*postgres:/,
    ],
    [
      'a database that is not named (MySQL)',
      ['migrate'],
      { DATABASE_URL: 'mysql://u:hunter2@127.0.0.1:1' },
      /DATABASE_URL names no database/,
    ],
    [
      'a database that is not named (PostgreSQL)',
      ['serve'],
      { DATABASE_URL: 'postgres://u:hunter2@127.0.0.1:1/' },
      /DATABASE_URL names no database/,
    ],
    [
      'a password that is not percent-encoded',
      ['serve'],
      { DATABASE_URL: 'postgres://u:hunter2%@127.0.0.1:1/x' },
      /DATABASE_URL is not a valid URL.*percent-encoded/,
    ],
    ...['mysql', 'postgres'].flatMap<[string, string[], Record<string, string>, RegExp]>((scheme) => [
      [
        `TLS in other words (${scheme})`,
        ['serve'],
        { DATABASE_URL: `${scheme}://u:hunter2@127.0.0.1:1/x?ssl-mode=REQUIRED` },
        /DATABASE_URL has ssl-mode: it must be one of disable, require, verify-ca, verify-full/,
      ],
      [
        `a parameter that is not known (${scheme})`,
        ['serve'],
        { DATABASE_URL: `${scheme}://u:hunter2@127.0.0.1:1/x?ssl=true` },
        /DATABASE_URL has an unknown parameter "ssl": known ones are sslmode/,
      ],
      [
        `a root certificate without TLS (${scheme})`,
        ['serve'],
        { DATABASE_URL: `${scheme}://u:hunter2@127.0.0.1:1/x?sslrootcert=ca.pem` },
        /DATABASE_URL has sslrootcert, which needs sslmode/,
      ],
    ]),
    [
      'the address of a database that is not there',
      ['migrate'],
      { DATABASE_URL: NO_DATABASE },
      /127\.0\.0\.1:1 .*ECONNREFUSED/,
    ],
    ['a flag of another scheme', ['serve', '--redis-url', 'memcached://x'], {}, /--redis-url must begin with/],
    [
      'sentinels without the name of a master',
      ['serve'],
      { REDIS_URL: 'redis+sentinel://:hunter2@127.0.0.1:1', DATABASE_URL: NO_DATABASE },
      /name of the master/,
    ],
    ['a broker without Redis', ['serve'], { PIPE_URL: 'amqp://u:hunter2@127.0.0.1' }, /PIPE_URL.*REDIS_URL/],
    [
      'a broker that we do not know',
      ['serve'],
      { REDIS_URL: NO_REDIS, DATABASE_URL: NO_DATABASE, PIPE_URL: 'nats://u:hunter2@127.0.0.1' },
      /PIPE_URL must begin with amqp:/,
    ],
    ['--no-worker alone', ['serve', '--no-worker'], {}, /--no-worker.*REDIS_URL/],
    ['--no-worker with a database only', ['serve', '--no-worker'], { DATABASE_URL: NO_DATABASE }, /REDIS_URL/],
    ['a bound of nothing', ['serve'], { ANSWER_WITHIN_MS: '0' }, /ANSWER_WITHIN_MS/],
    ['a pipe without room', ['serve'], { PIPE_MAX: '0' }, /PIPE_MAX/],
    ['a lock that is none', ['serve'], { WRITER_LOCK: 'seat' }, /WRITER_LOCK.*off, buyer/],
    ['a prefix with a brace', ['serve'], { REDIS_PREFIX: 'a{b}' }, /REDIS_PREFIX/],
    ['a worker alone', ['worker'], {}, /REDIS_URL and DATABASE_URL/],
    ['a worker without a database', ['worker'], { REDIS_URL: NO_REDIS }, /DATABASE_URL/],
    ['a worker without Redis', ['worker'], { DATABASE_URL: NO_DATABASE }, /REDIS_URL/],
  ])('%s', async (_, args, env, words) => {
    expectOneLine(args, await runHere(args, env), words);
  });

  it('so it is in a process of its own', async () => {
    await expectRefused(['serve'], { REDIS_URL: NO_REDIS }, /REDIS_URL.*DATABASE_URL/);
  });

  it('an unknown flag of the worker is a usage error; --help names what it needs', async () => {
    expectOneLine(['worker'], await runHere(['worker', '--port', '1'], {}), /--port/, 2);
    const help = await runHere(['worker', '--help'], {});
    expect(help).toMatchObject({ code: 0, stderr: '' });
    for (const word of ['REDIS_URL', 'DATABASE_URL', '--migrate', 'SIGTERM']) expect(help.stdout).toContain(word);
  });
});

describeWithRedis('servers that are set up wrongly', () => {
  let redis: RedisServer;
  beforeAll(async () => {
    redis = await startRedis();
  });

  it('a Redis that evicts keys stops the start of serve and worker', async () => {
    const env = { REDIS_URL: redis.url, DATABASE_URL: NO_DATABASE };
    await redis.command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
    try {
      await Promise.all([
        expectRefused(['serve'], env, /maxmemory-policy allkeys-lru.*noeviction/),
        expectRefused(['worker'], env, /maxmemory-policy allkeys-lru.*noeviction/),
      ]);
    } finally {
      await redis.command('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
    }
  });

  it('a Redis that wants a password stops the start', async () => {
    await using locked = await startRedis();
    await locked.command('CONFIG', 'SET', 'requirepass', 'sesame');
    const env = { REDIS_URL: locked.url, DATABASE_URL: NO_DATABASE };
    // "Cannot be reached" would make people search the network.
    expectOneLine(['serve'], await runHere(['serve'], env), /Redis refuses the user or password/);
  });

  function schema(
    name: string,
    fresh: () => Promise<string>,
    query: (url: string, sql: string) => Promise<unknown>,
  ): void {
    it(`${name}: an empty database is refused and named; migrate and --migrate fill it, also at once`, async () => {
      const url = await fresh();
      const env = { REDIS_URL: redis.url, DATABASE_URL: url, REDIS_PREFIX: `start-${name}` };
      expectOneLine(['serve'], await runHere(['serve'], env), /no ledger yet.*`doorbuster migrate`/);
      if (name === 'MariaDB') await expectRefused(['worker'], env, /no ledger yet.*`doorbuster migrate`/);
      vi.unstubAllEnvs();
      // All at once: one migrates, and the others wait for it and find nothing to do.
      const servers = await Promise.all([
        startServer({ env, args: ['--migrate'] }),
        startServer({ env, args: ['--migrate', '--no-worker'] }),
      ]);
      const saleId = await createSale(servers[0], { stock: 2 });
      expect((await place(servers[1], saleId, 'alice')).status).toBe(201);
      expect(await Promise.all(servers.map((server) => server.stop()))).toEqual([0, 0]);
    });

    it(`${name}: migrate twice, for people and for programs, and nowhere a password`, async () => {
      const url = new URL(await fresh());
      const env = { DATABASE_URL: url.href };
      const first = await runHere(['migrate'], env);
      expect(first).toMatchObject({ code: 0, stderr: '', stdout: expect.stringMatching(/schema 0 → \d+ \(0001 /) });
      const second = await runHere(['migrate'], env);
      expect(second).toMatchObject({ code: 0, stderr: '', stdout: expect.stringMatching(/nothing to do/) });
      const third = await runHere(['migrate', '--json'], env);
      const told = JSON.parse(third.stdout);
      expect(told).toMatchObject({ place: expect.stringContaining(url.pathname), applied: [] });
      expect(told.from).toBe(told.to);
      const printed = [first, second, third].map(({ stdout, stderr }) => stdout + stderr).join('');
      // User and password are `doorbuster`; the database has another name.
      expect(printed).not.toContain('doorbuster:');
      // This row stands for the schema of a later version.
      await query(url.href, "INSERT INTO migrations (version, name, applied_at) VALUES (9999, 'later', 1)");
      const both = { ...env, REDIS_URL: redis.url };
      expectOneLine(['serve'], await runHere(['serve', '--migrate'], both), /schema 9999.*newer/);
      expectOneLine(['migrate'], await runHere(['migrate'], env), /schema 9999.*newer/);
    });

    it(`${name}: a wrong password and a database that does not exist are reported in one line`, async () => {
      const wrong = new URL(await fresh());
      const missing = new URL(wrong);
      wrong.password = 'hunter2';
      missing.pathname = '/nowhere';
      const redisEnv = { REDIS_URL: redis.url };
      expectOneLine(['migrate'], await runHere(['migrate'], { DATABASE_URL: wrong.href }), /./);
      const nowhere = { ...redisEnv, DATABASE_URL: missing.href };
      expectOneLine(['serve'], await runHere(['serve'], nowhere), /nowhere/);
    });
  }
  describeWithMysql('on MariaDB', () => schema('MariaDB', mysqlUrl, mysqlQuery));
  describeWithPostgres('on PostgreSQL', () => schema('PostgreSQL', postgresUrl, postgresQuery));
});

describeWithRedis('servers that come later', () => {
  describeWithOwnPostgres('with PostgreSQL', () => {
    let redis: RedisServer;
    let database: PostgresServer;
    let env: Record<string, string>;
    beforeAll(async () => {
      [redis, database] = await Promise.all([startRedis(), startPostgres()]);
      env = { REDIS_URL: redis.url, DATABASE_URL: database.url };
    });

    it('serve --demo: a shop of many processes at once, on an empty database', async () => {
      const demo = await startServer({ env, args: ['--demo'] });
      const sale = await until(
        'the demo sale',
        5_000,
        async () => (await demo.call('GET', '/v1/sales')).body.data?.[0],
      );
      const { token } = (await demo.call('POST', '/v1/demo/tokens', { body: { user: 'alice' } })).body;
      const body = { item: sale.items[0].code };
      const order = await demo.call('POST', `/v1/sales/${sale.id}/orders`, { bearer: token, body });
      expect(order).toMatchObject({ status: 201, body: { status: 'reserved', buyer: 'alice' } });
      expect(await demo.stop()).toBe(0);
    });

    it('serve listens before Redis and the database: 503, the part is named; it works when they are there', async () => {
      await redis.kill();
      await database.kill();
      const [server, other, waiting, worker] = await Promise.all([
        startServer({ env, args: ['--no-worker'] }),
        startServer({ env }),
        startWaitingWorker(env),
        startWaitingWorker(env),
      ]);

      const order = await place(server, '1', 'alice');
      expectProblem(order, 503, 'unavailable');
      expect(order.headers.get('retry-after')).toMatch(/^\d+$/);
      expectProblem(await server.call('GET', '/v1/sales'), 503, 'unavailable');
      expect((await server.call('GET', '/healthz')).status).toBe(200);
      const noRedis = await server.call('GET', '/readyz');
      expect(noRedis).toMatchObject({ status: 503, body: { status: 'unavailable' } });
      // The answer names the part that is missing.
      expect(noRedis.body.parts.gate).toMatch(/Redis/);

      // A process that waits can be stopped.
      const begunMs = performance.now();
      expect(await Promise.all([other.stop(), waiting.stop()])).toEqual([0, 0]);
      expect(performance.now() - begunMs).toBeLessThan(5_000);

      await redis.restart();
      await until('the database is named', 5_000, async () => {
        const { status, body } = await server.call('GET', '/readyz');
        expect(status).toBe(503);
        return body.parts.ledger !== 'ok' && !/Redis/.test(body.parts.ledger + body.parts.gate);
      });
      await database.restart();
      await until('the server is ready', 8_000, async () => (await server.call('GET', '/readyz')).status === 200);
      await until('the worker has started', 8_000, () => worker.output().includes('doorbuster: worker started'));
      // A worker that waits says so once.
      expect(worker.output().match(/^doorbuster worker: .*; retrying every second$/gm)).toHaveLength(1);
      // And the log says so, too.
      for (const { output } of [worker, server]) {
        const lines = output()
          .split('\n')
          .filter((line) => line.startsWith('{'));
        expect(
          lines.map((line) => JSON.parse(line)).filter(({ msg }) => /cannot be opened yet/.test(msg)),
        ).toMatchObject([{ level: 50, reason: expect.stringMatching(/Redis/) }]);
      }
      const saleId = await createSale(server);
      expect((await place(server, saleId, 'alice')).status).toBe(201);
      expect((await admin(server, 'GET', `/v1/orders?saleId=${saleId}`)).body.data).toHaveLength(1);
      expect(await Promise.all([server.stop(), worker.stop()])).toEqual([0, 0]);
    });
  });
});

/** Starts a worker, and resolves when it says what it waits for. */
async function startWaitingWorker(
  env: Record<string, string>,
): Promise<{ output(): string; stop(): Promise<number | null> }> {
  const worker = spawn(process.execPath, [BIN, 'worker'], { env: { ...process.env, ...env } });
  track(worker);
  let said = '';
  for (const stream of [worker.stdout, worker.stderr]) {
    stream.on('data', (chunk) => {
      said += chunk;
    });
  }
  const ended = new Promise<number | null>((resolve) => worker.on('close', resolve));
  await until('the worker waits', 10_000, () => /^doorbuster worker: .*; retrying every second$/m.test(said));
  return {
    output: () => said,
    stop: () => {
      worker.kill('SIGTERM');
      return ended;
    },
  };
}
