import { appendFileSync, readFileSync } from 'node:fs';
import { relative } from 'node:path';
import { afterAll, expect } from 'vitest';
import { ROOT } from './server.ts';

/**
 * Records how much processor time a test file took with all processes that it started, and how long it ran. Files with a
 * small share wait most of the time, and more of them can run at once: see vitest.config.ts.
 *
 *   DOORBUSTER_TEST_TIMES=times.tsv npm test
 *   sort -n times.tsv        seconds of processor time, seconds, share of a core, file
 *
 * Servers that all files share are not included. Linux only: Node does not tell the time of ended children.
 */
const TICKS_PER_SECOND = 100;

// The hook of a set-up file runs after those of the test file, which end its processes.
afterAll(() => {
  const fields = readFileSync('/proc/self/stat', 'utf8').split(') ')[1]!.split(' ');
  // User and system time of this process and of the children that it has waited for.
  const busyS = [11, 12, 13, 14].reduce((sum, at) => sum + Number(fields[at]), 0) / TICKS_PER_SECOND;
  const tookS = process.uptime();
  const file = relative(ROOT, expect.getState().testPath ?? '?');
  const line = [busyS.toFixed(1), tookS.toFixed(1), (busyS / tookS).toFixed(2), file].join('\t');
  appendFileSync(process.env.DOORBUSTER_TEST_TIMES!, `${line}\n`);
});
