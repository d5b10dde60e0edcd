import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { COPIED_FROM } from '../support/docs/inventory.ts';
import { type Block, blocksOf } from '../support/docs/pages.ts';
import { PROGRAMS, runPrograms } from '../support/docs/programs.ts';
import { makeWorkshop } from '../support/docs/workshop.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, run } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { startRedis } from '../support/servers/redis.ts';

/** The code of the README and the guides runs, and prints what they say. */

afterAll(cleanUp);
afterAll(cleanUpServers);

function blocksThatNeed(needs: string | undefined): Block[] {
  return COPIED_FROM.flatMap(blocksOf).filter(({ name, language }) => {
    return ['js', 'ts', 'sql'].includes(language) && PROGRAMS[name] !== undefined && PROGRAMS[name].needs === needs;
  });
}

async function expectToRun(blocks: Block[], replaced: [string, string][] = []): Promise<void> {
  const folder = makeWorkshop();
  const folders: [string, string][] = ['srv', 'backups'].map((name) => [`/${name}/`, `${join(folder, name)}/`]);
  const ran = await runPrograms(folder, blocks, [...replaced, ...folders]);
  const failed = ran.filter(({ error }) => error !== null).map(({ name, error }) => `${name}: ${error}`);
  expect(failed).toEqual([]);
}

it('code that needs no server', async () => {
  await expectToRun(blocksThatNeed(undefined));
});

describeWithRedis('code that needs Redis', () => {
  it('the locks guide', async () => {
    const [one, ...others] = await Promise.all([startRedis(), startRedis(), startRedis()]);
    const masters = [one, ...others].map(
      ({ url }, index) => [`redis://${'abc'[index]}'`, `${url}'`] as [string, string],
    );
    await expectToRun(blocksThatNeed('redis'), [['redis://127.0.0.1:6379', one.url], ...masters]);
  });
});

describe.runIf(LONG)('code that needs Redis and a database', () => {
  describeWithPostgres('on PostgreSQL', () => {
    it('runs', async () => {
      const [redis, postgres] = await Promise.all([startRedis(), startPostgres()]);
      const migrated = await run(['migrate'], { REDIS_URL: redis.url, DATABASE_URL: postgres.url });
      expect(migrated.code, migrated.stderr).toBe(0);
      await expectToRun(blocksThatNeed('redis and postgres'), [
        ['redis://127.0.0.1:6379', redis.url],
        ['127.0.0.1:5432', `127.0.0.1:${postgres.port}`],
      ]);
    });
  });
});
