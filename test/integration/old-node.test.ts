import { spawnSync } from 'node:child_process';
import { existsSync, rmSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { afterAll, describe, expect, inject, it } from 'vitest';
import { blocksOfSession } from '../support/docs/inventory.ts';
import { runShell } from '../support/docs/shell.ts';
import { makeWorkshop } from '../support/docs/workshop.ts';
import { cleanUp } from '../support/server.ts';
import { noteSkipped } from '../support/servers/skipped.ts';

/**
 * A clone on a machine with an older Node, which the README says is enough. Whatever needs Node 24 uses that of
 * the clone, or says in one line how to get it.
 */
const OLD_NODE = oldNode();
const NAME = 'a clone on a machine with an older Node';

afterAll(cleanUp);

function oldNode(): string | null {
  const folders = process.env.PATH!.split(delimiter).filter((folder) => !folder.includes('node_modules'));
  for (const program of folders.map((folder) => join(folder, 'node')).filter((file) => existsSync(file))) {
    const major = Number(/^v(\d+)/.exec(spawnSync(program, ['--version'], { encoding: 'utf8' }).stdout)?.[1]);
    if (major >= 20 && major < 24) return program;
  }
  return null;
}

function inClone(folder: string, command: string, ...args: string[]) {
  const path = [
    dirname(OLD_NODE!),
    ...process.env.PATH!.split(delimiter).filter((one) => !one.includes('node_modules')),
  ];
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^npm_/i.test(name)));
  return spawnSync(command, args, { cwd: folder, encoding: 'utf8', env: { ...env, PATH: path.join(delimiter) } });
}

const skipped = inject('skippedFile');
if (OLD_NODE === null && skipped)
  noteSkipped(skipped, { name: NAME, reason: 'this machine has no Node from 20 to 23' });

describe.skipIf(OLD_NODE === null)(NAME, () => {
  it('a fresh one: the command says to run npm install, and what comes then', () => {
    const folder = makeWorkshop();
    rmSync(join(folder, 'node_modules'), { recursive: true });
    const { status, stderr } = inClone(folder, 'npx', 'doorbuster', 'doctor', '--json');
    const [refusal] = stderr.split('\n').filter((line) => line.startsWith('doorbuster'));
    expect(status).toBe(1);
    expect(refusal).toMatch(
      /^doorbuster needs Node 24 or newer; this is v2[0-3]\.\S+\. Run `npm install` once: it installs Node 24 for this clone\. Then: npx doorbuster doctor --json$/,
    );
  });

  it('after npm install: npx takes the Node of the clone; the bare command says so', () => {
    const folder = makeWorkshop();
    // npm does not link a package into its own node_modules.
    rmSync(join(folder, 'node_modules', '.bin', 'doorbuster'));
    const refused = inClone(folder, OLD_NODE!, 'bin/doorbuster.js', 'doctor');
    expect([refused.status, refused.stderr]).toEqual([
      1,
      expect.stringMatching(/which npx uses: npx doorbuster doctor\n$/),
    ]);
    const doctor = inClone(folder, 'npx', 'doorbuster', 'doctor');
    expect([doctor.status, doctor.stdout], doctor.stderr).toEqual([0, expect.stringContaining('no errors')]);
  });

  it('the package: it says to install Node 24', () => {
    const folder = makeWorkshop();
    rmSync(join(folder, 'src'));
    const { status, stderr } = inClone(folder, OLD_NODE!, 'bin/doorbuster.js', 'serve');
    expect([status, stderr]).toEqual([
      1,
      expect.stringMatching(/^doorbuster needs Node 24 .*Install Node 24: https:\S+\n$/),
    ]);
  });

  it('examples/README.md: the examples run as printed', async () => {
    const told = await runShell({
      folder: makeWorkshop(),
      blocks: blocksOfSession('examples'),
      path: [dirname(OLD_NODE!)],
    });
    expect(told.at(-1)!.output).toContain('refused: carol, sold_out');
  });
});
