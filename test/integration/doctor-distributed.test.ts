import { afterAll, expect, it } from 'vitest';
import { startShop } from '../support/distributed.ts';
import { cleanUp, run } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithOwnMysql, describeWithOwnPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { startMariadb } from '../support/servers/mariadb.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { startRedis } from '../support/servers/redis.ts';

afterAll(async () => {
  await cleanUp();
  await cleanUpServers();
});

interface Check {
  name: string;
  status: string;
  says: string;
}

async function examined(env: Record<string, string>): Promise<{ code: number | null; checks: Check[]; text: string }> {
  const { code, stdout } = await run(['doctor', '--json'], { ...KEYS, ...env });
  const { checks } = JSON.parse(stdout) as { checks: Check[] };
  return { code, checks, text: stdout };
}

const KEYS = { DOORBUSTER_ADMIN_KEY: 'k'.repeat(16), DOORBUSTER_AUTH_SECRET: 's'.repeat(32) };

const notOk = (checks: Check[]): string[] =>
  checks.filter(({ status }) => status !== 'ok').map(({ name, status }) => `${status} ${name}`);

describeWithRedis('doctor of a distributed shop', () => {
  describeWithOwnMysql('on MariaDB', () => {
    it('all is well; then it names the missing worker, the eviction, the persistence and the durability', async () => {
      const redis = await startRedis({ persistence: 'aof' });
      const database = await startMariadb();
      const env = { REDIS_URL: redis.url, DATABASE_URL: database.url };
      const shop = await startShop({ redisUrl: redis.url, databaseUrl: database.url, servers: 0, workers: 1 });
      const well = await examined(env);
      expect([well.code, notOk(well.checks)]).toEqual([0, []]);
      expect(well.text).not.toContain('doorbuster:doorbuster');

      await shop.workers[0]!.stop();
      await redis.command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
      await redis.command('CONFIG', 'SET', 'appendonly', 'no');
      await database.query('SET GLOBAL innodb_flush_log_at_trx_commit = 2');
      const ill = await examined(env);
      expect(ill.code).toBe(1);
      expect(notOk(ill.checks)).toEqual(['wrong eviction', 'warn persistence', 'warn workers', 'warn durability']);
      const says = ill.checks.map((check) => check.says).join('\n');
      expect(says).toMatch(
        /noeviction[\s\S]*appendonly no.*likes that are not stored yet[\s\S]*doorbuster worker[\s\S]*innodb_flush_log_at_trx_commit is 2/,
      );
    });
  });

  describeWithOwnPostgres('on PostgreSQL', () => {
    it('names an empty schema, a weak setting, and servers that are not there', async () => {
      const redis = await startRedis();
      const database = await startPostgres({ args: ['-c', 'synchronous_commit=off'] });
      const { code, checks } = await examined({ REDIS_URL: redis.url, DATABASE_URL: database.url });
      expect(code).toBe(1);
      expect(notOk(checks)).toEqual(['warn persistence', 'warn workers', 'wrong schema', 'warn durability']);
      await redis.command('CONFIG', 'SET', 'maxmemory', '1000000');
      const full = await examined({ REDIS_URL: redis.url, DATABASE_URL: database.url });
      expect(notOk(full.checks)).toContain('wrong memory');
      const used = /^used_memory:(\d+)/m.exec(String(await redis.command('INFO', 'memory')))![1]!;
      await redis.command('CONFIG', 'SET', 'maxmemory', String(Math.round(Number(used) * 1.15)));
      const nearly = await examined({ REDIS_URL: redis.url, DATABASE_URL: database.url });
      expect(notOk(nearly.checks)).toContain('warn memory');
      await redis.kill();
      await database.kill();
      const out = await examined({ REDIS_URL: redis.url, DATABASE_URL: database.url });
      expect([out.code, notOk(out.checks)]).toEqual([1, ['wrong redis', 'wrong database']]);
      expect(out.text).not.toContain('doorbuster:doorbuster');
    });
  });
});
