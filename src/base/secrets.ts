/** Placeholders for secrets in our docs and examples. People copy them, and everybody knows them. */
export const PRINTED = ['…', '...', 'an-admin-key', 'key1', 'key2', 'new', 'old', 'cd4fa64093420f…'];

const LENGTH_MIN = 16;
const DIFFERENT_MIN = 8;

/** Why a secret can be guessed, or null. */
export function weaknessOf(secret: string): string | null {
  if (PRINTED.includes(secret)) return 'is an example from the documentation';
  if ([...secret].length < LENGTH_MIN) return `has a secret with fewer than ${LENGTH_MIN} characters`;
  if (new Set(secret).size < DIFFERENT_MIN) return `has a secret with fewer than ${DIFFERENT_MIN} different characters`;
  return null;
}
