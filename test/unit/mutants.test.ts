import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { MUTANTS } from '../mutants/all.ts';
import { WITHOUT } from '../mutants/defences.ts';
import { type Patch, patch, sourceOf } from '../mutants/patched.ts';
import { ROOT } from '../support/server.ts';

const ALL = Object.values(MUTANTS).flat();

/** The mutants themselves run in the long tests (test/mutants): here it is only noticed that the source has moved on. */
describe('mutants', () => {
  it('are at least sixty, each with a name of its own', () => {
    expect(ALL.length).toBeGreaterThanOrEqual(60);
    expect(new Set(ALL.map(({ name }) => name)).size).toBe(ALL.length);
  });

  it.each(ALL.map((mutant) => [mutant.name, mutant] as const))('%s: fits in one place, and changes it', (_, mutant) => {
    const source = sourceOf(mutant.file);
    expect(patch(source, mutant)).not.toBe(source);
    for (const file of mutant.tests) expect(existsSync(join(ROOT, file)), file).toBe(true);
  });

  it.each(Object.entries(WITHOUT))('the patches that remove %s fit', (_, patches) => {
    for (const one of patches) expect(patch(sourceOf(one.file), one)).not.toBe(sourceOf(one.file));
  });

  it('a patch that fits nowhere, or in two places, is an error', () => {
    const one: Patch = { file: 'src/x.ts', find: 'a', replace: '$&b' };
    expect(patch('xay', one)).toBe('x$&by');
    expect(() => patch('xyz', one)).toThrow('fits in 0');
    expect(() => patch('aba', one)).toThrow('fits in 2');
  });
});
