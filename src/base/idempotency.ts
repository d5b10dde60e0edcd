import { hash } from 'node:crypto';

/**
 * What a body says, as one comparable text: neither the order of its members nor blanks between them make another body. Two
 * calls with one key are the same call if these are equal. Stored for a day with the key: another form would make a repeat of
 * yesterday's call another call.
 */
export function bodyFingerprint(body: unknown): string {
  const sorted = JSON.stringify(body ?? {}, (_, value: unknown) =>
    value !== null && typeof value === 'object' && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );
  return hash('sha256', sorted, 'base64url');
}

/** A short text that stands for these, in a column with an index: no two lists give the same. */
export function digestOf(...parts: readonly (string | null)[]): string {
  return hash('sha256', JSON.stringify(parts), 'hex');
}

/**
 * The key of an order as gate, pipe and ledger carry it beside the order's buyer. A buyer's own key stands as it is. Whoever
 * acts for the buyer has keys of their own: those begin with a character that no key may contain, and are a digest, so that
 * they fit the ledger's column and the gate's memory however long name and key are.
 */
export function orderKey(caller: string, key: string): string {
  return `§${hash('sha256', `${caller}\n${key}`, 'base64url')}`;
}
