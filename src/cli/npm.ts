import { readFileSync } from 'node:fs';
import type { Timers } from '../base/timers.ts';

/**
 * npm, where it has started this process (`npx doorbuster serve`, `npm start`).
 *
 * npm sends a signal on to the shell that it starts a script by, and a shell that is ended by SIGTERM tells nobody: the server
 * would go on as an orphan, and keep the port and the data folder. So it looks whether its parents are still those of its start.
 *
 * Whoever puts a server into the background of an npm script (`doorbuster serve & …`) makes an orphan of it on purpose. It cannot
 * be told from the other kind unless it was given a session of its own (`setsid doorbuster serve &`).
 */

const LOOK_MS = 250;
const SHELLS = ['sh', 'bash', 'dash', 'ash', 'busybox', 'zsh', 'ksh'];

/** As it was when this module was loaded: npm may end before anybody asks. */
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

/** A process, by /proc; null where there is none, and when a file cannot be opened just now. */
function look(pid: number): { name: string; parent: number; session: number } | null {
  try {
    const found = /^\d+ \((.*)\) \S (\d+) \d+ (\d+) /s.exec(readFileSync(`/proc/${pid}/stat`, 'utf8'));
    return found && { name: found[1]!, parent: Number(found[2]), session: Number(found[3]) };
  } catch {
    return null;
  }
}
