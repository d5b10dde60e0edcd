#!/usr/bin/env node
// In a clone the sources run as they are (Node strips the types); in the published package only dist/ exists.
import { existsSync } from 'node:fs';

const major = Number(process.versions.node.split('.')[0]);
if (major < 24) {
  console.error(
    `doorbuster needs Node 24 or newer; this is ${process.version}. In a clone, use npm start or npx doorbuster.`,
  );
  process.exit(1);
}
const source = new URL('../src/cli/main.ts', import.meta.url);
const built = new URL('../dist/cli/main.js', import.meta.url);
const { main } = await import((existsSync(source) ? source : built).href);
process.exitCode = await main(process.argv.slice(2));
