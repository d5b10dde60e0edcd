import { readFileSync } from 'node:fs';

/** The package's version; package.json is two folders up from src/base and from dist/base alike. */
export const VERSION: string = (
  JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string }
).version;
