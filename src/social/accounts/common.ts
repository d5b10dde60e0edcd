import { readFileSync } from 'node:fs';
import { hashedForm } from '../../model/account.ts';

/**
 * Passwords that guessers try first, one a line, in lower case and at least 8 characters long: shorter ones are refused anyway. The
 * list stops the worst choices only; limits on wrong passwords do the rest.
 */
const COMMON: ReadonlySet<string> = new Set(
  readFileSync(new URL('./common-passwords.txt', import.meta.url), 'utf8')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#')),
);

/** Compared in lower case. */
export function isCommon(password: string): boolean {
  return COMMON.has(hashedForm(password).toLowerCase());
}
