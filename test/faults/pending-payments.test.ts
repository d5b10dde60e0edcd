import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { LONG } from '../support/long.ts';
import type { PendingJob, PendingReport } from '../support/pending-agent.ts';
import { cleanUp, temporaryFolder, track } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithMysql, describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import { freshDatabase, type Product } from '../support/sql-databases.ts';

/**
 * P10: payments that hang at their provider stop nobody else, in both deployments and on every ledger. The quick round has
 * more of them than a page has; the long one (DOORBUSTER_TEST_LONG) has a thousand, and a bank that hangs for a minute.
 */

const PENDING = LONG ? 1000 : 300;
/** The first process is killed while the bank hangs; the second one hears from it after so long. */
const HANGS_FIRST_MS = LONG ? 40_000 : 0;
const HANGS_THEN_MS = LONG ? 20_000 : 0;
const UNPAID = 50;
const PAY_WITHIN_S = LONG ? 4 : 1;
const LATE_MS_MAX = 2000;
const STALL_MS_MAX = 200;
const FROZEN_MS = LONG ? 200_000 : 40_000;

const AGENT = fileURLToPath(new URL('../support/pending-agent.ts', import.meta.url));

async function run(job: PendingJob): Promise<PendingReport> {
  const child = spawn(process.execPath, [AGENT, JSON.stringify(job)], { stdio: ['ignore', 'pipe', 'inherit'] });
  track(child);
  let output = '';
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk;
  });
  const bound = setTimeout(() => child.kill('SIGKILL'), FROZEN_MS);
  await new Promise((resolve) => child.on('close', resolve));
  clearTimeout(bound);
  expect(output, 'it has said what it saw, and not frozen').not.toBe('');
  return JSON.parse(output) as PendingReport;
}

function suite(name: string, make: () => Promise<PendingJob['store']>): void {
  it(
    'P10: payments that are pending at a bank that hangs hold up nobody else, nor a restart',
    async () => {
      const store = await make();
      const job = { store, unpaid: UNPAID, payWithinSeconds: PAY_WITHIN_S };
      const first = await run({ ...job, pending: PENDING, hangsMs: null, goesOnMs: HANGS_FIRST_MS, settles: false });
      console.log(`${name}, ${PENDING} pending: ${JSON.stringify(first)}`);
      judge(first);
      expect(first.stranded).toBe(PENDING);
      // The next one finds all of them, and the bank still hanging for a while.
      const then = { pending: 0, hangsMs: HANGS_THEN_MS, goesOnMs: HANGS_THEN_MS, settles: LONG };
      const again = await run({ ...job, ...then });
      console.log(`${name}, started again: ${JSON.stringify(again)}`);
      judge(again);
      expect(again.openedMs).toBeLessThan(10_000);
    },
    LONG ? 400_000 : 100_000,
  );
}

function judge({ lateMsMax, otherLateMs, stallMsMax }: PendingReport): void {
  expect(lateMsMax, 'an unpaid order expires').toBeLessThanOrEqual(LATE_MS_MAX);
  expect(otherLateMs, 'a payment at another provider is settled').toBeLessThanOrEqual(LATE_MS_MAX);
  expect(stallMsMax, 'the event loop stands still').toBeLessThanOrEqual(STALL_MS_MAX);
}

afterAll(async () => {
  await cleanUp();
  await cleanUpServers();
});

let redis: Promise<RedisServer> | undefined;
const on = (product: Product) => async (): Promise<PendingJob['store']> => {
  redis ??= startRedis({ persistence: 'aof' });
  return { url: await freshDatabase(product), redis: (await redis).url, prefix: `pending-${product}` };
};

// Most of it is waiting.
describe.concurrent('payments that hang', () => {
  suite('SQLite', async () => ({ folder: temporaryFolder() }));
  describeWithRedis('in a shop of several processes', () => {
    describeWithMysql('on MariaDB', () => suite('MariaDB', on('mysql')));
    describeWithPostgres('on PostgreSQL', () => suite('PostgreSQL', on('postgres')));
  });
});
