// Compares an old commit with the work tree in alternating pairs, with A/A pairs (old beside old) in the same rounds.
import { parseArgs } from 'node:util';
import { cleanUpServers } from '../test/support/servers/clean-up.ts';
import { checkOut, commitOf, provideAdaptor } from './compare/checkouts.ts';
import { type Running, SCENARIOS, type Scenario } from './compare/scenarios.ts';
import { BOUND, type Interval, type Judgement, judge, type Round, turnsOf } from './compare/statistics.ts';
import { median, ROOT, report } from './support.ts';

const USAGE = `usage: npm run bench -- compare OLD [NEW] [--scenario orders,gate,ledger,pay,shop] [--pairs 10] [--json file]
  OLD, NEW  any git revision; without NEW: the work tree as it is`;
const PAIRS_MIN = 10;
/** Exit codes. If a commit differs from itself by more than 10 % on this machine, the run cannot show that nothing is slower. */
const FAILED = 1;
const UNKNOWN = 3;
const GROUPS = [...new Set(SCENARIOS.map(({ group }) => group))];
const SIDES = ['old', 'new', 'again'] as const;
type Side = (typeof SIDES)[number];

/** Per side and round. Slices are short, so that other load on the machine affects all sides alike. */
const WARM_UP_MS = 800;
const SLICE_MS = 500;
const SLICES = 6;

interface Sample {
  perSecond: number;
  /** CPU time of the measured process per order; null without /proc. */
  cpuUs: number | null;
}

interface Measured {
  scenario: Scenario;
  samples: Record<Side, Sample[]>;
}

interface Options {
  old: string;
  new: string | null;
  scenarios: Scenario[];
  pairs: number;
  json: string | null;
}

function optionsOf(args: string[]): Options | string {
  try {
    const { values, positionals } = parseArgs({
      args,
      allowPositionals: true,
      options: { scenario: { type: 'string' }, pairs: { type: 'string' }, json: { type: 'string' } },
    });
    const [old, fresh, ...rest] = positionals;
    if (old === undefined || rest.length > 0) return 'give one or two revisions';
    const groups = values.scenario?.split(',') ?? GROUPS.filter((group) => group !== 'shop');
    const unknown = groups.find((group) => !GROUPS.includes(group));
    if (unknown !== undefined) return `there is no scenario ${unknown}`;
    const pairs = Number(values.pairs ?? PAIRS_MIN);
    if (!Number.isInteger(pairs) || pairs < 2) return '--pairs must be a whole number from 2';
    return {
      old: commitOf(old),
      new: fresh === undefined ? null : commitOf(fresh),
      scenarios: SCENARIOS.filter(({ group }) => groups.includes(group)),
      pairs,
      json: values.json ?? null,
    };
  } catch (error) {
    return error instanceof Error && 'status' in error ? 'git does not know that revision' : String(error);
  }
}

export async function run(args: string[]): Promise<void> {
  const options = optionsOf(args);
  if (typeof options === 'string') {
    console.error(`${options}\n${USAGE}`);
    process.exit(2);
  }
  if (options.pairs < PAIRS_MIN) console.error(`fewer than ${PAIRS_MIN} pairs: a first look, not a verdict`);
  const checkouts: Record<Side, string> = {
    old: checkOut(options.old),
    again: checkOut(options.old),
    new: options.new === null ? ROOT : checkOut(options.new),
  };
  const all: Measured[] = options.scenarios.map((scenario) => ({ scenario, samples: { old: [], new: [], again: [] } }));
  for (const { scenario } of all) {
    if (scenario.adaptor !== null) for (const side of SIDES) provideAdaptor(checkouts[side], scenario.adaptor);
  }
  for (let pair = 1; pair <= options.pairs; pair++) {
    for (const { scenario, samples } of all) {
      const round = await measure(scenario, checkouts, pair);
      for (const side of SIDES) samples[side].push(round[side]);
      const seen = SIDES.map((side) => `${side} ${Math.round(samples[side].at(-1)!.perSecond)}/s`);
      console.error(`pair ${pair} of ${options.pairs}: ${scenario.name}: ${seen.join(', ')}`);
    }
  }

  const judged = all.map((measured) => ({ ...measured, judgement: judge(roundsOf(measured.samples)) }));
  const failed = judged.filter(({ judgement }) => judgement.failed).map(({ scenario }) => scenario.name);
  report(
    'compare',
    { [`${options.new?.slice(0, 7) ?? 'the work tree'} beside ${options.old.slice(0, 7)}`]: judged.map(rowOf) },
    [
      'a network, and machines of their own: load, server and stores share this one',
      'latency at a rate below the maximum, memory, long runs',
      'differences below the A/A spread: more --pairs make it smaller',
    ],
    {
      old: options.old,
      new: options.new,
      pairs: options.pairs,
      bound: BOUND,
      failed,
      scenarios: judged.map(({ scenario: { name }, judgement, samples }) => ({ name, ...judgement, samples })),
    },
    options.json === null ? [] : [options.json],
  );
  const unknown = judged.filter(({ judgement }) => judgement.noisy && !judgement.failed);
  if (failed.length > 0) console.log(`Slower than before: ${failed.join('; ')}`);
  if (unknown.length > 0) {
    console.log(
      `Too noisy to say: ${unknown.map(({ scenario }) => scenario.name).join('; ')}. Let the machine rest, or take more --pairs.`,
    );
  }
  if (failed.length + unknown.length === 0) console.log('No scenario has become slower.');
  await cleanUpServers();
  process.exit(failed.length > 0 ? FAILED : unknown.length > 0 ? UNKNOWN : 0);
}

/** One round: starts all sides, warms them up, and measures them in turns, in several short slices each. */
async function measure(
  scenario: Scenario,
  checkouts: Record<Side, string>,
  pair: number,
): Promise<Record<Side, Sample>> {
  const running = {} as Record<Side, Running>;
  const sums = Object.fromEntries(SIDES.map((side) => [side, { done: 0, ms: 0, cpuMs: 0 }])) as Record<Side, Sum>;
  for (const side of turnsOf(SIDES, pair)) running[side] = await scenario.open(checkouts[side], side);
  for (const side of turnsOf(SIDES, pair)) await running[side].run(WARM_UP_MS);
  for (let slice = 0; slice < SLICES; slice++) {
    for (const side of turnsOf(SIDES, pair + slice)) {
      const before = running[side].cpuMs();
      const { done, ms, unexpected } = await running[side].run(SLICE_MS);
      const after = running[side].cpuMs();
      if (unexpected > 0) throw new Error(`${scenario.name}, ${side}: ${unexpected} other answers than expected`);
      const sum = sums[side];
      sum.done += done;
      sum.ms += ms;
      sum.cpuMs += before === null || after === null ? Number.NaN : after - before;
    }
  }
  for (const side of SIDES) await running[side].end();
  const sampleOf = ({ done, ms, cpuMs }: Sum): Sample => {
    return { perSecond: (done * 1000) / ms, cpuUs: Number.isNaN(cpuMs) ? null : (cpuMs * 1000) / done };
  };
  return { old: sampleOf(sums.old), new: sampleOf(sums.new), again: sampleOf(sums.again) };
}

interface Sum {
  done: number;
  ms: number;
  cpuMs: number;
}

function roundsOf(samples: Record<Side, Sample[]>): Round[] {
  return samples.old.map((old, round) => ({
    old: old.perSecond,
    again: samples.again[round]!.perSecond,
    new: samples.new[round]!.perSecond,
  }));
}

function rowOf({ scenario, samples, judgement }: Measured & { judgement: Judgement }): Record<string, unknown> {
  const rate = (side: Side): number => Math.round(median(samples[side].map(({ perSecond }) => perSecond)));
  const { change, same, spread, failsBelow } = judgement;
  return {
    scenario: scenario.name,
    'old/s': rate('old'),
    'new/s': rate('new'),
    'new : old': words(change),
    'A/A': words(same),
    'A/A spread': Number(spread.toFixed(3)),
    'fails below': Number(failsBelow.toFixed(3)),
    'CPU new : old': cpuRatio(samples, 'new'),
    'CPU A/A': cpuRatio(samples, 'again'),
    verdict: verdictOf(judgement),
  };
}

function words({ median, low, high }: Interval): string {
  return `${median.toFixed(3)} (${low.toFixed(3)} to ${high.toFixed(3)})`;
}

/** Informative only, but steadier than throughput on a shared machine. */
function cpuRatio(samples: Record<Side, Sample[]>, side: Side): number | null {
  const ratios = samples.old.flatMap(({ cpuUs }, round) => {
    const other = samples[side][round]!.cpuUs;
    return cpuUs === null || other === null ? [] : [other / cpuUs];
  });
  return ratios.length === 0 ? null : Number(median(ratios).toFixed(3));
}

function verdictOf({ failed, noisy, change }: Judgement): string {
  if (failed) return 'FAILS';
  if (noisy) return 'too noisy to say';
  return change.median < BOUND ? 'passes within the spread' : 'passes';
}
