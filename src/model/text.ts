/**
 * Text that names things (buyers, codes, seats, keys) is compared bytewise everywhere, so what looks the same must be
 * the same: no control characters, no ill-formed UTF-16 (it has no UTF-8 form), no blanks around it.
 */
const CONTROLS = '\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029';
const CONTROL = new RegExp(`[${CONTROLS}]`);
const CONTROL_RUNS = new RegExp(`[${CONTROLS}]+`, 'g');
/** Half a character of UTF-16. In a pattern with the flag `u`, a pair is one character and not two of these. */
const HALVES = '\\ud800-\\udfff';

/**
 * `nameFault` and `textFault` as patterns, for schemas and so for /openapi.json; their lengths are stated beside them. They look
 * neither ahead nor behind, which many generators and other languages cannot.
 */
export const NAME_PATTERN = `^[^\\s${CONTROLS}${HALVES}]([^${CONTROLS}${HALVES}]*[^\\s${CONTROLS}${HALVES}])?$`;
export const TEXT_PATTERN = `^[^${CONTROLS}${HALVES}]*$`;

/** White space that text of several lines may contain: all that `\\s` matches, without control characters other than line feed and tab. */
const BLANKS = ' \\t\\n\\u00a0\\u1680\\u2000-\\u200a\\u202f\\u205f\\u3000\\ufeff';
const CONTROLS_BUT_LINES = '\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u2028\\u2029';

/**
 * What people write: several lines, not only blanks. Blanks and the character behind them have nothing in common, so that no text makes
 * the pattern go back.
 */
export const CONTENT_PATTERN = `^[${BLANKS}]*[^\\s${CONTROLS}${HALVES}][^${CONTROLS_BUT_LINES}${HALVES}]*$`;

/** What is wrong with a name, or null. A character is a code point. */
export function nameFault(text: string, lengthMax: number): string | null {
  if (text.length === 0) return 'must not be empty';
  if (text.length > lengthMax && [...text].length > lengthMax) return `must have at most ${lengthMax} characters`;
  if (CONTROL.test(text)) return 'must not contain control characters';
  if (!text.isWellFormed()) return 'must be well-formed Unicode';
  if (text.trim() !== text) return 'must not begin or end with blanks';
  return null;
}

/** What is wrong with text that another system chose and that is stored unchanged, or null. Bytes are counted in UTF-8. */
export function textFault(text: string, bytesMax: number): string | null {
  if (CONTROL.test(text)) return 'must not contain control characters';
  if (!text.isWellFormed()) return 'must be well-formed Unicode';
  if (Buffer.byteLength(text) > bytesMax) return `must have at most ${bytesMax} bytes`;
  return null;
}

/** An error text of another program, in a form that every ledger can store: one line, cut. */
export function plainText(text: unknown, lengthMax: number): string {
  return String(text ?? '')
    .replace(CONTROL_RUNS, ' ')
    .trim()
    .slice(0, lengthMax)
    .toWellFormed();
}

/** An https URL without a user: the characters of RFC 3986, which need no escaping in an attribute of HTML. */
const URL_CHARACTERS = "A-Za-z0-9\\-._~:/?#\\[\\]@!$&'()*+,;=%";
export const HTTPS_PATTERN = `^https://[A-Za-z0-9.\\-:\\[\\]]+([/?#][${URL_CHARACTERS}]*)?$`;

/** For the code of an item, which is part of paths, keys and script arguments. */
export const CODE_PATTERN = '^[a-z0-9._-]{1,64}$';
const CODE = new RegExp(CODE_PATTERN);

export function isCode(text: string): boolean {
  return CODE.test(text);
}

/** An Idempotency-Key: 1–255 printable ASCII characters, no blanks around it. */
export const KEY_PATTERN = '^[\\x21-\\x7e]([\\x20-\\x7e]{0,253}[\\x21-\\x7e])?$';
const KEY = new RegExp(KEY_PATTERN);

export function keyFault(key: string): string | null {
  return KEY.test(key) ? null : 'must be 1 to 255 printable ASCII characters, with no blanks around them';
}
