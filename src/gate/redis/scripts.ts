import { fileURLToPath } from 'node:url';
import { InvariantError } from '../../base/errors.ts';
import { loadScripts, type Script } from '../../base/redis/scripts.ts';

let scripts: Map<string, Script> | null = null;

export function scriptNamed(name: string): Script {
  scripts ??= loadScripts(fileURLToPath(new URL('./lua/', import.meta.url)));
  const script = scripts.get(name);
  if (!script) throw new InvariantError(`there is no ${name}.lua`);
  return script;
}
