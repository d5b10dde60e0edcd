import { expect } from 'vitest';

type Query = (sql: string) => Promise<Record<string, unknown>[]>;

/**
 * Checks what must hold of a SQL ledger's tables at any committed instant, whatever was sent to it. Reads them directly, when
 * the ledger is at rest.
 */
export async function judgeTables(query: Query): Promise<void> {
  const none = async (what: string, sql: string): Promise<void> => expect(await query(sql), what).toEqual([]);
  await none('P1: above the total', 'SELECT id FROM items WHERE reserved + sold + blocked > total');
  await none(
    'P9: units of live orders, and those that are counted',
    `SELECT i.id, i.reserved, sum(o.quantity) AS units FROM items i LEFT JOIN orders o ON o.item_id = i.id AND o.status = 'reserved'
     GROUP BY i.id, i.reserved HAVING coalesce(sum(o.quantity), 0) <> i.reserved`,
  );
  await none(
    'P2: a live unit without a claim, or a claim too many',
    `SELECT o.id, o.quantity, count(c.slot) AS claims FROM orders o LEFT JOIN claims c
       ON c.sale_id = o.sale_id AND c.buyer = o.buyer AND c.order_id = o.id
     GROUP BY o.id, o.quantity, o.status
     HAVING count(c.slot) <> CASE WHEN o.status IN ('reserved', 'paid') THEN o.quantity ELSE 0 END`,
  );
  await none(
    'P2: a claim of nobody, or under another name',
    `SELECT c.order_id FROM claims c LEFT JOIN orders o ON o.id = c.order_id AND o.sale_id = c.sale_id AND o.buyer = c.buyer
     WHERE o.id IS NULL`,
  );
  await none(
    'P5: a key that is bound twice',
    `SELECT buyer, sale_id, idem_key FROM orders WHERE idem_key IS NOT NULL GROUP BY buyer, sale_id, idem_key HAVING count(*) > 1`,
  );
  await none(
    'P5: a rejected order that keeps its key',
    `SELECT id FROM orders WHERE status = 'rejected' AND idem_key IS NOT NULL`,
  );
}
