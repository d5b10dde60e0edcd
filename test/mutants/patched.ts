import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { ROOT } from '../support/server.ts';

/** A change of one place of the source. */
export interface Patch {
  /** As a path of the project: `src/…`. */
  readonly file: string;
  /** Must occur exactly once, so that nobody patches something else than they meant. */
  readonly find: string;
  readonly replace: string;
}

/** The source with the patch in it. Throws if the source has changed so that the patch does not fit any more. */
export function patch(source: string, { file, find, replace }: Patch): string {
  const places = source.split(find).length - 1;
  if (places !== 1) throw new Error(`a patch of ${file} must fit in one place and fits in ${places}: ${find}`);
  // A function: `$&` in a replacement would be taken for what was found.
  return source.replace(find, () => replace);
}

/** The files of the project as they are on disk. */
export function sourceOf(file: string, root = ROOT): string {
  return readFileSync(join(root, file), 'utf8');
}

/** A copy of the project in a temporary folder, whose source may be patched. */
export class PatchedCopy {
  readonly folder = mkdtempSync(join(tmpdir(), 'doorbuster-patched-'));

  /** Of these files and folders of the project: `src` and what the code in it reads. */
  constructor(parts: readonly string[] = ['src', 'package.json']) {
    for (const part of parts) cpSync(join(ROOT, part), join(this.folder, part), { recursive: true });
    symlinkSync(join(ROOT, 'node_modules'), join(this.folder, 'node_modules'), 'dir');
  }

  /** All or none of them; patches of one file are applied one after the other. */
  apply(patches: readonly Patch[]): void {
    const patched = new Map<string, string>();
    for (const one of patches)
      patched.set(one.file, patch(patched.get(one.file) ?? sourceOf(one.file, this.folder), one));
    for (const [file, source] of patched) writeFileSync(join(this.folder, file), source);
  }

  /** Back to what the project has. */
  restore(patches: readonly Patch[]): void {
    for (const { file } of patches) writeFileSync(join(this.folder, file), sourceOf(file));
  }

  /** A module of the copy. Its classes are not those of the project: `instanceof` needs both from the copy. */
  load<T>(file: string): Promise<T> {
    return import(/* @vite-ignore */ pathToFileURL(join(this.folder, file)).href) as Promise<T>;
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 2 });
  }
}
