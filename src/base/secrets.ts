/** What our docs and examples print in the place of a secret: whoever copies a line has not chosen one. */
export const PRINTED = ['…', '...', 'an-admin-key', 'key1', 'key2', 'new', 'old', 'cd4fa64093420f…'];

const LENGTH_MIN = 16;
const DIFFERENT_MIN = 8;

/** Why a secret can be guessed, or null. */
export function weaknessOf(secret: string): string | null {
  if (PRINTED.includes(secret)) return 'is an example of the documentation';
  if ([...secret].length < LENGTH_MIN) return `has a secret of fewer than ${LENGTH_MIN} characters`;
  if (new Set(secret).size < DIFFERENT_MIN) return `has a secret of fewer than ${DIFFERENT_MIN} different characters`;
  return null;
}
