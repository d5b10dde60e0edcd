import { defineConfig } from 'vitest/config';

const LONG = process.env.DOORBUSTER_TEST_LONG !== undefined;

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // Installs the servers that some tests start, where it may; lists at the end what was skipped for want of one.
    globalSetup: ['test/support/servers/setup.ts'],
    pool: 'forks',
    // Two cores, and tests that mostly wait: for servers to start, for leases to end. More would make those of timing lie.
    maxWorkers: 3,
    // They are busy with servers that start and die: what fails is tried once more, and listed as such. A judgement on a random
    // crowd or program, which names its seed, is not, unless it is about time; and in the long run nothing is.
    retry: LONG
      ? 0
      : { count: 1, condition: /not within \d+ ms|timed out in \d+ ?ms|^(?!.*(?:Property failed|seed=))/is },
    testTimeout: 30_000,
    hookTimeout: 30_000,
  },
});
