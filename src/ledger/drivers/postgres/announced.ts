/** Advisory locks are numbered within a database. The first number marks them as ours. */
export const OURS = 0x646f6f72;
/** The numbers of items. Two items may share one, and then merely wait for each other. */
const ITEMS = OURS + 1;
const ITEM_MASK = 0x7fff_ffffn;
/** The database has room for some thousand locks: a batch of more items than this announces all items at once. */
const ITEMS_MAX = 64;
const ANY_ITEM = -1;

function itemNumbers(itemIds: readonly string[]): number[] {
  return [...new Set(itemIds.map((id) => Number(BigInt(id) & ITEM_MASK)))].sort((a, b) => a - b);
}

/** Locks until the end of the transaction, always in the same order. */
function take(lock: string, numbers: readonly number[]): string {
  return `SELECT ${numbers.map((number) => `${lock}(${ITEMS}, ${number})`).join(', ')}`;
}

export const ANNOUNCED = {
  say(itemIds: readonly string[]): string {
    const numbers = itemNumbers(itemIds);
    return take('pg_advisory_xact_lock_shared', numbers.length > ITEMS_MAX ? [ANY_ITEM] : numbers);
  },
  // A SELECT may have about 1 600 columns.
  wait(itemIds: readonly string[]): string[] {
    const numbers = [ANY_ITEM, ...itemNumbers(itemIds)];
    const parts: string[] = [];
    for (let at = 0; at < numbers.length; at += 500)
      parts.push(take('pg_advisory_xact_lock', numbers.slice(at, at + 500)));
    return parts;
  },
};
