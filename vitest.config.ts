import { defineConfig } from 'vitest/config';
import { LONG } from './test/support/long.ts';

/**
 * Files that wait most of the time: for leases, time-outs and the next second. Of a core they take a third (see
 * test/support/processor-time.ts), so that four of them leave more of a machine with two cores idle than two of the others do.
 * In the long run they do more, and wait less.
 */
const WAITING = [
  'test/contract/locks.*.test.ts',
  'test/contract/pipe.*.test.ts',
  'test/faults/{alone,distributed-review,drain,gate-redis,ledger-postgres,likes-look,likes-redis}.test.ts',
  'test/faults/{npm,pipe-streams,rebuild,sale-changes,two-shops}.test.ts',
  'test/faults/locks-*.test.ts',
  'test/history/locks.test.ts',
  'test/integration/{brokers,carrier-kafka,carrier-rabbitmq,distributed-outage}.test.ts',
  'test/integration/{life,life-library,life-provider,likes-dead-letters}.test.ts',
  'test/integration/ledger-{mysql,postgres}.test.ts',
  'test/integration/locks-{clients,fencing,idempotency,jobs}.test.ts',
];

/**
 * Files without servers, processes and measured time: they can follow each other in one process, which saves the start of
 * 100 processes (0.8 s each, more than most of these files take).
 */
const PURE = [
  'test/unit/**/*.test.ts',
  'test/contract/ledger-*.sqlite.test.ts',
  'test/property/{ledger-*,life,seats}.property.test.ts',
];

/** Minutes of one test run after the other, in copies of the project. */
const LONG_ONLY = 'test/mutants/mutants.test.ts';

/** What the command line says of it would not reach the projects. */
const asked = process.argv.find((argument) => argument.startsWith('--maxWorkers='))?.split('=')[1];
const workers = (count: number): number => (asked === undefined ? count : Number(asked));

const common = {
  pool: 'forks',
  testTimeout: 30_000,
  hookTimeout: 30_000,
  // Node runs the tests as it runs the program: it strips types itself and keeps what it compiled for the next file. Vite's own loader
  // would transform a thousand modules anew for each of 200 files.
  experimental: { viteModuleRunner: false, nodeLoader: false },
} as const;

/** Of files that have a process of their own. */
const timed = {
  setupFiles: process.env.DOORBUSTER_TEST_TIMES === undefined ? [] : ['test/support/processor-time.ts'],
};

export default defineConfig({
  test: {
    // Installs the servers that some tests start, where it may; lists at the end what was skipped for want of one.
    globalSetup: ['test/support/servers/setup.ts'],
    projects: [
      {
        test: {
          ...common,
          name: 'pure',
          include: PURE,
          isolate: false,
          maxWorkers: workers(2),
          sequence: { groupOrder: 0 },
        },
      },
      {
        test: {
          ...common,
          ...timed,
          name: 'busy',
          include: ['test/**/*.test.ts'],
          exclude: [...PURE, ...WAITING, ...(LONG ? [] : [LONG_ONLY])],
          // Two cores: a third worker makes tests of timing lie.
          maxWorkers: workers(2),
          sequence: { groupOrder: 1 },
        },
      },
      {
        test: {
          ...common,
          ...timed,
          name: 'waiting',
          include: WAITING,
          maxWorkers: workers(LONG ? 2 : 4),
          sequence: { groupOrder: 2 },
        },
      },
    ],
  },
});
