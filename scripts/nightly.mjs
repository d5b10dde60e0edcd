// Runs many random histories of the locks, several at once: `npm run test:nightly [-- <how many>] [--from <seed>] [--at-once <n>]`.
// Prints the seed of each history that breaks a promise, with what happened, and then exits with 1.
// `HISTORY_SEED=<seed> npx vitest run test/history` replays one.
import { parseArgs } from 'node:util';
import { check, report } from '../test/history/check.ts';
import { Stage } from '../test/history/run.ts';
import { scheduleOf } from '../test/history/schedule.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { from: { type: 'string' }, 'at-once': { type: 'string', default: '2' } },
});
const count = Number(positionals[0] ?? 1000);
const from = values.from === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(values.from);
const atOnce = Number(values['at-once']);
const PROGRESS_EVERY = 25;
const REPORTS_MAX = 20;

const began = performance.now();
const broken = [];
const byRule = {};
let begun = 0;
let ended = 0;
let grants = 0;
let faults = 0;

async function play(stage) {
  while (begun < count) {
    const seed = (from + begun++) % 2 ** 31;
    const history = await stage.run(scheduleOf(seed));
    const violations = check(history);
    ended++;
    grants += history.events.filter(({ e }) => e === 'acquired').length;
    faults += history.troubles.length + history.killed.length;
    if (violations.length > 0) {
      broken.push(seed);
      for (const { rule } of violations) byRule[rule] = (byRule[rule] ?? 0) + 1;
      if (broken.length <= REPORTS_MAX) console.log(report(history, violations));
    }
    if (ended % PROGRESS_EVERY === 0) {
      const seconds = Math.round((performance.now() - began) / 1000);
      console.log(`${ended} of ${count} histories, ${broken.length} broken, ${seconds} s`);
    }
  }
}

console.log(`histories of the locks: ${count} from seed ${from}, ${atOnce} at once`);
const stage = new Stage();
try {
  await stage.warm(4 * atOnce);
  await Promise.all(Array.from({ length: atOnce }, () => play(stage)));
} finally {
  await stage[Symbol.asyncDispose]();
}
const seconds = ((performance.now() - began) / 1000).toFixed(0);
console.log(`${ended} histories, ${grants} grants, ${faults} faults in ${seconds} s`);
if (broken.length > 0) {
  console.log(`${broken.length} broken: ${JSON.stringify(byRule)}\nseeds: ${broken.join(' ')}`);
  process.exitCode = 1;
}
