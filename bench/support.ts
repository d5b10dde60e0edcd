import { type ChildProcess, execFileSync, fork, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Job, Result } from './load/load.ts';

export const ROOT = fileURLToPath(new URL('../', import.meta.url));
export const SECRET = 'bench-secret-of-at-least-32-bytes!!';
export const ADMIN = 'bench-admin-key';

const children = new Set<ChildProcess>();
const folders = new Set<string>();
// Exit handlers stop the servers when the benchmark is interrupted.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(130));
process.on('exit', () => {
  for (const child of children) child.kill('SIGKILL');
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});

/** Stops a child that was started elsewhere when the benchmark ends. */
export function adopt<T extends ChildProcess>(child: T): T {
  children.add(child);
  child.on('exit', () => children.delete(child));
  return child;
}

export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'doorbuster-bench-'));
  folders.add(folder);
  return folder;
}

/** Starts a script or the server, and resolves to its port once it prints where it listens. */
export async function start(
  args: string[],
  env: Record<string, string> = {},
  cwd = ROOT,
): Promise<{ port: number; child: ChildProcess }> {
  const child = spawn(process.execPath, args, {
    cwd,
    env: { ...process.env, LOG_LEVEL: 'warn', DOORBUSTER_AUTH_SECRET: SECRET, DOORBUSTER_ADMIN_KEY: ADMIN, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  children.add(child);
  const port = await new Promise<number>((resolve, reject) => {
    let output = '';
    child.stdout!.on('data', (chunk: Buffer) => {
      output += chunk;
      const found = /127\.0\.0\.1:(\d+)/.exec(output);
      if (found) resolve(Number(found[1]));
    });
    child.on('exit', (code) => reject(new Error(`${args.join(' ')} ended with ${code}: ${output}`)));
  });
  return { port, child };
}

/** Runs a script to its end and parses its last line as JSON. */
export async function runJson<T>(args: string[], env: Record<string, string> = {}, cwd = ROOT): Promise<T> {
  const child = spawn(process.execPath, args, {
    cwd,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  children.add(child);
  let output = '';
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk;
  });
  const code = await new Promise((resolve) => child.on('close', resolve));
  children.delete(child);
  if (code !== 0) throw new Error(`${args.join(' ')} ended with ${code}`);
  return JSON.parse(output.trim().split('\n').at(-1)!) as T;
}

/** Starts a script with a channel: it sends a message when it is ready, and answers every message. */
export async function talk(args: string[]): Promise<{ child: ChildProcess; ask<T>(message: number): Promise<T> }> {
  const [script, ...rest] = args as [string, ...string[]];
  const child = adopt(fork(join(ROOT, script), rest, { cwd: ROOT, execArgv: [] }));
  const next = <T>(): Promise<T> =>
    new Promise((resolve, reject) => {
      const ended = (code: number | null): void => reject(new Error(`${script} ended with ${code}`));
      child.once('exit', ended);
      child.once('message', (message) => {
        child.off('exit', ended);
        resolve(message as T);
      });
    });
  await next();
  return {
    child,
    ask: (message) => {
      const answer = next();
      child.send(message);
      return answer as Promise<never>;
    },
  };
}

export async function load(job: Omit<Job, 'secret'>): Promise<Result> {
  const result = await runJson<Result>(['bench/load/load.ts', JSON.stringify({ ...job, secret: SECRET })]);
  if (result.unexpected > 0)
    throw new Error(`the load met other answers than ${job.expect}: ${JSON.stringify(result)}`);
  return result;
}

/** CPU time of a process so far, over all threads, in milliseconds; null without /proc. */
export function cpuMs(pid: number): number | null {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ');
    // utime and stime, in ticks of 10 ms.
    return (Number(fields[11]) + Number(fields[12])) * 10;
  } catch {
    return null;
  }
}

export async function end(child: ChildProcess): Promise<void> {
  const ended = new Promise((resolve) => child.on('exit', resolve));
  child.kill('SIGTERM');
  await ended;
  children.delete(child);
}

/** Creates an open sale with the largest possible stock of one item, `voucher`. */
export async function createSale(port: number): Promise<string> {
  const response = await fetch(`http://127.0.0.1:${port}/v1/sales`, {
    method: 'POST',
    headers: { authorization: `Bearer ${ADMIN}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      name: 'bench',
      opensAt: '2020-01-01T00:00:00.000Z',
      closesAt: '2099-01-01T00:00:00.000Z',
      items: [{ code: 'voucher', name: 'Voucher', price: { amount: 8000, currency: 'CNY' }, stock: 1_000_000 }],
    }),
  });
  const sale = (await response.json()) as { id: string };
  if (response.status !== 201) throw new Error(JSON.stringify(sale));
  return sale.id;
}

export function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)]!;
}

export function machine(): Record<string, unknown> {
  const git = (...args: string[]): string => {
    try {
      return execFileSync('git', args, { cwd: ROOT, encoding: 'utf8' }).trim();
    } catch {
      return 'unknown';
    }
  };
  return {
    commit:
      git('rev-parse', '--short', 'HEAD') + (git('status', '--porcelain', 'src', 'bench') === '' ? '' : ' + changes'),
    node: process.version,
    cpu: `${cpus().length} × ${cpus()[0]?.model ?? 'unknown'}`,
    memoryGb: Math.round(totalmem() / 1e9),
    at: new Date().toISOString(),
  };
}

type Rows = Record<string, unknown>[];

/** Prints one table, or several with names, and writes the JSON to bench/results/ and to `copies`. */
export function report(
  name: string,
  rows: Rows | Record<string, Rows>,
  notMeasured: string[],
  more: Record<string, unknown> = {},
  copies: string[] = [],
): void {
  for (const [title, table] of Array.isArray(rows) ? [[name, rows] as const] : Object.entries(rows)) {
    console.log(`\n${title}`);
    console.table(table);
  }
  console.log('Not measured:');
  for (const line of notMeasured) console.log(`  - ${line}`);
  const json = { name, machine: machine(), rows, notMeasured, ...more };
  mkdirSync(join(ROOT, 'bench/results'), { recursive: true });
  const file = join(ROOT, 'bench/results', `${name}.json`);
  for (const each of [file, ...copies]) writeFileSync(each, `${JSON.stringify(json, null, 2)}\n`);
  console.log(`JSON: bench/results/${name}.json\n${JSON.stringify(json)}`);
}
