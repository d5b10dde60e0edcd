import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, temporaryFolder } from '../support.ts';

/** Replaces one place of a source file; `find` must be there exactly once. */
export interface Patch {
  readonly file: string;
  readonly find: string;
  readonly replace: string;
}

/** A copy of the locks and their benchmark's client with some places replaced. Returns its folder. */
export function patchedCopy(patches: readonly Patch[]): string {
  const folder = temporaryFolder();
  for (const part of ['src/base', 'src/locks', 'bench/locks', 'package.json']) {
    mkdirSync(join(folder, part, '..'), { recursive: true });
    cpSync(join(ROOT, part), join(folder, part), { recursive: true });
  }
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  for (const { file, find, replace } of patches) {
    const path = join(folder, file);
    const [before, after, ...more] = readFileSync(path, 'utf8').split(find);
    if (after === undefined || more.length > 0) throw new Error(`${file} does not contain exactly once: ${find}`);
    writeFileSync(path, before + replace + after);
  }
  return folder;
}

/** The techniques that were tuned with Redis on the same machine, and how to turn each of them on or off. */
export const PATCHES = {
  'busy turns': [
    {
      file: 'src/locks/locks.ts',
      find: 'options.attentive ?? false',
      replace: 'options.attentive ?? true',
    },
  ],
  // The books of what is under way stay ours; the command is one of ioredis', and nothing is corked.
  "ioredis' own commands": [
    {
      file: 'src/base/redis/link.ts',
      find: "void client.sendCommand(sent as unknown as Parameters<Redis['sendCommand']>[0]);",
      replace: `client.evalsha(script.sha, keys, ...argumentsIn(wire)).then(
        (reply) => sent.resolve(reply),
        (error) => sent.reject(error),
      );`,
    },
    {
      file: 'src/base/redis/link.ts',
      find: 'if (this.#expected > 1 && !this.#corked) {',
      replace: 'if (false) {',
    },
    {
      file: 'src/base/redis/link.ts',
      find: '/** An idle connection must not keep the process alive. */',
      replace: `function argumentsIn(wire: string): string[] {
        const parts: string[] = [];
        for (let at = 0; at < wire.length; ) {
          const end = wire.indexOf('\\r\\n', at);
          const from = end + 2;
          const length = Number(wire.slice(at + 1, end));
          parts.push(wire.slice(from, from + length));
          at = from + length + 2;
        }
        return parts;
      }
`,
    },
  ],
} satisfies Record<string, Patch[]>;

export type Variation = keyof typeof PATCHES;
