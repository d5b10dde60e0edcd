import { chmodSync, closeSync, openSync, statSync } from 'node:fs';

/** Creates the file, readable by its owner only, if it does not exist. SQLite's files beside it get the same mode. */
export function makePrivate(file: string): void {
  try {
    closeSync(openSync(file, 'a', 0o600));
  } catch {
    // Opening it will fail next, with a better message.
    return;
  }
  keepPrivate(file);
}

/** Removes other users' access to an existing file. A file whose mode we may not change stays as it is. */
export function keepPrivate(file: string): void {
  const mode = statSync(file, { throwIfNoEntry: false })?.mode ?? 0;
  if ((mode & 0o077) === 0) return;
  try {
    chmodSync(file, mode & 0o700);
  } catch {
    // It belongs to somebody else, or the disk is read-only.
  }
}
