import { afterAll, describe, expect, it } from 'vitest';
import { LONG } from '../support/long.ts';
import { cleanUp } from '../support/server.ts';
import { MUTANTS } from './all.ts';
import type { Mutant } from './mutant.ts';
import { PatchedCopy } from './patched.ts';
import { runTests, type TestRun } from './run.ts';

/**
 * Every mutant is put into a copy of the project, and the tests that are named with it must fail there, as they pass without
 * it. A mutant that survives shows a test that is missing.
 *
 * One at a time: this file runs beside others, whose timing would suffer. One mutant: `-t '<its name>'`.
 */
const MUTANT_MS_MAX = 900_000;

/** Not a finding: the patch itself is wrong, and no code ran that could have been judged. */
const UNUSABLE = /SyntaxError|ReferenceError|Error compiling script|syntax error|error in your SQL syntax/i;

describe.runIf(LONG)('mutants', () => {
  const copy = LONG
    ? new PatchedCopy(['src', 'test', 'bin', 'package.json', 'tsconfig.json', 'vitest.config.ts'])
    : null;
  const sound = new Map<string, Promise<TestRun>>();

  afterAll(async () => {
    await cleanUp();
    copy?.remove();
  });

  /** How the tests of a file that some mutant names end without one. */
  function soundRun(file: string): Promise<TestRun> {
    const asking = Object.values(MUTANTS)
      .flat()
      .filter(({ tests }) => tests.includes(file));
    const only = asking.every((one) => one.only !== undefined)
      ? asking.map((one) => `(${one.only})`).join('|')
      : undefined;
    const run = sound.get(file) ?? runTests(copy!.folder, [file], { only, whole: true });
    sound.set(file, run);
    return run;
  }

  async function mustBeFound(mutant: Mutant, skip: (why: string) => void): Promise<void> {
    const named = new RegExp(mutant.only ?? '');
    const passing = new Set<string>();
    for (const file of mutant.tests) {
      const { passed, failed, broken } = await soundRun(file);
      expect({ failed, broken }, `${file} without a mutant`).toEqual({ failed: [], broken: null });
      for (const name of passed) if (named.test(name)) passing.add(name);
    }
    if (passing.size === 0)
      return skip('no test of it ran: its server is not on this machine, or its name has changed');
    copy!.apply([mutant]);
    try {
      const { failed, broken, passed } = await runTests(copy!.folder, mutant.tests, { only: mutant.only });
      expect(broken).toBeNull();
      if (mutant.survives !== undefined) {
        expect(failed, 'it is found: it needs no explanation').toEqual([]);
        return;
      }
      expect(failed.length, `survived ${passed.length} tests`).toBeGreaterThan(0);
      const found = failed.filter(({ message }) => !UNUSABLE.test(message));
      expect(found.length, `the mutant does not run: ${failed[0]!.message.slice(0, 500)}`).toBeGreaterThan(0);
    } finally {
      copy!.restore([mutant]);
    }
  }

  for (const [room, mutants] of Object.entries(MUTANTS)) {
    describe(room, () => {
      it.each(mutants.map((mutant) => [mutant.name, mutant] as const))(
        '%s',
        { timeout: MUTANT_MS_MAX },
        async (_, mutant) =>
          await mustBeFound(mutant, (why) => console.log(`skipped: mutant “${mutant.name}” (${why})`)),
      );
    });
  }
});
