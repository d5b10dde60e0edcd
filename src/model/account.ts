import { nameFault } from './text.ts';

/** Lengths are in characters (code points). */
export const ACCOUNT_BOUNDS = { usernameMax: 50, emailMax: 254, passwordMin: 8, passwordMax: 128 } as const;

/**
 * The buyer that an account acts as is `account:<id>`. Only a token that the shop itself issued to the account may carry this prefix
 * (http/auth.ts). Otherwise whoever registers as `ann` could become the buyer `ann` of the shop's own sign-in.
 */
export const ACCOUNT_PREFIX = 'account:';

export function accountSubject(accountId: string): string {
  return `${ACCOUNT_PREFIX}${accountId}`;
}

/** An account as it is stored, without its password. */
export interface AccountRecord {
  readonly id: string;
  /** `account:<id>`: the buyer of its orders, the author of its posts. */
  readonly subject: string;
  readonly username: string;
  readonly email: string;
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
}

/** Characters that nobody sees: zero-width and bidirectional marks, fillers, variation selectors. */
const INVISIBLE = /\p{Default_Ignorable_Code_Point}/u;

/**
 * What is wrong with a username, or null. Usernames are compared bytewise, so a second spelling of the same text is refused: another
 * Unicode form (`é` as two characters, full-width letters) and invisible characters. Letters of different alphabets that look alike
 * are not found this way, and `Ann` and `ann` are two accounts.
 */
export function usernameFault(username: string): string | null {
  const fault = nameFault(username, ACCOUNT_BOUNDS.usernameMax);
  if (fault !== null) return fault;
  if (INVISIBLE.test(username)) return 'must not contain invisible characters';
  if (username.normalize('NFKC') !== username) return 'must be in Unicode normalization form NFKC';
  return null;
}

/** One `@`, with something on both sides, and no blanks: whether anybody reads mail there only a mail can tell. */
export const EMAIL_PATTERN =
  '^[^\\s@\\u0000-\\u001f\\u007f-\\u009f\\ud800-\\udfff]+@[^\\s@\\u0000-\\u001f\\u007f-\\u009f\\ud800-\\udfff]+$';

/** An address in the form in which it is stored and compared: only its domain ignores case. Expects one `@`. */
export function storedEmail(email: string): string {
  const at = email.lastIndexOf('@');
  return email.slice(0, at) + email.slice(at).toLowerCase();
}

/** What is wrong with an address in its stored form, or null: lower-casing may have made it longer. */
export function emailFault(email: string): string | null {
  return [...email].length > ACCOUNT_BOUNDS.emailMax
    ? `must have at most ${ACCOUNT_BOUNDS.emailMax} characters, its domain in lower case`
    : null;
}

/** The form in which a password is hashed: the same password typed on another keyboard may be composed differently. */
export function hashedForm(password: string): string {
  return password.normalize('NFKC');
}
