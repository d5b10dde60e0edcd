import type { Value } from '../../works/work.ts';

/** Everything but printable ASCII without quote and backslash. */
const NOT_PLAIN = /[^\x20-\x7e]|['\\]/;

/**
 * A text as a literal. A text that is not plain is written as the hexadecimal digits of its UTF-8, which no SQL mode of the
 * server and no character set of the connection can read as anything else.
 */
export function textLiteral(text: string): string {
  return NOT_PLAIN.test(text) ? hexadecimal(text) : `'${text}'`;
}

function hexadecimal(text: string): string {
  return `_utf8mb4 X'${Buffer.from(text, 'utf8').toString('hex')}'`;
}

/** Values of one expression. Plain and hexadecimal literals may differ in collation, which MySQL refuses within one expression. */
export function literalsAlike(values: readonly (string | number | bigint | null)[]): string[] {
  const plain = !values.some((value) => typeof value === 'string' && NOT_PLAIN.test(value));
  return values.map((value) => (typeof value === 'string' && !plain ? hexadecimal(value) : literal(value)));
}

export function literal(value: Value | undefined): string {
  if (value === null) return 'NULL';
  if (typeof value === 'string') return textLiteral(value);
  if (typeof value === 'bigint') return value.toString();
  if (typeof value === 'number') {
    if (!Number.isFinite(value)) throw new RangeError(`${value} is no number of SQL`);
    return String(value);
  }
  if (value === undefined || value.length === 0) throw new RangeError('a value is missing');
  return value.map(literal).join(', ');
}

/** Puts the values where the `?` are. */
export function inlined(sql: string, values: readonly Value[]): string {
  if (values.length === 0) return sql;
  const parts = sql.split('?');
  if (parts.length !== values.length + 1)
    throw new RangeError(`${values.length} values for ${parts.length - 1} places`);
  let text = parts[0]!;
  for (let at = 1; at < parts.length; at++) text += literal(values[at - 1]) + parts[at]!;
  return text;
}
