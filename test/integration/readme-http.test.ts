import { spawn } from 'node:child_process';
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { delimiter, join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { LONG } from '../support/long.ts';
import { BIN, cleanUp, ROOT, temporaryFolder } from '../support/server.ts';

/** “Use it over HTTP” of the README, as printed: each way to begin, then a sale, an order, its payment. */
const groups: number[] = [];

afterAll(async () => {
  for (const group of groups) {
    try {
      process.kill(-group, 'SIGKILL');
    } catch {
      // It has already ended.
    }
  }
  await cleanUp();
});

const readme = readFileSync(join(ROOT, 'README.md'), 'utf8');
const section = readme.slice(readme.indexOf('## Use it over HTTP'), readme.indexOf('## On several machines'));
const [demo, own, sell] = [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, code]) => code!);

/** Below the system's range of ephemeral ports, so that nobody takes it between this check and the start. */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 20_000);
    const server = createServer();
    const free = await new Promise<boolean>((resolve) => {
      server.once('error', () => resolve(false));
      server.listen(port, '127.0.0.1', () => resolve(true));
    });
    if (!free) continue;
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
}

/** Runs the code in a shell in this folder, where `npx` finds the bin of this tree. Ends everything that it left running. */
async function paste(code: string, folder: string): Promise<string> {
  const npx = join(folder, 'npx');
  writeFileSync(npx, `#!/bin/sh\nshift\nexec '${process.execPath}' '${BIN}' "$@"\n`);
  chmodSync(npx, 0o700);
  const path = `${folder}${delimiter}${process.env.PATH}`;
  const script = `set -e\ntrap 'kill $(jobs -p)' EXIT\n${code}\necho\n`;
  const child = spawn('bash', ['-c', script], { cwd: folder, env: { ...process.env, PATH: path }, detached: true });
  groups.push(child.pid!);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk;
    });
  }
  const status = await new Promise((resolve) => child.on('close', resolve));
  expect([status, output]).toEqual([0, output]);
  return output;
}

function expectSold(output: string): void {
  const answers = output.split('}{').flatMap((part) => part.split('\n'));
  expect(answers.some((answer) => answer.includes('"buyer":"alice"') && answer.includes('"status":"paid"'))).toBe(true);
  expect(output).toMatch(/"code":"voucher-100".*"total":110,"free":109,.*"sold":1/);
  expect(output).not.toContain('urn:doorbuster:problem');
}

// The short run covers them in docs-commands.test.ts.
it.runIf(LONG)('from an empty shop with secrets of its own', { timeout: 60_000 }, async () => {
  const port = await freePort();
  expectSold(await paste(`${own}${sell}`.replaceAll('8080', String(port)), temporaryFolder()));
});

it.runIf(LONG)('from the demo', { timeout: 60_000 }, async () => {
  const port = await freePort();
  // What `npm start` runs.
  const start = `npx doorbuster serve --demo --port ${port} &\n${own!.slice(own!.indexOf('# until it answers'))}\n`;
  expectSold(await paste(`${start}${demo}${sell}`.replaceAll('8080', String(port)), temporaryFolder()));
});
