import { readFileSync } from 'node:fs';
import type { Timers } from '../base/timers.ts';

/**
 * Notices when the npm that started this process (`npx doorbuster serve`, `npm start`) has ended.
 *
 * npm passes a signal on to the shell that runs the script, and a shell that dies by SIGTERM does not tell its child: the server
 * would go on as an orphan and keep the port and the data folder. So the server polls whether its parents are still the same.
 *
 * A server that an npm script puts into the background (`doorbuster serve & …`) becomes an orphan on purpose. It looks the same,
 * unless it has a session of its own (`setsid doorbuster serve &`).
 */

const LOOK_MS = 250;
const SHELLS = ['sh', 'bash', 'dash', 'ash', 'busybox', 'zsh', 'ksh'];

/** Read when this module is loaded, because npm may end before `whenNpmEnds` is called. */
const parent = process.ppid;
const start = look(parent);

/** Calls `run` once npm has ended, if npm started this process. */
export function whenNpmEnds(timers: Timers, run: () => void): void {
  if (process.env['npm_lifecycle_event'] === undefined || look(process.pid)?.session === process.pid) return;
  const cancel = timers.every(LOOK_MS, () => {
    if (process.ppid === parent && !shellIsOrphan()) return;
    cancel();
    run();
  });
}

function shellIsOrphan(): boolean {
  if (start === null || !SHELLS.includes(start.name)) return false;
  const now = look(parent);
  return now !== null && now.parent !== start.parent;
}

/** Reads a process from /proc; null without /proc, and if the file cannot be opened now. */
function look(pid: number): { name: string; parent: number; session: number } | null {
  try {
    const found = /^\d+ \((.*)\) \S (\d+) \d+ (\d+) /s.exec(readFileSync(`/proc/${pid}/stat`, 'utf8'));
    return found && { name: found[1]!, parent: Number(found[2]), session: Number(found[3]) };
  } catch {
    return null;
  }
}
