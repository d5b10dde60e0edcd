import { query, type Result, type Step } from './work.ts';

/** Reads the names that these users registered with. */
export function nameStep(users: readonly string[]): Step {
  return query('SELECT subject, username FROM users WHERE subject IN (?)', [...new Set(users)]);
}

/** By user. Whoever has no account is missing. */
export function namesOf(found: Result): Map<string, string> {
  return new Map(found.rows.map(({ subject, username }) => [subject as string, username as string]));
}
