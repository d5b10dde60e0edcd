import { readFileSync } from 'node:fs';

/** The package's version. package.json is two folders up, both from src/base and from dist/base. */
export const VERSION: string = (
  JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string }
).version;
