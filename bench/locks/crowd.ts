import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { adopt, ROOT, temporaryFolder } from '../support.ts';
import type { Server } from './server.ts';
import type { WorkerJob, WorkerReport } from './worker.ts';

export interface Crowd {
  processes: number;
  waiters: number;
  names: 'own' | 'shared';
  warmMs: number;
  durationMs: number;
}

export interface Outcome {
  grantsPerSecond: number;
  /** Grants whose holder before was another waiter: one who releases and takes at once hands nothing over. */
  handOversPerSecond: number;
  /** Those of them whose holder before was in another process. */
  acrossPerSecond: number;
  /** From the call of release to the next waiter's resolved acquire; grants to the same waiter are not among them. */
  p50Ms: number | null;
  p95Ms: number | null;
  p99Ms: number | null;
  /** The same over all grants. */
  anyP50Ms: number | null;
  commandsPerGrant: number | null;
  calls: Record<string, number>;
  serverCpuUs: number | null;
  wallUs: number | null;
  /** The share of the waiters that had the lock at least once. */
  served: number;
  /** Jain's index over the waiters' grants: 1 when all had as many, 1/n when one of n had them all. */
  fairness: number;
  violations: number;
  errors: number;
  /** What went wrong, when something did. */
  trouble: string | null;
}

/** Time for a process to come up or to hand its records over; a swamped one is given this much and no more. */
const PATIENCE_MS = 20_000;

class Worker {
  readonly #child: ChildProcess;
  readonly #gone: Promise<never>;
  #stderr = '';

  constructor(job: WorkerJob, root: string) {
    const child = fork(join(root, 'bench/locks/worker.ts'), [JSON.stringify(job)], {
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      env: { ...process.env, NODE_NO_WARNINGS: '1' },
    });
    this.#child = adopt(child);
    child.stderr!.on('data', (chunk: Buffer) => {
      this.#stderr = (this.#stderr + chunk).slice(-4000);
    });
    this.#gone = new Promise((_, reject) => {
      child.on('close', (code, signal) => {
        const said = /^\S*Error.*$/m.exec(this.#stderr)?.[0] ?? this.#stderr.trim().split('\n').at(-1);
        reject(new Error(`a client process ended with ${code ?? signal}${said ? `: ${said}` : ''}`));
      });
    });
    this.#gone.catch(() => undefined);
  }

  async message<T>(what: string, patienceMs: number): Promise<T> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`a client process ${what} in ${patienceMs / 1000} s`)), patienceMs);
    });
    try {
      const [message] = await Promise.race([once(this.#child, 'message'), this.#gone, late]);
      return message as T;
    } finally {
      clearTimeout(timer);
    }
  }

  send(message: 'go' | 'stop'): void {
    if (this.#child.connected) this.#child.send(message);
  }

  async end(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#gone.catch(() => undefined);
  }
}

function workers(url: string, adapter: Chosen, crowd: Pick<Crowd, 'processes' | 'waiters' | 'names'>, base: bigint) {
  const { processes, waiters, names } = crowd;
  return Array.from({ length: processes }, (_, at) => {
    const first = Math.floor((waiters * at) / processes);
    const loops = Math.floor((waiters * (at + 1)) / processes) - first;
    const { file, index } = adapter;
    return { file, index, url, first, loops, names, base: String(base) } satisfies WorkerJob;
  });
}

export interface Chosen {
  /** The adapter's module, below `bench/`. */
  file: string;
  index: number;
  /** The tree that it is taken from; this one if none is given. */
  root?: string;
}

/** Lets a crowd at the locks for a while, and says what came of it. `url`: another way to the same server. */
export async function measure(server: Server, adapter: Chosen, crowd: Crowd, url = server.url): Promise<Outcome> {
  await server.clear();
  const base = process.hrtime.bigint();
  const now = (): number => Number(process.hrtime.bigint() - base);
  const started = workers(url, adapter, crowd, base).map((job) => new Worker(job, adapter.root ?? ROOT));
  try {
    await Promise.all(started.map((worker) => worker.message('did not come up', PATIENCE_MS)));
    for (const worker of started) worker.send('go');
    // Listening from now on: a process that dies in the middle says so when the measurement ends.
    const patienceMs = crowd.warmMs + crowd.durationMs + PATIENCE_MS;
    const reports = Promise.all(started.map((worker) => worker.message<WorkerReport>('did not answer', patienceMs)));
    reports.catch(() => undefined);
    const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
    await pause(crowd.warmMs);
    const before = await server.counters();
    const from = now();
    await pause(crowd.durationMs);
    const after = await server.counters();
    const to = now();
    for (const worker of started) worker.send('stop');
    return outcome(await reports, crowd, from, to, before, after);
  } catch (error) {
    return { ...outcome([], crowd, 0, 1, null, null), trouble: (error as Error).message };
  } finally {
    await Promise.all(started.map((worker) => worker.end()));
  }
}

function outcome(
  reports: WorkerReport[],
  crowd: Crowd,
  from: number,
  to: number,
  before: Awaited<ReturnType<Server['counters']>> | null,
  after: Awaited<ReturnType<Server['counters']>> | null,
): Outcome {
  const acquired: number[] = [];
  const released: number[] = [];
  const loops: number[] = [];
  const processes: number[] = [];
  for (const [process, { grants }] of reports.entries()) {
    for (let at = 0; at < grants.length; at += 3) {
      acquired.push(grants[at]!);
      released.push(grants[at + 1]!);
      loops.push(grants[at + 2]!);
      processes.push(process);
    }
  }
  const order = Uint32Array.from(acquired.keys()).sort((a, b) => acquired[a]! - acquired[b]!);
  const all: number[] = [];
  const handOvers: number[] = [];
  const had = new Float64Array(crowd.waiters);
  let grants = 0;
  let changed = 0;
  let violations = 0;
  for (const [at, grant] of order.entries()) {
    const inside = acquired[grant]! >= from && acquired[grant]! < to;
    if (inside) {
      grants++;
      had[loops[grant]!]!++;
    }
    if (at === 0 || crowd.names === 'own') continue;
    const before = order[at - 1]!;
    // Acquire resolves after the server granted, release is called before the server lets go: an overlap is a real one.
    if (acquired[grant]! < released[before]!) violations++;
    if (!inside) continue;
    const tookMs = (acquired[grant]! - released[before]!) / 1e6;
    all.push(tookMs);
    if (loops[grant] !== loops[before]) handOvers.push(tookMs);
    if (processes[grant] !== processes[before]) changed++;
  }
  const calls: Record<string, number> = {};
  let commands = 0;
  for (const [command, count] of after?.calls ?? []) {
    const made = count - (before!.calls.get(command) ?? 0);
    commands += made;
    if (made > 0 && grants > 0) calls[command] = Number((made / grants).toFixed(3));
  }
  const seconds = (to - from) / 1e9;
  const each = (value: number): number | null => (grants > 0 ? value / grants : null);
  handOvers.sort((a, b) => a - b);
  all.sort((a, b) => a - b);
  const errors = reports.reduce((sum, report) => sum + report.errors, 0);
  const lastError = reports.find((report) => report.lastError !== null)?.lastError;
  return {
    grantsPerSecond: grants / seconds,
    handOversPerSecond: handOvers.length / seconds,
    acrossPerSecond: changed / seconds,
    p50Ms: quantile(handOvers, 0.5),
    p95Ms: quantile(handOvers, 0.95),
    p99Ms: quantile(handOvers, 0.99),
    anyP50Ms: quantile(all, 0.5),
    commandsPerGrant: each(commands),
    calls,
    serverCpuUs: after === null ? null : each((after.cpuS - before!.cpuS) * 1e6),
    wallUs: each(seconds * 1e6),
    served: had.filter((count) => count > 0).length / crowd.waiters,
    fairness: grants > 0 ? grants ** 2 / (crowd.waiters * had.reduce((sum, count) => sum + count ** 2, 0)) : 0,
    violations,
    errors,
    trouble: errors > 0 ? `${errors} errors, the last: ${lastError}` : collapse(grants / seconds),
  };
}

/** Below this it is no use calling it a lock that is waited for: a free one does thousands. */
function collapse(grantsPerSecond: number): string | null {
  return grantsPerSecond < 100 ? `collapsed: ${grantsPerSecond.toFixed(1)} grants a second` : null;
}

function quantile(sorted: number[], share: number): number | null {
  return sorted.length === 0 ? null : sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!;
}

/**
 * Whether an adapter excludes: 8 waiters in 2 processes raise a counter in a file, reading and writing it apart. The
 * timestamps of a measurement would hardly show two holders at a time, since nobody holds for long.
 */
export async function excludes(server: Server, adapter: Chosen): Promise<{ raised: number; trouble: string | null }> {
  const crowd = { processes: 2, waiters: 8, names: 'shared' } as const;
  const counter = join(temporaryFolder(), 'counter');
  writeFileSync(counter, '0');
  await server.clear();
  const jobs = workers(server.url, adapter, crowd, process.hrtime.bigint());
  const started = jobs.map((job) => new Worker({ ...job, counter }, adapter.root ?? ROOT));
  try {
    await Promise.all(started.map((worker) => worker.message('did not come up', PATIENCE_MS)));
    for (const worker of started) worker.send('go');
    const reports = Promise.all(started.map((worker) => worker.message<WorkerReport>('did not answer', PATIENCE_MS)));
    reports.catch(() => undefined);
    await new Promise((resolve) => setTimeout(resolve, 700));
    for (const worker of started) worker.send('stop');
    let raised = 0;
    for (const { grants, lastError } of await reports) {
      raised += grants.length / 3;
      if (lastError !== null) return { raised, trouble: lastError };
    }
    const counted = Number(readFileSync(counter, 'utf8'));
    if (counted !== raised) return { raised, trouble: `does not exclude: raised ${raised} times to ${counted}` };
    return { raised, trouble: raised === 0 ? 'nobody got the lock' : null };
  } catch (error) {
    return { raised: 0, trouble: (error as Error).message };
  } finally {
    await Promise.all(started.map((worker) => worker.end()));
  }
}
