import type { Mutant } from './mutant.ts';

export const WRITER: readonly Mutant[] = [];
