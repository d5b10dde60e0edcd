import { spawnSync } from 'node:child_process';
import { existsSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import type { LockAdapter } from './locks/adapter.ts';
import { away } from './locks/away.ts';
import { type Chosen, type Crowd, excludes, measure, type Outcome } from './locks/crowd.ts';
import { Server } from './locks/server.ts';
import { median, ROOT, report } from './support.ts';

/**
 * Our locks beside the libraries people use, and beside the floor: SET NX and a compare-and-delete by hand. All in one run
 * on one private Redis, the client processes apart from this one.
 *
 * Each library has several settings. Round 0 tries them all; the best of each library, in each measurement, go into the
 * rounds that count, in an order that turns from round to round. In a quick run the crowds have round 0 alone.
 */
const FLOOR = 'raw floor';
const OURS = 'doorbuster';
const FILES = [
  'locks/doorbuster.ts',
  'baselines/locks/floor.ts',
  'baselines/locks/redlock.ts',
  'baselines/locks/sesamecare-redlock.ts',
  'baselines/locks/redlock-universal.ts',
  'baselines/locks/redis-semaphore.ts',
  'baselines/locks/simple-redis-mutex.ts',
  'baselines/locks/node-redisson.ts',
];
const WAITERS = [20, 10, 1000, 10_000];
const PARALLEL = [1, 64];

/** The libraries are a package of their own: nobody who uses the project installs them. */
function install(): void {
  const folder = join(ROOT, 'bench/baselines/locks');
  const lock = join(folder, 'package-lock.json');
  const installed = join(folder, 'node_modules/.package-lock.json');
  if (existsSync(installed) && statSync(installed).mtimeMs >= statSync(lock).mtimeMs) return;
  console.error('installing the libraries (once)…');
  const npm = spawnSync('npm', ['install', '--no-audit', '--no-fund', '--loglevel=error'], {
    cwd: folder,
    stdio: ['ignore', 'ignore', 'inherit'],
    shell: process.platform === 'win32',
  });
  if (npm.status !== 0) throw new Error('npm install failed in bench/baselines/locks; see the lines above');
  // npm leaves the file alone when nothing changed; touch it, or every run would install again.
  const now = new Date();
  if (existsSync(installed)) utimesSync(installed, now, now);
}

interface Setting extends Chosen {
  library: string;
  settings: string;
  only: LockAdapter['only'];
}

async function settingsOf(file: string): Promise<Setting[]> {
  const { adapters } = (await import(new URL(file, import.meta.url).href)) as { adapters: LockAdapter[] };
  return adapters.map(({ name, settings, only }, index) => ({ file, index, library: name, settings, only }));
}

type Score = (outcome: Outcome) => number;

/**
 * What the libraries are compared by. Hand-overs are counted twice, since a lock that lets two waiters of one process throw
 * it to and fro while the rest starve has many of the first kind; grants per second say even less, they count the holder
 * who takes it again before anybody noticed.
 */
const SCORES: Record<'uncontended' | 'contended', Record<string, Score>> = {
  uncontended: { 'pairs/s': ({ grantsPerSecond }) => grantsPerSecond },
  contended: {
    'hand-overs/s': ({ handOversPerSecond }) => handOversPerSecond,
    'across/s': ({ acrossPerSecond }) => acrossPerSecond,
  },
};

/** One kind of crowd, and what every library did in it. */
class Measurement {
  readonly title: string;
  readonly kind: 'uncontended' | 'contended';
  readonly processes: number;
  readonly waiters: number;
  readonly scores: Record<string, Score>;
  readonly #tried = new Map<Setting, Outcome>();
  readonly #rounds = new Map<Setting, Outcome[]>();

  constructor(kind: 'uncontended' | 'contended', waiters: number) {
    this.title = kind === 'uncontended' ? `uncontended, ${waiters} at a time` : `one lock, ${waiters} waiters`;
    this.kind = kind;
    this.processes = kind === 'uncontended' ? 1 : 4;
    this.waiters = waiters;
    this.scores = SCORES[kind];
  }

  async #run(server: Server, setting: Setting, warmMs: number, durationMs: number): Promise<Outcome> {
    const crowd: Crowd = {
      processes: this.processes,
      waiters: this.waiters,
      names: this.kind === 'uncontended' ? 'own' : 'shared',
      // Thousands of waiters take a while to have asked for the first time.
      warmMs: this.waiters >= 10_000 ? 3 * warmMs : warmMs,
      durationMs,
    };
    const outcome = await measure(server, setting, crowd);
    const { violations, trouble, p50Ms, grantsPerSecond } = outcome;
    const seen = Object.entries(this.scores).map(([name, score]) => `${score(outcome).toFixed(0)} ${name}`);
    if (this.kind === 'contended') seen.push(`${grantsPerSecond.toFixed(0)} grants/s`, `p50 ${fixed(p50Ms)} ms`);
    if (violations > 0) seen.push(`${violations} VIOLATIONS`);
    if (trouble !== null) seen.push(trouble);
    console.error(`  ${setting.library} (${setting.settings}): ${seen.join(', ')}`);
    return outcome;
  }

  async tryAll(server: Server, settings: Setting[], warmMs: number, durationMs: number): Promise<void> {
    const mine = settings.filter(({ only }) => only === undefined || only === this.kind);
    for (const setting of mine) this.#tried.set(setting, await this.#run(server, setting, warmMs, durationMs));
  }

  async round(server: Server, round: number, warmMs: number, durationMs: number): Promise<void> {
    const settings = this.finalists();
    // Nobody always goes first, or always after the same one.
    const turn = Math.floor(round / 2) % settings.length;
    const order = [...settings.slice(turn), ...settings.slice(0, turn)];
    for (const setting of round % 2 === 0 ? order : order.reverse()) {
      const outcomes = this.#rounds.get(setting) ?? [];
      outcomes.push(await this.#run(server, setting, warmMs, durationMs));
      this.#rounds.set(setting, outcomes);
    }
  }

  /** Each library's best settings by each score. */
  finalists(): Setting[] {
    // A single trial is not sure to find the better of two: what the targets hang on stays whole, the floor without waiters
    // and our two kinds with them.
    const whole = this.kind === 'uncontended' ? FLOOR : OURS;
    const sure = [...this.#tried.keys()].filter(({ library }) => library === whole);
    const best = new Set<Setting>(sure);
    for (const library of new Set([...this.#tried.keys()].map((setting) => setting.library))) {
      for (const score of Object.values(this.scores)) {
        const mine = [...this.#tried].filter(([setting]) => setting.library === library);
        const better = (a: (typeof mine)[0], b: (typeof mine)[0]) => (score(b[1]) > score(a[1]) ? b : a);
        best.add(mine.reduce(better)[0]);
        const serving = mine.filter(([, outcome]) => outcome.served >= SERVED_MIN);
        if (serving.length > 0) best.add(serving.reduce(better)[0]);
      }
    }
    return [...best];
  }

  outcomes(setting: Setting): Outcome[] {
    return this.#rounds.get(setting) ?? [this.#tried.get(setting)!];
  }

  of(setting: Setting | null, figure: (outcome: Outcome) => number | null): number | null {
    if (setting === null) return null;
    const figures = this.outcomes(setting)
      .map(figure)
      .filter((value) => value !== null);
    return figures.length > 0 ? median(figures) : null;
  }

  /** The best by a score, of one library or of all libraries but ours and the floor. */
  leader(score: Score, library?: string): Setting | null {
    let best: Setting | null = null;
    for (const setting of this.finalists()) {
      const counts = library === undefined ? ![OURS, FLOOR].includes(setting.library) : setting.library === library;
      if (!counts || (library === undefined && this.starves(setting))) continue;
      if (best === null || this.of(setting, score)! > this.of(best, score)!) best = setting;
    }
    return best;
  }

  /** Hardly any waiter ever gets the lock: two of them throw it to and fro. Shown in the table, but nobody's best. */
  starves(setting: Setting): boolean {
    return this.kind === 'contended' && (this.of(setting, (outcome) => outcome.served) ?? 1) < SERVED_MIN;
  }

  /** The median of the rounds' ratios. */
  ratio(score: Score, setting: Setting | null, other: Setting | null): number | null {
    if (setting === null || other === null) return null;
    const theirs = this.outcomes(other);
    const ratios = this.outcomes(setting).map((outcome, round) => score(outcome) / score(theirs[round]!));
    const known = ratios.filter((ratio) => Number.isFinite(ratio));
    return known.length > 0 ? median(known) : null;
  }

  rows(): Record<string, unknown>[] {
    return this.finalists().map((setting) => {
      const row: Record<string, unknown> = { library: setting.library, settings: setting.settings };
      for (const [name, score] of Object.entries(this.scores)) {
        const short = name === 'across/s' ? 'across, ' : '';
        row[name] = fixed(this.of(setting, score), 0);
        row[`${short}of floor`] = fixed(this.ratio(score, setting, this.leader(score, FLOOR)), 3);
        row[`${short}of best`] = fixed(this.ratio(score, setting, this.leader(score)), 3);
      }
      const figure = (of: (outcome: Outcome) => number | null, digits?: number) => fixed(this.of(setting, of), digits);
      const commands = figure(({ commandsPerGrant }) => commandsPerGrant, 1);
      const outcomes = this.outcomes(setting);
      if (this.kind === 'uncontended') {
        row.commands = commands;
      } else {
        row['grants/s'] = figure(({ grantsPerSecond }) => grantsPerSecond, 0);
        row['p50 ms'] = figure(({ p50Ms }) => p50Ms);
        row['p95 ms'] = figure(({ p95Ms }) => p95Ms);
        row['p99 ms'] = figure(({ p99Ms }) => p99Ms);
        row.fairness = figure(({ fairness }) => fairness);
        row.commands = commands;
        row.violations = outcomes.reduce((sum, { violations }) => sum + violations, 0);
      }
      row.trouble = outcomes.find(({ trouble }) => trouble !== null)?.trouble ?? null;
      return row;
    });
  }

  tried(): Record<string, unknown>[] {
    return [...this.#tried].map(([{ library, settings }, outcome]) => ({
      measurement: this.title,
      library,
      settings,
      ...outcome,
    }));
  }

  rounds(): Record<string, unknown>[] {
    return [...this.#rounds].map(([{ library, settings }, outcomes]) => ({
      measurement: this.title,
      library,
      settings,
      outcomes,
    }));
  }
}

function fixed(value: number | null, digits = 2): number | null {
  return value === null ? null : Number(value.toFixed(digits));
}

/** Settings under which fewer of the waiters than this ever get the lock are not a library's best. */
const SERVED_MIN = 0.25;
const HAND_OVERS = SCORES.contended['hand-overs/s']!;

/** What a grant costs as the crowd grows, each library with the settings that hand over most often in that crowd. */
function costRows(measurements: Measurement[], libraries: string[]): Record<string, unknown>[] {
  const contended = measurements.filter(({ kind }) => kind === 'contended');
  return libraries.map((library) => {
    const row: Record<string, unknown> = { library };
    const figures: [string, (outcome: Outcome) => number | null][] = [
      ['CPU µs', ({ serverCpuUs }) => serverCpuUs],
      ['wall µs', ({ wallUs }) => wallUs],
    ];
    for (const [name, figure] of figures) {
      const at = (waiters: number): number | null => {
        const measurement = contended.find((each) => each.waiters === waiters)!;
        return measurement.of(measurement.leader(HAND_OVERS, library), figure);
      };
      for (const waiters of [10, 1000, 10_000]) row[`${name}, ${waiters}`] = fixed(at(waiters), 1);
      const [few, many] = [at(10), at(10_000)];
      row[`${name}, 10000 : 10`] = few !== null && many !== null ? fixed(many / few) : null;
    }
    const crowded = contended.find(({ waiters }) => waiters === 10_000)!;
    const leader = crowded.leader(HAND_OVERS, library)!;
    row.trouble = crowded.outcomes(leader).find(({ trouble }) => trouble !== null)?.trouble ?? null;
    return row;
  });
}

interface Verdict {
  target: string;
  figure: number | null;
  verdict: 'pass' | 'miss' | 'not measured' | 'no target';
}

/** Round trips a second of one client that is alone, in a process of its own: see round-trips.ts. */
function tripsAlone(server: Server, durationMs: number): number {
  const file = join(ROOT, 'bench/locks/round-trips.ts');
  const { port } = new URL(server.url);
  const child = spawnSync(process.execPath, [file, port, String(durationMs)], { encoding: 'utf8' });
  if (child.status !== 0) throw new Error(`round-trips.ts failed: ${child.stderr}`);
  return Number(child.stdout);
}

function targets(measurements: Measurement[], costs: Record<string, unknown>[], trips: number): Verdict[] {
  const verdicts: Verdict[] = [];
  const judge = (target: string, figure: number | null, passes: (figure: number) => boolean): void => {
    const verdict = figure === null ? 'not measured' : passes(figure) ? 'pass' : 'miss';
    verdicts.push({ target, figure: fixed(figure, 3), verdict });
  };
  for (const measurement of measurements) {
    const { title, kind, waiters } = measurement;
    if (kind === 'contended' && waiters !== 20 && waiters !== 1000) continue;
    for (const [name, score] of Object.entries(measurement.scores)) {
      const ours = measurement.leader(score, OURS);
      const best = measurement.leader(score);
      const ahead = measurement.ratio(score, ours, best);
      if (kind === 'uncontended') {
        const floor = measurement.leader(score, FLOOR);
        judge(`${title}: at least 0.9 of the floor`, measurement.ratio(score, ours, floor), (ratio) => ratio >= 0.9);
        judge(`${title}: ahead of every library (${best?.library})`, ahead, (ratio) => ratio > 1);
      } else {
        const starving = measurement.finalists().filter((setting) => measurement.starves(setting));
        for (const setting of starving.filter(({ library }) => ![OURS, FLOOR].includes(library))) {
          const served = measurement.of(setting, (outcome) => outcome.served)!;
          const figure = Math.round(measurement.of(setting, score)!);
          console.log(
            `not counted as best: ${setting.library} (${setting.settings}): ${figure} ${name} among ${Math.round(served * waiters)} of ${waiters} waiters`,
          );
        }
        judge(
          `${title}: ${name === 'across/s' ? 'hand-overs/s across processes' : name} at least 5 × the best library (${best?.library})`,
          ahead,
          (ratio) => ratio >= 5,
        );
      }
    }
    if (kind === 'uncontended') continue;
    // A hand-over needs a release to reach Redis and its news to reach the next: one round trip.
    const handed = measurement.of(measurement.leader(HAND_OVERS, OURS), HAND_OVERS);
    verdicts.push({
      target: `${title}: hand-overs/s as a share of the round trips/s of one client alone`,
      figure: handed === null ? null : fixed(handed / trips, 3),
      verdict: 'no target',
    });
    const p50Ms = measurement.of(measurement.leader(HAND_OVERS, OURS), (outcome) => outcome.p50Ms);
    judge(`${title}: hand-over p50 at most 1.5 ms`, p50Ms, (ms) => ms <= 1.5);
  }
  const cost = costs.find(({ library }) => library === OURS) ?? {};
  for (const what of ['CPU µs', 'wall µs']) {
    const growth = (cost[`${what}, 10000 : 10`] ?? null) as number | null;
    judge(
      `${what === 'CPU µs' ? 'server CPU' : 'wall time'} per grant with 10000 waiters at most 2 × that with 10`,
      growth,
      (ratio) => ratio <= 2,
    );
  }
  return verdicts;
}

export async function run(args: string[]): Promise<void> {
  if (args.includes('--away')) return await away(args);
  const quick = args.includes('--quick');
  // For work on one adapter: --only=redlock,doorbuster (the floor always runs, or there is nothing to compare with).
  const only = args
    .find((arg) => arg.startsWith('--only='))
    ?.slice('--only='.length)
    .split(',');
  const rounds = quick ? { uncontended: 1, contended: 0 } : { uncontended: 3, contended: 3 };
  const [tryWarmMs, tryMs] = [400, 1000] as const;
  const [warmMs, durationMs] = [1000, 3000] as const;

  install();
  const server = await Server.start();

  const settings: Setting[] = [];
  const leftOut: { library: string; why: string }[] = [];
  console.error('checking that they exclude…');
  for (const file of FILES) {
    const mine = await settingsOf(file);
    const { library } = mine[0]!;
    if (only !== undefined && library !== FLOOR && !only.includes(library)) continue;
    const wrong: string[] = [];
    const raised: number[] = [];
    for (const setting of mine.filter((each) => each.only !== 'uncontended')) {
      const check = await excludes(server, setting);
      raised.push(check.raised);
      if (check.trouble !== null) wrong.push(`${setting.settings}: ${check.trouble}`);
    }
    console.error(`  ${library}: ${wrong.length === 0 ? `excludes (${raised.join(', ')} times)` : wrong.join('; ')}`);
    // What fails the check for one of its settings is not measured at all: its figures would say nothing about a lock.
    if (wrong.length === 0) settings.push(...mine);
    else leftOut.push({ library, why: wrong.join('; ') });
  }

  const measurements = [
    ...PARALLEL.map((waiters) => new Measurement('uncontended', waiters)),
    ...WAITERS.map((waiters) => new Measurement('contended', waiters)),
  ];
  let few: Measurement | null = null;
  for (const measurement of measurements) {
    console.error(`round 0: ${measurement.title}`);
    // What is best for 20 waiters is best for 10.
    const tried = measurement.waiters === 10 && few !== null ? few.finalists() : settings;
    await measurement.tryAll(server, tried, tryWarmMs, tryMs);
    if (measurement.waiters === 20) few = measurement;
  }
  const alone: number[] = [];
  for (let round = 1; round <= rounds.uncontended; round++) {
    alone.push(tripsAlone(server, durationMs / 3));
    console.error(`round ${round}: one client alone, round trips/s: ${alone.at(-1)!.toFixed(0)}`);
    for (const measurement of measurements) {
      if (round > rounds[measurement.kind]) continue;
      console.error(`round ${round} of ${rounds[measurement.kind]}: ${measurement.title}`);
      // Without waiters a figure hangs on whether the cores fell asleep in between: more and shorter turns.
      const turns = measurement.kind === 'uncontended' ? 3 : 1;
      for (let turn = 0; turn < turns; turn++) {
        await measurement.round(server, turns * round + turn, warmMs / turns, durationMs / turns);
      }
    }
  }

  const trips = median(alone);
  const libraries = [...new Set(settings.map(({ library }) => library))];
  const tables = Object.fromEntries(measurements.map((measurement) => [measurement.title, measurement.rows()]));
  const costs = costRows(measurements, libraries);
  tables['cost of a grant'] = costs;
  tables.targets = targets(measurements, costs, trips).map((verdict) => ({ ...verdict }));
  if (leftOut.length > 0) tables['left out'] = leftOut;
  report(
    'locks',
    tables,
    [
      'a network: clients and Redis share the machine and its two cores, so a command costs tens of microseconds, not hundreds',
      'several Redis servers: the Redlock libraries run with one, their best case',
      'work under the lock: nobody holds it for longer than it takes to give it back',
      'locks that run out, holders that crash, a Redis that restarts',
      'how long an unlucky waiter waits: fairness is over the whole measurement',
    ],
    {
      rounds,
      durationMs,
      tryMs,
      alonePerSecond: trips,
      tried: measurements.flatMap((measurement) => measurement.tried()),
      outcomes: measurements.flatMap((measurement) => measurement.rounds()),
    },
  );
  // Redis and whatever else is still there goes with this process.
  process.exit(0);
}
