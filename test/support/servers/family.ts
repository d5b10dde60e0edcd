import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';

/** The child processes. */
export function childrenOf(pid: number): number[] {
  if (process.platform === 'linux') {
    const all = readdirSync('/proc').map(Number).filter(Number.isInteger);
    return all.filter((one) => statusOf(one)?.parent === pid);
  }
  const { stdout } = spawnSync('ps', ['-A', '-o', 'pid=,ppid='], { encoding: 'utf8', timeout: 5_000 });
  const pairs = stdout.split('\n').map((line) => line.trim().split(/\s+/).map(Number));
  return pairs.filter(([, parent]) => parent === pid).map(([one]) => one!);
}

/** Does nothing if the process has ended. */
export function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

export function isStopped(pid: number): boolean {
  return statusOf(pid)?.state === 'T';
}

/** Also true for a zombie. */
export function isGone(pid: number): boolean {
  if (process.platform === 'linux') return ['Z', 'X', undefined].includes(statusOf(pid)?.state);
  try {
    process.kill(pid, 0);
    return false;
  } catch {
    return true;
  }
}

function statusOf(pid: number): { state: string; parent: number } | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    // After the name, which may contain anything, even brackets.
    const [state, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return { state: state!, parent: Number(parent) };
  } catch {
    // It has ended.
    return null;
  }
}
