import type { Ledger } from '../../src/ledger/port.ts';
import type { SaleSnapshot, SnapshotPage } from '../../src/model/snapshot.ts';

/** A snapshot with all its pages in one. */
export interface WholeSnapshot extends Omit<SaleSnapshot, 'content'> {
  holds: SnapshotPage['holds'][number][];
  keys: SnapshotPage['keys'][number][];
}

/** In pages of `size` holds and keys, as a gate gets it. */
export function paged({ holds, keys, ...sale }: WholeSnapshot, size = 1000): SaleSnapshot {
  const content: SnapshotPage[] = [];
  for (let from = 0; from < Math.max(holds.length, keys.length); from += size) {
    content.push({ holds: holds.slice(from, from + size), keys: keys.slice(from, from + size) });
  }
  return { ...sale, content };
}

export async function whole({ content, ...sale }: SaleSnapshot): Promise<WholeSnapshot> {
  const all: WholeSnapshot = { ...sale, holds: [], keys: [] };
  for await (const { holds, keys } of content) {
    all.holds.push(...holds);
    all.keys.push(...keys);
  }
  return all;
}

/** Raises the epoch and reads everything that a gate is built from. */
export async function wholeSnapshot(
  ledger: Pick<Ledger, 'rebuildSnapshot'>,
  saleId: string,
): Promise<WholeSnapshot | null> {
  const snapshot = await ledger.rebuildSnapshot(saleId);
  return snapshot && whole(snapshot);
}
