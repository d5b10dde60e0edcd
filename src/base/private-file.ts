import { chmodSync, closeSync, openSync, statSync } from 'node:fs';

/** A file that only its owner may read, made if it is not there. What SQLite puts beside it then has the same mode. */
export function makePrivate(file: string): void {
  try {
    closeSync(openSync(file, 'a', 0o600));
  } catch {
    // Whoever opens it next says what is wrong, in their own words.
    return;
  }
  keepPrivate(file);
}

/** A file that is there and that others may read is taken from them. One that is not ours to change stays as it is. */
export function keepPrivate(file: string): void {
  const mode = statSync(file, { throwIfNoEntry: false })?.mode ?? 0;
  if ((mode & 0o077) === 0) return;
  try {
    chmodSync(file, mode & 0o700);
  } catch {
    // It belongs to somebody else, or the disk is read-only.
  }
}
