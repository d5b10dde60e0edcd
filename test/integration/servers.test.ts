import { spawn } from 'node:child_process';
import { chmodSync, existsSync } from 'node:fs';
import { connect } from 'node:net';
import { createConnection } from 'mysql2/promise';
import pg from 'pg';
import { afterAll, afterEach, expect, it } from 'vitest';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, ROOT, temporaryFolder } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import {
  describeWithAnyRedis,
  describeWithMysql,
  describeWithOwnMysql,
  describeWithOwnPostgres,
  describeWithPostgres,
  describeWithRedis,
} from '../support/servers/describe.ts';
import { childrenOf, isGone } from '../support/servers/family.ts';
import { mysqlQuery, mysqlUrl, startMariadb } from '../support/servers/mariadb.ts';
import { postgresQuery, postgresUrl, removeSharedMemory, startPostgres } from '../support/servers/postgres.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import {
  type RedisServer,
  redisUrl,
  startRedis,
  startRedisCluster,
  startRedisSentinel,
} from '../support/servers/redis.ts';
import { redisCommand } from '../support/servers/resp.ts';

/**
 * The servers that other tests break on purpose: they must really break, and be gone afterwards. The short run checks
 * most of it, because tests that break a server would notice the rest.
 */

afterAll(async () => {
  await cleanUpServers();
  await cleanUp();
});

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

function isRefused(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => {
      socket.destroy();
      resolve(false);
    });
    socket.once('error', (error: NodeJS.ErrnoException) => resolve(error.code === 'ECONNREFUSED'));
  });
}

describeWithRedis('servers: a Redis of a test', () => {
  afterEach(cleanUpServers);

  it('starts, answers, and is gone after the clean-up', async () => {
    const [one, other] = await Promise.all([startRedis(), startRedis({ args: ['--maxmemory', '7mb'] })]);
    expect(one.port).not.toBe(other.port);
    expect(await one.command('SET', 'näme', 'wért\r\n')).toBe('OK');
    expect(await one.command('GET', 'näme')).toBe('wért\r\n');
    expect(await other.command('GET', 'näme')).toBeNull();
    expect(await one.command('EVAL', "return {1, 'two', {}, redis.call('EXISTS', 'näme')}", '0')).toEqual([
      1,
      'two',
      [],
      1,
    ]);
    expect(await other.command('CONFIG', 'GET', 'maxmemory')).toEqual(['maxmemory', String(7 * 1024 * 1024)]);
    await expect(one.command('NONSENSE')).rejects.toThrow('unknown command');
    const pids = [one.pid, other.pid];
    await other.pause();
    await cleanUpServers();
    expect(pids.filter(isAlive)).toEqual([]);
    expect([one.folder, other.folder].filter(existsSync)).toEqual([]);
    await expect(one.command('PING')).rejects.toThrow('ECONNREFUSED');
  });

  it('is silent while it is paused, and goes on from there', async () => {
    await using redis = await startRedis();
    await redis.pause();
    let answered = false;
    const late = redis.command('INCR', 'n').then((reply) => {
      answered = true;
      return reply;
    });
    await sleep(150);
    expect(answered).toBe(false);
    await redis.resume();
    expect(await late).toBe(1);

    await redis.clientPause(500);
    const fromMs = performance.now();
    expect(await redis.command('INCR', 'n')).toBe(2);
    expect(performance.now() - fromMs).toBeGreaterThan(100);
  });

  it('comes back on its port after a kill, with what its persistence promises', async () => {
    const empty = await startRedis();
    const kept = await startRedis({ persistence: 'aof' });
    for (const redis of [empty, kept]) {
      const { pid, port } = redis;
      await redis.command('SET', 'k', 'v');
      await redis.pause();
      await redis.kill();
      expect(redis.running).toBe(false);
      expect(isAlive(pid)).toBe(false);
      await expect(redis.command('PING')).rejects.toThrow('ECONNREFUSED');
      await redis.restart();
      expect(redis.port).toBe(port);
      expect(redis.pid).not.toBe(pid);
    }
    expect(await empty.command('GET', 'k')).toBeNull();
    expect(await kept.command('GET', 'k')).toBe('v');
    await kept.restart();
    await kept.pause();
    await kept.stop();
    expect(kept.running).toBe(false);
  });

  const signals = LONG ? (['SIGTERM', 'SIGKILL'] as const) : (['SIGKILL'] as const);
  it.each(signals)('does not outlive a test process that dies of %s', async (signal) => {
    const program = `import { startRedis } from './test/support/servers/redis.ts';
      const redis = await startRedis();
      await redis.pause();
      console.log(redis.port);
      setInterval(() => {}, 1000);`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
      cwd: ROOT,
      // After SIGKILL nobody else removes its folder.
      env: { ...process.env, TMPDIR: temporaryFolder() },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    try {
      const port = await new Promise<number>((resolve) => child.stdout.once('data', (line) => resolve(Number(line))));
      await expect(redisCommand('127.0.0.1', port, ['PING'], 50)).rejects.toThrow('no reply');
      child.kill(signal);
      // Not by its pid, which stays until its new parent has noticed.
      const ping = () => redisCommand('127.0.0.1', port, ['PING'], 50).catch(({ message }: Error) => message);
      await until('it is gone', 2_000, async () => /ECONNREFUSED/.test(String(await ping())));
    } finally {
      child.kill('SIGKILL');
    }
  });

  it('says why it does not start', async () => {
    await expect(startRedis({ args: ['--no-such-option', 'yes'] })).rejects.toThrow('no-such-option');
  });
});

describeWithAnyRedis('servers: any Redis', () => {
  it('answers at its URL', async () => {
    const { hostname, port } = new URL(await redisUrl());
    expect(await redisCommand(hostname, Number(port), ['PING'])).toBe('PONG');
    expect(await redisUrl()).toBe(await redisUrl());
  });
});

describeWithRedis('servers: a Redis cluster', () => {
  afterEach(cleanUpServers);

  it.runIf(LONG)('serves every key at one of its three masters', async () => {
    const cluster = await startRedisCluster({ masters: 3 });
    expect(cluster.urls).toHaveLength(3);
    const owners = new Set<RedisServer>();
    for (const key of ['a', 'b', 'c', 'd', 'e', 'f']) {
      const owner = await cluster.ownerOf(key);
      owners.add(owner);
      expect(await owner.command('SET', key, key)).toBe('OK');
      const other = cluster.nodes.find((node) => node !== owner)!;
      await expect(other.command('GET', key)).rejects.toThrow('MOVED');
    }
    expect(owners.size).toBe(3);
  });

  it.runIf(LONG)('promotes a replica when a master is killed', async () => {
    const cluster = await startRedisCluster({ masters: 3, replicas: 1 });
    expect(cluster.nodes).toHaveLength(6);
    const old = await cluster.ownerOf('k');
    await old.command('SET', 'k', 'v');
    await old.command('WAIT', '1', '1000');
    await old.kill();
    const next = await until('another node serves the key', 15_000, async () => {
      const owner = await cluster.ownerOf('k');
      return owner === old ? null : owner;
    });
    expect(await until('it has the key', 5_000, () => next.command('GET', 'k').catch(() => null))).toBe('v');
  });
});

describeWithRedis('servers: Redis with sentinels', () => {
  afterEach(cleanUpServers);

  it.runIf(LONG)(
    'has a new master after the old one was killed, and another after a pause',
    async () => {
      const sentinel = await startRedisSentinel({ replicas: 2 });
      expect(sentinel.sentinelAddresses).toHaveLength(3);
      const first = sentinel.master;
      await first.command('SET', 'k', 'v');
      await first.command('WAIT', '2', '1000');
      const second = await sentinel.failover();
      expect(second).not.toBe(first);
      expect(sentinel.master).toBe(second);
      expect(sentinel.replicas).toContain(first);
      expect(await second.command('GET', 'k')).toBe('v');
      await first.restart();
      await until('the old master follows the new one', 20_000, async () => {
        const [role, , port] = (await first.command('ROLE')) as unknown[];
        return role === 'slave' && port === second.port;
      });
      const third = await sentinel.failover('pause');
      expect(third).not.toBe(second);
      await second.resume();
      expect(((await third.command('ROLE')) as unknown[])[0]).toBe('master');
    },
    90_000,
  );
});

/** What differs between the two. */
const DATABASES = [
  {
    name: 'MariaDB',
    describeWithAny: describeWithMysql,
    describeWithOwn: describeWithOwnMysql,
    start: startMariadb,
    module: "import { startMariadb as start } from './test/support/servers/mariadb.ts'",
    url: mysqlUrl,
    ask: mysqlQuery,
    open: async (url: string) => {
      const connection = await createConnection({ uri: url });
      return { ask: () => connection.query('SELECT 1'), close: () => connection.destroy() };
    },
    param: '?',
    isolated: ['--transaction-isolation=SERIALIZABLE'],
    isolation: 'SELECT @@tx_isolation AS value',
    durable: { innodb_flush_log_at_trx_commit: '1', innodb_doublewrite: 'ON', log_bin: 'OFF' },
    durableNow:
      "SHOW VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit','innodb_doublewrite','log_bin')",
    nonsense: ['--no-such-option'],
    protocol: 'mysql:',
  },
  {
    name: 'PostgreSQL',
    describeWithAny: describeWithPostgres,
    describeWithOwn: describeWithOwnPostgres,
    start: startPostgres,
    module: "import { startPostgres as start } from './test/support/servers/postgres.ts'",
    url: postgresUrl,
    ask: postgresQuery,
    open: async (url: string) => {
      const client = new pg.Client({ connectionString: url });
      client.on('error', () => {});
      await client.connect();
      return { ask: () => client.query('SELECT 1'), close: () => void client.end() };
    },
    param: '$1',
    isolated: ['-c', 'default_transaction_isolation=serializable'],
    isolation: 'SHOW default_transaction_isolation',
    durable: { fsync: 'on', full_page_writes: 'on', synchronous_commit: 'on' },
    durableNow: "SELECT name, setting FROM pg_settings WHERE name IN ('fsync','full_page_writes','synchronous_commit')",
    nonsense: ['-c', 'no_such_option=1'],
    protocol: 'postgres:',
  },
];

for (const database of DATABASES) {
  const { name, describeWithAny, describeWithOwn, start, url, ask } = database;

  describeWithOwn(`servers: a ${name} of a test`, () => {
    afterEach(cleanUpServers);

    it('starts, answers, and is gone after the clean-up', async () => {
      const [one, other] = await Promise.all([start(), start({ args: database.isolated })]);
      expect(one.port).not.toBe(other.port);
      const { protocol, hostname, port } = new URL(one.url);
      expect([protocol, hostname, port]).toEqual([database.protocol, '127.0.0.1', String(one.port)]);
      await one.query('CREATE TABLE t (v VARCHAR(20))');
      await one.query(`INSERT INTO t VALUES (${database.param})`, ['wért 🎟']);
      expect(await one.query('SELECT v FROM t')).toEqual([{ v: 'wért 🎟' }]);
      await expect(other.query('SELECT v FROM t')).rejects.toThrow(/exist/);
      expect(Object.values((await other.query(database.isolation))[0]!)[0]).toMatch(/^serializable$/i);
      expect(Object.values((await one.query(database.isolation))[0]!)[0]).not.toMatch(/^serializable$/i);
      const pids = [one, other].flatMap(({ pid }) => [pid, ...childrenOf(pid)]);
      await other.pause();
      await cleanUpServers();
      expect(pids.filter((pid) => !isGone(pid))).toEqual([]);
      expect([one.folder, other.folder].filter(existsSync)).toEqual([]);
      await expect(one.query('SELECT 1')).rejects.toThrow('ECONNREFUSED');
    });

    it('has what it has answered on disk', async () => {
      await using server = await start();
      const rows = await server.query(database.durableNow);
      expect(Object.fromEntries(rows.map((row) => Object.values(row)))).toEqual(database.durable);
    });

    it.runIf(LONG)('is silent while it is paused, and goes on from there', async () => {
      await using server = await start();
      await server.query('CREATE TABLE t (n INT)');
      await server.query('INSERT INTO t VALUES (1)');
      const connection = await database.open(server.url);
      await server.pause();
      let answers = 0;
      const count = <T>(answer: T): T => {
        answers++;
        return answer;
      };
      // PostgreSQL has a process per connection, and another one that accepts new ones.
      const known = connection.ask().then(count);
      const late = server.query('SELECT n FROM t').then(count);
      await sleep(150);
      expect(answers).toBe(0);
      await expect(ask(server.url, 'SELECT 1', [], 100)).rejects.toThrow('no answer within 100 ms');
      await server.resume();
      expect(await late).toEqual([{ n: 1 }]);
      await known;
      connection.close();
    });

    it.runIf(LONG)('comes back on its port after a kill, with all that it has answered', async () => {
      const server = await start();
      const { port } = server;
      await server.query('CREATE TABLE t (n INT)');
      for (const [n, how] of (['kill', 'kill paused', 'stop', 'stop paused', 'restart'] as const).entries()) {
        const pids = [server.pid, ...childrenOf(server.pid)];
        await server.query(`INSERT INTO t VALUES (${n})`);
        if (how.endsWith('paused')) await server.pause();
        if (how.startsWith('stop')) await server.stop();
        else if (how !== 'restart') await server.kill();
        if (how !== 'restart') {
          expect(server.running).toBe(false);
          expect(pids.filter((pid) => !isGone(pid))).toEqual([]);
          await expect(server.query('SELECT 1')).rejects.toThrow('ECONNREFUSED');
        }
        await server.restart();
        expect(server.port).toBe(port);
        expect(pids).not.toContain(server.pid);
        expect(await server.query('SELECT n FROM t ORDER BY n')).toHaveLength(n + 1);
      }
    });

    it.runIf(LONG)('loses nothing it has answered when it is killed amid writes', async () => {
      const server = await start();
      await server.query('CREATE TABLE t (n INT PRIMARY KEY)');
      const answered: number[] = [];
      let killed = false;
      const writer = async (first: number): Promise<void> => {
        for (let n = first; !killed; n += 4) {
          await server.query(`INSERT INTO t VALUES (${n})`);
          answered.push(n);
        }
      };
      const writers = [0, 1, 2, 3].map((first) => writer(first).catch(() => {}));
      await until('some are written', 10_000, () => answered.length > 20);
      await server.kill();
      killed = true;
      await Promise.all(writers);
      await server.restart();
      const kept = new Set((await server.query('SELECT n FROM t')).map(({ n }) => n));
      expect(answered.filter((n) => !kept.has(n))).toEqual([]);
    });

    it.runIf(LONG)('gives databases that know nothing of each other', async () => {
      await using server = await start();
      const [one, other, named] = await Promise.all([
        server.createDatabase(),
        server.createDatabase(),
        server.createDatabase('a-näme'),
      ]);
      expect(new Set([server.url, one, other, named]).size).toBe(4);
      await ask(one, 'CREATE TABLE t (n INT)');
      await ask(named, 'CREATE TABLE t (n INT)');
      await ask(one, 'INSERT INTO t VALUES (1)');
      expect(await ask(named, 'SELECT n FROM t')).toEqual([]);
      await expect(ask(other, 'SELECT n FROM t')).rejects.toThrow(/exist/);
      await expect(server.createDatabase('a-näme')).rejects.toThrow(/exists/);
    });

    // The short run covers PostgreSQL only, whose child processes must end as well.
    const signals = LONG ? (['SIGTERM', 'SIGKILL'] as const) : name === 'PostgreSQL' ? (['SIGKILL'] as const) : [];
    it.each(signals)('does not outlive a test process that dies of %s', async (signal) => {
      const program = `${database.module};
        const server = await start();
        await server.pause();
        console.log([server.port, server.pid, server.folder].join(' '));
        setInterval(() => {}, 1000);`;
      // After SIGKILL nobody else removes its folder. Its user must be able to enter it.
      const folder = temporaryFolder();
      chmodSync(folder, 0o711);
      const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
        cwd: ROOT,
        env: { ...process.env, TMPDIR: folder },
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      try {
        const said = await new Promise<string>((resolve) => child.stdout.once('data', (line) => resolve(String(line))));
        const [port, pid, place] = said.trim().split(' ') as [string, string, string];
        // A paused server does not notice that a connection's process has ended.
        const pids = [Number(pid), ...childrenOf(Number(pid)).filter((one) => !isGone(one))];
        expect(isGone(pids[0]!)).toBe(false);
        child.kill(signal);
        await until('all are gone', 5_000, () => pids.every(isGone));
        // Other threads of a process may end after its first one.
        await until('nobody listens any more', 5_000, () => isRefused(Number(port)));
        // Nothing else removes it after SIGKILL.
        removeSharedMemory({ folder: place });
      } finally {
        child.kill('SIGKILL');
      }
    });

    it.runIf(LONG)('says why it does not start', async () => {
      await expect(start({ args: database.nonsense })).rejects.toThrow(/no.such.option/);
    });
  });

  describeWithAny(`servers: any ${name}`, () => {
    it('gives a fresh database at every call', async () => {
      const [one, other] = [await url(), await url()];
      expect(one).not.toBe(other);
      expect(new URL(one).host).toBe(new URL(other).host);
      await ask(one, 'CREATE TABLE t (n INT)');
      await expect(ask(other, 'SELECT n FROM t')).rejects.toThrow(/exist/);
      await cleanUpServers();
      await expect(ask(one, 'SELECT n FROM t')).rejects.toThrow();
      expect(await ask(await url(), 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
    });
  });
}

describeWithRedis('servers: a network that fails', () => {
  async function throughProxy(): Promise<{
    redis: RedisServer;
    proxy: FaultProxy;
    ask: (...args: string[]) => Promise<unknown>;
  }> {
    const redis = await startRedis();
    const proxy = await startProxy(redis.port);
    return { redis, proxy, ask: (...args) => redisCommand(proxy.host, proxy.port, args, 2_000) };
  }
  afterEach(cleanUpServers);

  it('passes on what is said, and counts it', async () => {
    const { proxy, ask } = await throughProxy();
    const long = 'x'.repeat(3_000_000);
    expect(await ask('SET', 'long', long)).toBe('OK');
    expect(await ask('GET', 'long')).toBe(long);
    const counters = proxy.counters();
    expect(counters.accepted).toBe(2);
    expect(counters.bytesToServer).toBeGreaterThan(long.length);
    expect(counters.bytesToClient).toBeGreaterThan(long.length);
    await until('no connection is left over', 5_000, () => proxy.counters().open === 0);
  });

  it('loses a reply to a command that was executed', async () => {
    const { redis, proxy, ask } = await throughProxy();
    proxy.dropReplies(1);
    await expect(ask('INCR', 'n')).rejects.toThrow('without a reply');
    expect(await redis.command('GET', 'n')).toBe('1');
    expect(await ask('INCR', 'n')).toBe(2);

    proxy.dropReplies(({ request }) => request.includes('INCR'));
    expect(await ask('GET', 'n')).toBe('2');
    await expect(ask('INCR', 'n')).rejects.toThrow('without a reply');
    await expect(ask('INCR', 'n')).rejects.toThrow('without a reply');
    proxy.dropReplies(0);
    expect(await ask('INCR', 'n')).toBe(5);
    expect(proxy.counters().repliesDropped).toBe(3);
  });

  it('freezes: nothing passes, nothing is lost', async () => {
    const { redis, proxy, ask } = await throughProxy();
    const socket = connect(proxy.port, proxy.host);
    let heard = '';
    socket.on('data', (chunk) => {
      heard += chunk;
    });
    socket.write('INCR n\r\n');
    await until('the first reply', 5_000, () => heard === ':1\r\n');
    proxy.freeze();
    socket.write('INCR n\r\n');
    const newcomer = ask('INCR', 'n');
    await sleep(100);
    expect(heard).toBe(':1\r\n');
    expect(await redis.command('GET', 'n')).toBe('1');
    expect(proxy.counters().open).toBe(2);
    proxy.thaw();
    await until('the second reply', 5_000, () => heard !== ':1\r\n');
    await newcomer;
    expect(await redis.command('GET', 'n')).toBe('3');
    socket.destroy();
  });

  it('cuts, refuses and welcomes again', async () => {
    const { proxy, ask } = await throughProxy();
    const socket = connect(proxy.port, proxy.host);
    const closed = new Promise((resolve) => socket.once('close', resolve));
    await until('it is connected', 5_000, () => proxy.counters().open === 1);
    await proxy.refuse(true);
    await expect(ask('PING')).rejects.toThrow('ECONNREFUSED');
    expect(proxy.counters().open).toBe(1);
    proxy.cut();
    await closed;
    await proxy.refuse(false);
    expect(await ask('PING')).toBe('PONG');
  });

  it('is slow, one way or both', async () => {
    const { redis, proxy, ask } = await throughProxy();
    const timed = async (): Promise<number> => {
      const fromMs = performance.now();
      await ask('INCR', 'n');
      return performance.now() - fromMs;
    };
    proxy.delay(400, 'toClient');
    const slow = timed();
    // The direction to the server is not delayed.
    await until('it is executed', 350, async () => (await redis.command('GET', 'n')) === '1');
    expect(await slow).toBeGreaterThanOrEqual(399);
    proxy.delay(200);
    expect(await timed()).toBeGreaterThanOrEqual(399);
    proxy.delay(0);
    expect(await timed()).toBeLessThan(350);
  });
});
