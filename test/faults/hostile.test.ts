import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { startShop } from '../support/distributed.ts';
import { HOSTILE_ENV, type Outcome, type Plan, playHostile } from '../support/hostile/stage.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, startServer, type TestServer } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithPostgres, describeWithRedis } from '../support/servers/describe.ts';
import { startRedis } from '../support/servers/redis.ts';
import { freshDatabase } from '../support/sql-databases.ts';

/**
 * P10: all attacks at once (test/support/hostile/attackers) beside an honest crowd. The honest crowd's goodput is
 * compared with its goodput while the same attackers target a bare server that answers 503, at the same rates. So
 * the machine has the same load, and the difference is what the attacks cost the shop.
 *
 * HOSTILE_SECONDS=60 sets the length; HOSTILE_ONLY='stream churn,router garbage' runs these attackers only.
 */

const SECONDS = Number(process.env.HOSTILE_SECONDS ?? (LONG ? 600 : 0));
const SLICE_S = 60;
const SHORT: Plan = { slices: 1, bareMs: 1200, attackedMs: 2500, only: [] };

function planned(): Plan {
  const only = process.env.HOSTILE_ONLY?.split(',') ?? [];
  if (SECONDS === 0) return { ...SHORT, only };
  const slices = Math.ceil(SECONDS / SLICE_S);
  const attackedMs = (SECONDS * 1000) / slices;
  return { slices, attackedMs, bareMs: attackedMs / 3, only };
}

/** In a short run the bounds allow for a busy machine. */
const [GOODPUT_MIN, RECOVERY_MS_MAX] = SECONDS >= 600 ? [0.8, 2000] : [0.2, 5000];
/** Allowed growth under attack: buffers, caches and pools at their bounds, and uncollected garbage. */
const RSS_MB_MAX = 256;
/** Additional memory per order: its buyer, key and hold in the gate, and the tail of the ledger. */
const RSS_KB_PER_ORDER = 2;
/** Log lines of one kind are bounded per second. */
const LOG_BYTES_PER_SECOND = 20_000;
const TIMEOUT_MS = 120_000 + 2 * SECONDS * 1000;

afterEach(cleanUp);
afterAll(cleanUpServers);

function mustHold(outcome: Outcome, log: string): void {
  const { goodput, recoveryMs, rssMb, logBytes, attackedMs, accepted, strange, faults, streams } = outcome;
  expect.soft(faults, 'P1, P2, P3, P9').toEqual({ counts: [], oversold: [], overLimit: [], lost: [] });
  expect.soft(strange, 'answers to honest buyers').toEqual([]);
  expect
    .soft(goodput.ratio, 'goodput beside attackers, of what it is beside a bare server')
    .toBeGreaterThan(GOODPUT_MIN);
  expect.soft(recoveryMs, 'ms until the shop is well after an attack').toBeLessThan(RECOVERY_MS_MAX);
  expect.soft(rssMb.max - rssMb.before, 'MB grown').toBeLessThan(RSS_MB_MAX + (accepted * RSS_KB_PER_ORDER) / 1024);
  expect
    .soft(logBytes / (attackedMs / 1000), `bytes of log a second, such as ${log.slice(-1500)}`)
    .toBeLessThan(LOG_BYTES_PER_SECOND);
  expect.soft(streams.opened, `event streams for an honest address: ${streams.refusal}`).toBe(streams.asked);
}

async function play(name: string, server: TestServer): Promise<void> {
  const outcome = await playHostile(server, planned(), (line) => SECONDS > 0 && console.log(`${name}: ${line}`));
  const { attackers, faults: _, ...figures } = outcome;
  if (SECONDS > 0) console.log(`${name}: ${JSON.stringify(figures)}\n${JSON.stringify(attackers, null, 1)}`);
  expect(server.process.exitCode, server.output().slice(-2000)).toBeNull();
  mustHold(outcome, server.output());
}

const TITLE = 'P10: sells on beside everything hostile at once, loses nothing, stays small, and is well again at once';

describe('a hostile crowd, embedded', () => {
  it(TITLE, async () => play('embedded', await startServer({ env: HOSTILE_ENV })), TIMEOUT_MS);
});

describeWithRedis('a hostile crowd, distributed', () => {
  describeWithPostgres('on PostgreSQL', () => {
    it(
      TITLE,
      async () => {
        const [redis, databaseUrl] = await Promise.all([startRedis(), freshDatabase('postgres')]);
        const shop = await startShop({
          redisUrl: redis.url,
          databaseUrl,
          servers: 0,
          workers: 0,
          env: HOSTILE_ENV,
        });
        // One process as server and worker: on two cores a second one would only hide what the attacks cost.
        await play('PostgreSQL + Redis', await shop.startServer([]));
      },
      TIMEOUT_MS,
    );
  });
});
