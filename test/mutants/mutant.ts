import type { Patch } from './patched.ts';

/** A fault in one place of the source, and the tests that must find it. */
export interface Mutant extends Patch {
  /** What goes wrong. */
  readonly name: string;
  /** The cheapest test files that find it. */
  readonly tests: readonly string[];
  /** Only tests whose full name matches this pattern are run. */
  readonly only?: string;
  /** Why no test can find it: it changes nothing that anybody could see. */
  readonly survives?: string;
}
