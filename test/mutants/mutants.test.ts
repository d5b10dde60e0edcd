import { afterAll, describe, expect, it } from 'vitest';
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

describe('mutants', () => {
  const copy = new PatchedCopy(['src', 'test', 'bin', 'package.json', 'tsconfig.json', 'vitest.config.ts']);
  const sound = new Map<string, Promise<TestRun>>();

  afterAll(async () => {
    await cleanUp();
    copy.remove();
  });

  /** How the tests of a file that some mutant names end without one. */
  function soundRun(file: string): Promise<TestRun> {
    const asking = Object.values(MUTANTS)
      .flat()
      .filter(({ tests }) => tests.includes(file));
    const only = asking.every((one) => one.only !== undefined)
      ? asking.map((one) => `(${one.only})`).join('|')
      : undefined;
    const run = sound.get(file) ?? runTests(copy.folder, [file], { only, whole: true });
    sound.set(file, run);
    return run;
  }

  async function mustBeFound(mutant: Mutant, skip: (why: string) => void): Promise<void> {
    const named = new RegExp(mutant.only ?? '');
    const ran: string[] = [];
    const left: string[] = [];
    for (const file of mutant.tests) {
      const { passed, failed, skipped, broken } = await soundRun(file);
      expect({ failed, broken }, `${file} without a mutant`).toEqual({ failed: [], broken: null });
      ran.push(...passed.filter((name) => named.test(name)));
      left.push(...skipped.filter((name) => named.test(name)));
    }
    expect(ran.length + left.length, `tests with a name like “${mutant.only}”`).toBeGreaterThan(0);
    if (ran.length === 0) return skip('the server that its tests need is not on this machine');
    copy.apply([mutant]);
    try {
      const { failed, broken, passed } = await runTests(copy.folder, mutant.tests, { only: mutant.only });
      expect(broken).toBeNull();
      if (mutant.survives !== undefined) {
        expect(failed, 'it is found: it needs no explanation').toEqual([]);
        return;
      }
      expect(failed.length, `survived ${passed.length} tests`).toBeGreaterThan(0);
      const found = failed.filter(({ message }) => !UNUSABLE.test(message));
      expect(found.length, `the mutant does not run: ${failed[0]!.message.slice(0, 500)}`).toBeGreaterThan(0);
    } finally {
      copy.restore([mutant]);
    }
  }

  for (const [room, mutants] of Object.entries(MUTANTS)) {
    describe(room, () => {
      for (const mutant of mutants) {
        it(mutant.name, { timeout: MUTANT_MS_MAX }, async ({ skip }) => await mustBeFound(mutant, skip));
      }
    });
  }
});
