import { readFileSync } from 'node:fs';
import type { Timers } from '../base/timers.ts';

/**
 * npm, where it has started this process (`npx doorbuster serve`, `npm start`).
 *
 * npm sends a signal on to the shell that it starts a script by, and a shell that is ended by SIGTERM tells nobody: the server
 * would go on as an orphan, and keep the port and the data folder. So it looks whether its parents are still those of its start.
 *
 * Whoever puts a server into the background of an npm script (`doorbuster serve & …`) makes an orphan of it on purpose, and must
 * start it without npm: docs/guides/operate.md.
 */

const LOOK_MS = 250;
const SHELLS = ['sh', 'bash', 'dash', 'ash', 'busybox', 'zsh', 'ksh'];

/** As it was when this module was loaded: npm may end before anybody asks. */
const parent = process.ppid;
const start = above(parent);

/** Calls `run` once npm has ended, if npm started this process. */
export function whenNpmEnds(timers: Timers, run: () => void): void {
  if (process.env['npm_lifecycle_event'] === undefined) return;
  const cancel = timers.every(LOOK_MS, () => {
    if (process.ppid === parent && !shellIsOrphan()) return;
    cancel();
    run();
  });
}

function shellIsOrphan(): boolean {
  if (start === null || !SHELLS.includes(start.name)) return false;
  const now = above(parent);
  return now !== null && now.parent !== start.parent;
}

/** A process's name and parent; null where there is no /proc, and when a file cannot be opened just now. */
function above(pid: number): { name: string; parent: number } | null {
  try {
    const found = /^\d+ \((?<name>.*)\) \S (?<parent>\d+)/s.exec(readFileSync(`/proc/${pid}/stat`, 'utf8'))?.groups;
    return found ? { name: found['name']!, parent: Number(found['parent']) } : null;
  } catch {
    return null;
  }
}
