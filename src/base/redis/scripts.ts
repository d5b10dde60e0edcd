import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { InvariantError, TerminalError } from '../errors.ts';

/** A Lua command: a file of its own, known to Redis by its digest. */
export interface Script {
  readonly name: string;
  readonly lua: string;
  readonly sha: string;
}

/** Parts that the scripts of several stages share. */
const SHARED = fileURLToPath(new URL('./lua/', import.meta.url));

/**
 * Reads the commands of a folder. A line `-- @include _part` is replaced by the file `_part.lua` of the same folder, or of the
 * folder `lua` here; files that begin with an underscore are parts and no commands.
 */
export function loadScripts(folder: string): Map<string, Script> {
  const files = readdirSync(folder).filter((file) => file.endsWith('.lua'));
  const parts = new Map(files.map((file) => [file.slice(0, -4), readFileSync(join(folder, file), 'utf8')]));
  const scripts = new Map<string, Script>();
  for (const [name, source] of parts) {
    if (name.startsWith('_')) continue;
    const lua = source.replace(/^-- @include (\S+)$/gm, (_, part: string) => {
      const text = parts.get(part) ?? sharedPart(part);
      if (text === null) throw new TerminalError('internal', `${name}.lua includes ${part}.lua, which is not there`);
      return text;
    });
    scripts.set(name, { name, lua, sha: createHash('sha1').update(lua).digest('hex') });
  }
  return scripts;
}

/** Read only when a script asks for it: a package that has none of those scripts need not have the folder. */
function sharedPart(part: string): string | null {
  const file = join(SHARED, `${part}.lua`);
  return existsSync(file) ? readFileSync(file, 'utf8') : null;
}

/** Gives the commands of the folder `lua` beside a module, by name; read when the first is asked for. */
export function scriptsBeside(moduleUrl: string): (name: string) => Script {
  let scripts: Map<string, Script> | null = null;
  return (name) => {
    scripts ??= loadScripts(fileURLToPath(new URL('./lua/', moduleUrl)));
    const script = scripts.get(name);
    if (!script) throw new InvariantError(`there is no ${name}.lua`);
    return script;
  };
}
