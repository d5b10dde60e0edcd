import { appendFileSync, existsSync, readFileSync } from 'node:fs';

/** One suite that did not run, and why. */
export interface Skipped {
  name: string;
  reason: string;
}

/** Workers share only the disk: each appends a line. */
export function noteSkipped(file: string, skipped: Skipped): void {
  appendFileSync(file, `${JSON.stringify(skipped)}\n`);
}

/** Without duplicates, sorted by name. */
export function readSkipped(file: string): Skipped[] {
  if (!existsSync(file)) return [];
  const lines = new Set(readFileSync(file, 'utf8').split('\n'));
  const all = [...lines].filter((line) => line !== '').map((line) => JSON.parse(line) as Skipped);
  return all.sort((one, other) => one.name.localeCompare(other.name));
}
