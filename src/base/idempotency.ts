import { hash } from 'node:crypto';

/** What a body says, as one comparable text: the order of its members and blanks between them do not make another body. */
export function bodyFingerprint(body: unknown): string {
  const sorted = JSON.stringify(body ?? {}, (_, value: unknown) =>
    value !== null && typeof value === 'object' && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );
  return hash('sha256', sorted, 'base64url');
}

/**
 * The key of an order as gate, pipe and ledger carry it beside the order's buyer. A buyer's own key stands as it is. Somebody
 * else who acts for the buyer has keys of their own: those begin with a character that no key may contain, and a digest
 * keeps them within what the ledger's column and a gate's memory were made for, however long name and key are.
 */
export function orderKey(caller: string, key: string): string {
  return `§${hash('sha256', `${caller}\n${key}`, 'base64url')}`;
}
