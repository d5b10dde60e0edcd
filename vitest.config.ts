import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // Installs the servers that some tests start, where it may; lists at the end what was skipped for want of one.
    globalSetup: ['test/support/servers/setup.ts'],
    pool: 'forks',
    // Two cores: a third worker makes tests of timing lie.
    maxWorkers: 2,
    testTimeout: 30_000,
    hookTimeout: 30_000,
  },
});
