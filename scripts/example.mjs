// npm run example library: runs an example with this clone's Node 24, which npm puts first in the PATH of its scripts.
import { existsSync, readdirSync } from 'node:fs';

const folder = new URL('../examples/', import.meta.url);
const name = process.argv[2]?.replace(/^(?:examples\/)?(.*?)(?:\.ts)?$/, '$1');
const file = new URL(`${name}.ts`, folder);
if (name === undefined || !existsSync(file)) {
  const names = readdirSync(folder)
    .filter((entry) => entry.endsWith('.ts'))
    .map((entry) => entry.slice(0, -'.ts'.length));
  console.error(
    `${name === undefined ? 'which example?' : `there is no example ${name}.`} One of: ${names.join(', ')}`,
  );
  process.exit(2);
}
await import(file.href);
