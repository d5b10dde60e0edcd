import { accessSync, constants, readdirSync, statSync } from 'node:fs';
import { delimiter, join } from 'node:path';

/** Nothing if there is no such folder. */
export function entriesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

/** The path of a program, or null. Looks into these folders after those of PATH. */
export function programPath(binary: string, folders: readonly string[] = []): string | null {
  return programIn([...(process.env.PATH ?? '').split(delimiter), ...folders], binary);
}

/** The path of a program in the first of these folders that has it, or null. */
export function programIn(folders: readonly string[], binary: string): string | null {
  for (const folder of folders) {
    if (folder === '') continue;
    const path = join(folder, binary);
    try {
      accessSync(path, constants.X_OK);
      if (statSync(path).isFile()) return path;
    } catch {
      // Not in this folder.
    }
  }
  return null;
}
