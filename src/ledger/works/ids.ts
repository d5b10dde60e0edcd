import type { IdBlock, IdKind } from '../../base/ids.ts';
import { type LifeDialect, query, type Work } from './work.ts';

/** The next numbers of this kind, which nobody else is given. */
export function* takeIdBlock(kind: IdKind, size: number, { forUpdate }: LifeDialect): Work<IdBlock> {
  const insert = { do: 'insert', table: 'id_blocks', columns: ['kind', 'next'], rows: [[kind, 1]] } as const;
  // The row is ours from here to the commit.
  const [, found] = yield [
    { ...insert, rows: [...insert.rows], leavePresent: true },
    query(`SELECT "next" FROM id_blocks WHERE kind = ? ${forUpdate}`, kind),
  ];
  const from = Number(found!.rows[0]!.next);
  yield [query('UPDATE id_blocks SET "next" = ? WHERE kind = ?', from + size, kind)];
  return { from, to: from + size };
}
