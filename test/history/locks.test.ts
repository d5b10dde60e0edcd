import { afterAll, expect, it } from 'vitest';
import { LONG } from '../support/long.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { check, report } from './check.ts';
import { Stage } from './run.ts';
import { givenSeed, scheduleOf } from './schedule.ts';

/** Each of these has broken the locks once, in the ways of the rules that they broke: exclusion, liveness, early. The long run has all. */
const SEEDS = LONG ? [1, 25, 126, 194, 330] : [1, 126];

/**
 * Processes that take locks under faults, and what they saw, checked. `HISTORY_SEED=<seed> npx vitest run test/history`
 * plays one schedule again; `npm run test:nightly` plays many.
 */
describeWithRedis('histories of the locks', () => {
  let stage: Stage;
  afterAll(async () => {
    await stage?.[Symbol.asyncDispose]();
    await cleanUpServers();
  });

  const given = givenSeed();
  const drawn = Math.floor(Math.random() * 2 ** 31);
  for (const seed of given === null ? [...SEEDS, drawn] : [given]) {
    it(`keeps its promises with seed ${seed === drawn ? 'drawn at random' : seed}`, async () => {
      console.log(`histories of the locks: HISTORY_SEED=${seed}`);
      stage ??= new Stage();
      const history = await stage.run(scheduleOf(seed));
      const violations = check(history);
      expect(violations, report(history, violations)).toEqual([]);
    });
  }
});
