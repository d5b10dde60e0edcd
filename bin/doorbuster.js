#!/usr/bin/env node
// A clone runs the sources directly (Node strips the types); the published package contains only dist/.
import { existsSync } from 'node:fs';

const source = new URL('../src/cli/main.ts', import.meta.url);
const built = new URL('../dist/cli/main.js', import.meta.url);
const major = Number(process.versions.node.split('.')[0]);
if (major < 24) {
  console.error(`doorbuster needs Node 24 or newer; this is ${process.version}. ${remedy()}`);
  process.exit(1);
}
const { main } = await import((existsSync(source) ? source : built).href);
process.exitCode = await main(process.argv.slice(2));

/** What to do next. In a clone, npx uses the clone's own Node once it is installed. */
function remedy() {
  if (!existsSync(source)) return 'Install Node 24: https://nodejs.org/en/download';
  const again = ['npx doorbuster', ...process.argv.slice(2)].join(' ');
  return existsSync(new URL('../node_modules/.bin/node', import.meta.url))
    ? `This clone has its own Node 24, which npx uses: ${again}`
    : `Run \`npm install\` once: it installs Node 24 for this clone. Then: ${again}`;
}
