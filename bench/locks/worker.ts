// One client process of the lock benchmark: so many loops of acquire and release over one client of one library, from `go`
// until `stop`. The argument is the job as JSON; what it saw goes to the parent as one message.
import { readFileSync, writeFileSync } from 'node:fs';
import type { LockAdapter } from './adapter.ts';

export interface WorkerJob {
  /** The adapter: its module, below `bench/`, and which of its settings. */
  file: string;
  index: number;
  url: string;
  /** Loops in this process, and the number of the first among all processes. */
  loops: number;
  first: number;
  /** A lock each, or one for all. */
  names: 'own' | 'shared';
  /** The clock's zero, in ns: the monotonic clock is common to the processes of a machine, but too big for a number. */
  base: string;
  /** Instead of measuring: a file with a counter that the loops raise under the lock. */
  counter?: string;
}

export interface WorkerReport {
  /** For each grant: when acquire resolved, when release was called (ns), which loop. */
  grants: Float64Array;
  errors: number;
  lastError: string | null;
}

/** Grows by chunks: a plain array of numbers would be copied in the middle of the measurement. */
class Grants {
  readonly #full: Float64Array[] = [];
  #chunk = new Float64Array(3 * 65_536);
  #length = 0;

  add(acquiredAt: number, releaseCalledAt: number, loop: number): void {
    if (this.#length === this.#chunk.length) {
      this.#full.push(this.#chunk);
      this.#chunk = new Float64Array(3 * 65_536);
      this.#length = 0;
    }
    this.#chunk[this.#length++] = acquiredAt;
    this.#chunk[this.#length++] = releaseCalledAt;
    this.#chunk[this.#length++] = loop;
  }

  all(): Float64Array {
    const last = this.#chunk.subarray(0, this.#length);
    const all = new Float64Array(this.#full.length * this.#chunk.length + last.length);
    for (const [at, chunk] of this.#full.entries()) all.set(chunk, at * chunk.length);
    all.set(last, this.#full.length * this.#chunk.length);
    return all;
  }
}

const job = JSON.parse(process.argv[2]!) as WorkerJob;
const base = BigInt(job.base);
const now = (): number => Number(process.hrtime.bigint() - base);
const grants = new Grants();
let errors = 0;
let lastError: string | null = null;

function failed(error: unknown): void {
  errors++;
  lastError = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
}

process.on('disconnect', () => process.exit(0));
// Some libraries let a promise go; the measurement goes on and says so.
process.on('unhandledRejection', failed);

const { adapters } = (await import(new URL(`../${job.file}`, import.meta.url).href)) as { adapters: LockAdapter[] };
const client = await adapters[job.index]!.open(job.url);

async function loop(number: number): Promise<void> {
  const name = job.names === 'own' ? `lock-${number}` : 'lock';
  for (;;) {
    try {
      const release = await client.acquire(name);
      const acquiredAt = now();
      const releaseCalledAt = now();
      grants.add(acquiredAt, releaseCalledAt, number);
      await release();
    } catch (error) {
      failed(error);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }
}

async function raise(file: string, number: number): Promise<void> {
  for (;;) {
    const release = await client.acquire('lock');
    const acquiredAt = now();
    const seen = Number(readFileSync(file, 'utf8'));
    await new Promise((resolve) => setTimeout(resolve, 1));
    writeFileSync(file, String(seen + 1));
    grants.add(acquiredAt, now(), number);
    await release();
  }
}

function leave(): void {
  const report: WorkerReport = { grants: grants.all(), errors, lastError };
  process.send!(report, () => process.exit(0));
}

process.on('message', async (message) => {
  if (message === 'stop') return leave();
  const loops = Array.from({ length: job.loops }, (_, at) =>
    job.counter === undefined ? loop(job.first + at) : raise(job.counter, job.first + at),
  );
  await Promise.all(loops).catch(failed);
});
process.send!('ready');
