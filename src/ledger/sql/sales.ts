import {
  BOUNDS,
  type ItemKind,
  type ItemRecord,
  ledgerFree,
  type NewSale,
  type SalePatch,
  type SaleRecord,
  type SaleStamp,
  windowFaults,
} from '../../model/sale.ts';
import { auditStep } from '../life/audit.ts';
import type { AdminCall, GateTask, Page, SaleChange, SaleIds } from '../port.ts';
import type { Row, Value } from '../work.ts';
import type { Database } from './database.ts';
import { byId } from './judge.ts';
import type { Keys } from './keys.ts';
import type { Session } from './session.ts';

const SALE_COLUMNS = 'id, name, opens_at, closes_at, per_buyer, pay_within, paused, closed, version, created_at';

/** What one administrative change does, once its key and its sale are found. Runs inside the transaction. */
type Change = (session: Session, sale: SaleRecord, nowMs: number) => Promise<Refused | AuditEntry>;

type Refused = Exclude<SaleChange, { outcome: 'changed' }>;

interface AuditEntry {
  outcome: 'done';
  action: string;
  detail: unknown;
}

/**
 * Sales and items, and every administrative change of them with its audit row, its key and its task for the gate, in one
 * transaction. A change locks the row of its sale first, so that two of them cannot mix.
 */
export class Sales {
  readonly #database: Database;
  readonly #keys: Keys;

  constructor(database: Database, keys: Keys) {
    this.#database = database;
    this.#keys = keys;
  }

  /** With the ledger's clock, which costs no trip of its own like this. */
  get #select(): string {
    const { fixedNow, dialect } = this.#database;
    const clock = fixedNow === null ? `(${dialect.clock})` : String(fixedNow());
    return `SELECT ${SALE_COLUMNS}, ${clock} AS read_at FROM sales`;
  }

  async get(session: Session, saleId: string): Promise<SaleRecord | null> {
    const { rows } = await session.query(`${this.#select} WHERE id = ?`, [BigInt(saleId)]);
    const [sale] = await this.#withItems(session, rows);
    return sale ?? null;
  }

  async stamps(session: Session, saleIds: readonly string[]): Promise<Map<string, SaleStamp>> {
    if (saleIds.length === 0) return new Map();
    const { rows } = await session.query(
      `SELECT s.id, s.version, COALESCE(MAX(i.epoch), 0) AS epoch, COALESCE(SUM(i.rev), 0) AS rev
       FROM sales s LEFT JOIN items i ON i.sale_id = s.id WHERE s.id IN (?) GROUP BY s.id, s.version`,
      [saleIds.map(BigInt)],
    );
    return new Map(
      rows.map(({ id, version, epoch, rev }) => [
        id as string,
        { epoch: Number(epoch), rev: Number(rev), version: Number(version) },
      ]),
    );
  }

  async list(session: Session, page: Page): Promise<SaleRecord[]> {
    const before = page.before === null ? '' : 'WHERE id < ?';
    const values: Value[] = page.before === null ? [page.limit] : [BigInt(page.before), page.limit];
    const { rows } = await session.query(`${this.#select} ${before} ORDER BY id DESC LIMIT ?`, values);
    return this.#withItems(session, rows);
  }

  async openIds(session: Session): Promise<string[]> {
    const nowMs = await this.#database.now(session);
    const { rows } = await session.query('SELECT id FROM sales WHERE closed = 0 AND closes_at > ? ORDER BY id', [
      nowMs,
    ]);
    return rows.map((row) => row.id as string);
  }

  async itemIds(session: Session, saleId: string): Promise<string[]> {
    const { rows } = await session.query('SELECT id FROM items WHERE sale_id = ?', [BigInt(saleId)]);
    return rows.map((row) => row.id as string).sort(byId);
  }

  async raiseEpoch(session: Session, itemIds: readonly string[], above: number): Promise<void> {
    await this.lockItems(session, itemIds);
    const raise = 'UPDATE items SET epoch = GREATEST(epoch, ?) + 1, rev = rev + 1 WHERE id IN (?)';
    await session.query(raise, [above, itemIds.map(BigInt)]);
  }

  /** From here to the end of the transaction no writer of these items is in the middle of anything, nor on its way to them. */
  async lockAnnounced(session: Session, itemIds: readonly string[]): Promise<void> {
    const { announced } = this.#database.dialect;
    if (announced !== null) await session.script(announced.wait(itemIds));
    await this.lockItems(session, itemIds);
  }

  /** From here to the end of the transaction no writer of these items is in the middle of anything. */
  async lockItems(session: Session, itemIds: readonly string[]): Promise<void> {
    const { byPrimaryKey } = this.#database.dialect;
    await session.query(`SELECT id FROM items ${byPrimaryKey} WHERE id IN (?) ORDER BY id FOR UPDATE`, [
      itemIds.map(BigInt),
    ]);
  }

  /** From here to the end of the transaction no change of this sale is in the middle of anything. */
  async lock(session: Session, saleId: string): Promise<void> {
    await session.query('SELECT id FROM sales WHERE id = ? FOR UPDATE', [BigInt(saleId)]);
  }

  async #withItems(session: Session, sales: readonly Row[]): Promise<SaleRecord[]> {
    if (sales.length === 0) return [];
    const { rows } = await session.query(
      `SELECT sale_id, id, code, name, amount, currency, kind, total, reserved, sold, blocked, epoch, rev
       FROM items WHERE sale_id IN (?) ORDER BY position`,
      [sales.map((row) => BigInt(row.id as string))],
    );
    const items = new Map<string, ItemRecord[]>();
    for (const row of rows) {
      const mine = items.get(row.sale_id as string);
      if (mine === undefined) items.set(row.sale_id as string, [itemOfRow(row)]);
      else mine.push(itemOfRow(row));
    }
    return sales.map((row) => ({
      id: row.id as string,
      name: row.name as string,
      opensAtMs: Number(row.opens_at),
      closesAtMs: Number(row.closes_at),
      perBuyer: Number(row.per_buyer),
      payWithinSeconds: Number(row.pay_within),
      paused: Number(row.paused) === 1,
      closed: Number(row.closed) === 1,
      version: Number(row.version),
      createdAtMs: Number(row.created_at),
      readAtMs: Number(row.read_at),
      items: items.get(row.id as string) ?? [],
    }));
  }

  create(sale: NewSale & SaleIds, call: AdminCall): Promise<SaleChange> {
    return this.#transaction(async (session, nowMs) => {
      const repeated = await this.#keys.take(session, call, nowMs);
      if (repeated) return repeated;
      await session.query(
        `INSERT INTO sales (id, name, opens_at, closes_at, per_buyer, per_buyer_max, pay_within, created_at, updated_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
        [
          BigInt(sale.id),
          sale.name,
          sale.opensAtMs,
          sale.closesAtMs,
          sale.perBuyer,
          sale.perBuyer,
          sale.payWithinSeconds,
          nowMs,
          nowMs,
        ],
      );
      if (sale.items.length > 0) {
        await session.query(
          `INSERT INTO items (id, sale_id, position, code, name, amount, currency, kind, total)
           VALUES ${sale.items.map(() => "(?, ?, ?, ?, ?, ?, ?, 'counted', ?)").join(', ')}`,
          sale.items.flatMap(({ code, name, price, stock }, position) => [
            BigInt(sale.itemIds[position]!),
            BigInt(sale.id),
            position,
            code,
            name,
            price.amount,
            price.currency,
            stock,
          ]),
        );
      }
      return this.#done(session, sale.id, call, nowMs, {
        outcome: 'done',
        action: 'sale.create',
        detail: { name: sale.name },
      });
    });
  }

  patch(saleId: string, patch: SalePatch, version: number, call: AdminCall): Promise<SaleChange> {
    return this.#change(saleId, call, async (session, sale, nowMs) => {
      if (sale.version !== version) return { outcome: 'version_conflict' };
      if (sale.closed) return { outcome: 'sale_closed' };
      const next = { ...sale, ...patch };
      const fault = windowFaults(next.opensAtMs, next.closesAtMs)[0];
      if (fault) return { outcome: 'invalid_request', ...fault };
      await session.query(
        `UPDATE sales SET name = ?, opens_at = ?, closes_at = ?, per_buyer = ?, per_buyer_max = GREATEST(per_buyer_max, ?),
           pay_within = ?, version = version + 1, updated_at = ? WHERE id = ? AND version = ?`,
        [
          next.name,
          next.opensAtMs,
          next.closesAtMs,
          next.perBuyer,
          next.perBuyer,
          next.payWithinSeconds,
          nowMs,
          BigInt(saleId),
          version,
        ],
      );
      return { outcome: 'done', action: 'sale.patch', detail: patch };
    });
  }

  addStock(saleId: string, itemCode: string, add: number, call: AdminCall): Promise<SaleChange> {
    return this.#change(saleId, call, async (session, sale) => {
      const item = sale.items.find(({ code }) => code === itemCode);
      if (item === undefined) return { outcome: 'not_found' };
      if (sale.closed) return { outcome: 'sale_closed' };
      if (item.kind !== 'counted') {
        return { outcome: 'invalid_request', path: '/add', message: 'a seated item has no stock to add to' };
      }
      // What is free is moved by writers, who do not lock the sale: it is read under the lock of the item.
      const { rows } = await session.query('SELECT total, reserved, sold, blocked FROM items WHERE id = ? FOR UPDATE', [
        BigInt(item.id),
      ]);
      const now = countsOfRow(rows[0]!);
      const total = now.total + add;
      if (total > BOUNDS.stockMax) {
        return { outcome: 'invalid_request', path: '/add', message: `would lift the total above ${BOUNDS.stockMax}` };
      }
      if (add < 0 && ledgerFree(now) < -add) return { outcome: 'insufficient_free' };
      await session.query('UPDATE items SET total = ?, rev = rev + 1 WHERE id = ?', [total, BigInt(item.id)]);
      return { outcome: 'done', action: 'sale.stock', detail: { item: itemCode, add, total } };
    });
  }

  setPaused(saleId: string, paused: boolean, call: AdminCall): Promise<SaleChange> {
    return this.#change(saleId, call, async (session, sale, nowMs) => {
      if (sale.closed) return { outcome: 'sale_closed' };
      await this.#setFlag(session, 'paused', paused, sale, nowMs);
      return { outcome: 'done', action: paused ? 'sale.pause' : 'sale.resume', detail: {} };
    });
  }

  close(saleId: string, call: AdminCall): Promise<SaleChange> {
    return this.#change(saleId, call, async (session, sale, nowMs) => {
      await this.#setFlag(session, 'closed', true, sale, nowMs);
      return { outcome: 'done', action: 'sale.close', detail: {} };
    });
  }

  async unfinishedTasks(session: Session, olderMs: number): Promise<GateTask[]> {
    const nowMs = await this.#database.now(session);
    const { rows } = await session.query(
      'SELECT audit_id, sale_id FROM gate_tasks WHERE created_at < ? ORDER BY audit_id',
      [nowMs - olderMs],
    );
    return rows.map((row) => ({ auditId: row.audit_id as string, saleId: row.sale_id as string }));
  }

  async finishTask(session: Session, auditId: string): Promise<void> {
    await session.query('DELETE FROM gate_tasks WHERE audit_id = ?', [BigInt(auditId)]);
  }

  /** Pausing what is paused changes nothing, and so raises no version. */
  async #setFlag(
    session: Session,
    flag: 'paused' | 'closed',
    on: boolean,
    sale: SaleRecord,
    nowMs: number,
  ): Promise<void> {
    if (sale[flag] === on) return;
    await session.query(`UPDATE sales SET ${flag} = ?, version = version + 1, updated_at = ? WHERE id = ?`, [
      on ? 1 : 0,
      nowMs,
      BigInt(sale.id),
    ]);
  }

  #change(saleId: string, call: AdminCall, change: Change): Promise<SaleChange> {
    return this.#transaction(async (session, nowMs) => {
      const { rows } = await session.query(`${this.#select} WHERE id = ? FOR UPDATE`, [BigInt(saleId)]);
      if (rows.length === 0) return { outcome: 'not_found' };
      const repeated = await this.#keys.take(session, call, nowMs);
      if (repeated) return repeated;
      const [sale] = await this.#withItems(session, rows);
      const result = await change(session, sale!, nowMs);
      return result.outcome === 'done' ? this.#done(session, saleId, call, nowMs, result) : result;
    });
  }

  /** Only a change is committed: a refusal leaves nothing, not even its key. */
  #transaction(run: (session: Session, nowMs: number) => Promise<SaleChange>): Promise<SaleChange> {
    return this.#database.attempt(async (session) => {
      await session.query(this.#database.dialect.begin);
      const change = await run(session, await this.#database.now(session));
      await session.query(change.outcome === 'changed' ? 'COMMIT' : 'ROLLBACK');
      return change;
    });
  }

  async #done(
    session: Session,
    saleId: string,
    call: AdminCall,
    nowMs: number,
    entry: AuditEntry,
  ): Promise<SaleChange> {
    const { auditId, by } = call;
    const { action, detail } = entry;
    const note = auditStep([{ auditId, by, action, subject: `sale:${saleId}`, detail }], nowMs);
    await this.#database.dialect.steps.run(session, [note]);
    await session.query('INSERT INTO gate_tasks (audit_id, sale_id, created_at) VALUES (?, ?, ?)', [
      BigInt(auditId),
      BigInt(saleId),
      nowMs,
    ]);
    const sale = (await this.get(session, saleId))!;
    const answer = call.answer(sale);
    await this.#keys.bindAnswer(session, call, answer, nowMs);
    return { outcome: 'changed', sale, answer };
  }
}

function countsOfRow(row: Row): Pick<ItemRecord, 'total' | 'reserved' | 'sold' | 'blocked'> {
  return {
    total: Number(row.total),
    reserved: Number(row.reserved),
    sold: Number(row.sold),
    blocked: Number(row.blocked),
  };
}

function itemOfRow(row: Row): ItemRecord {
  return {
    id: row.id as string,
    code: row.code as string,
    name: row.name as string,
    price: { amount: Number(row.amount), currency: row.currency as string },
    kind: row.kind as ItemKind,
    ...countsOfRow(row),
    epoch: Number(row.epoch),
    rev: Number(row.rev),
  };
}
