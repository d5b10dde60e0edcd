import type { DatabaseSync } from 'node:sqlite';
import {
  BOUNDS,
  type ItemRecord,
  ledgerFree,
  type NewSale,
  type SalePatch,
  type SaleRecord,
  type SaleStamp,
  stampOf,
  windowFaults,
} from '../../model/sale.ts';
import { writeNotes } from '../life/audit.ts';
import type { AdminCall, Page, SaleChange, SaleIds } from '../port.ts';
import type { Keys } from './keys.ts';
import type { Steps } from './steps.ts';

interface SaleRow extends Omit<SaleRecord, 'items' | 'paused' | 'closed' | 'readAtMs'> {
  paused: number;
  closed: number;
}

interface ItemRow extends Omit<ItemRecord, 'price'> {
  amount: number;
  currency: string;
}

const SALE_COLUMNS = `CAST(id AS TEXT) AS id, name, opens_at AS opensAtMs, closes_at AS closesAtMs, per_buyer AS perBuyer,
  pay_within AS payWithinSeconds, paused, closed, version, created_at AS createdAtMs`;

/** What one administrative change does, once its key and its sale are found. Runs inside the transaction. */
type Change = (
  sale: SaleRecord,
  nowMs: number,
) => Exclude<SaleChange, { outcome: 'changed' | 'replayed' }> | AuditEntry;

interface AuditEntry {
  outcome: 'done';
  action: string;
  detail: unknown;
}

/** Sales and items, and every administrative change of them with its audit row and key, inside one transaction. */
export class Sales {
  readonly #db: DatabaseSync;
  readonly #keys: Keys;
  readonly #now: () => number;
  readonly #get;
  readonly #items;
  readonly #steps: Steps;

  constructor(db: DatabaseSync, keys: Keys, steps: Steps, now: () => number) {
    this.#db = db;
    this.#keys = keys;
    this.#now = now;
    this.#steps = steps;
    this.#get = db.prepare(`SELECT ${SALE_COLUMNS} FROM sales WHERE id = ?`);
    this.#items = db.prepare(
      `SELECT CAST(id AS TEXT) AS id, code, name, amount, currency, kind, total, reserved, sold, blocked, epoch, rev
       FROM items WHERE sale_id = ? ORDER BY position`,
    );
  }

  get(saleId: string): SaleRecord | null {
    const row = this.#get.get(BigInt(saleId)) as unknown as SaleRow | undefined;
    return row === undefined ? null : this.#withItems(row);
  }

  stamps(saleIds: readonly string[]): Map<string, SaleStamp> {
    const stamps = new Map<string, SaleStamp>();
    for (const id of saleIds) {
      const sale = this.get(id);
      if (sale !== null) stamps.set(id, stampOf(sale));
    }
    return stamps;
  }

  list(page: Page): SaleRecord[] {
    const rows = (page.before === null
      ? this.#db.prepare(`SELECT ${SALE_COLUMNS} FROM sales ORDER BY sales.id DESC LIMIT ?`).all(page.limit)
      : this.#db
          .prepare(`SELECT ${SALE_COLUMNS} FROM sales WHERE sales.id < ? ORDER BY sales.id DESC LIMIT ?`)
          .all(BigInt(page.before), page.limit)) as unknown as SaleRow[];
    return rows.map((row) => this.#withItems(row));
  }

  openIds(nowMs: number): string[] {
    const rows = this.#db
      .prepare('SELECT CAST(id AS TEXT) AS id FROM sales WHERE closed = 0 AND closes_at > ? ORDER BY sales.id')
      .all(nowMs);
    return (rows as { id: string }[]).map((row) => row.id);
  }

  raiseEpoch(saleId: string, above: number): void {
    const raise = 'UPDATE items SET epoch = max(epoch, ?) + 1, rev = rev + 1 WHERE sale_id = ?';
    this.#db.prepare(raise).run(above, BigInt(saleId));
  }

  #withItems(row: SaleRow): SaleRecord {
    const items = this.#items.all(BigInt(row.id)) as unknown as ItemRow[];
    return {
      ...row,
      paused: row.paused === 1,
      closed: row.closed === 1,
      readAtMs: this.#now(),
      items: items.map(({ amount, currency, ...item }) => ({ ...item, price: { amount, currency } })),
    };
  }

  create(sale: NewSale & SaleIds, call: AdminCall, nowMs: number): SaleChange {
    const repeated = this.#repeated(call, nowMs);
    if (repeated) return repeated;
    this.#db
      .prepare(
        `INSERT INTO sales (id, name, opens_at, closes_at, per_buyer, per_buyer_max, pay_within, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7, ?7)`,
      )
      .run(BigInt(sale.id), sale.name, sale.opensAtMs, sale.closesAtMs, sale.perBuyer, sale.payWithinSeconds, nowMs);
    const insertItem = this.#db.prepare(
      `INSERT INTO items (id, sale_id, position, code, name, amount, currency, kind, total) VALUES (?, ?, ?, ?, ?, ?, ?, 'counted', ?)`,
    );
    for (const [position, item] of sale.items.entries()) {
      const { amount, currency } = item.price;
      const id = BigInt(sale.itemIds[position]!);
      insertItem.run(id, BigInt(sale.id), position, item.code, item.name, amount, currency, item.stock);
    }
    return this.#done(sale.id, call, nowMs, { outcome: 'done', action: 'sale.create', detail: { name: sale.name } });
  }

  patch(saleId: string, patch: SalePatch, version: number, call: AdminCall, nowMs: number): SaleChange {
    return this.#change(saleId, call, nowMs, (sale) => {
      if (sale.version !== version) return { outcome: 'version_conflict' };
      if (sale.closed) return { outcome: 'sale_closed' };
      const next = { ...sale, ...patch };
      const fault = windowFaults(next.opensAtMs, next.closesAtMs)[0];
      if (fault) return { outcome: 'invalid_request', ...fault };
      this.#db
        .prepare(
          `UPDATE sales SET name = ?, opens_at = ?, closes_at = ?, per_buyer = ?4, per_buyer_max = max(per_buyer_max, ?4),
             pay_within = ?, version = version + 1, updated_at = ? WHERE id = ? AND version = ?`,
        )
        .run(
          next.name,
          next.opensAtMs,
          next.closesAtMs,
          next.perBuyer,
          next.payWithinSeconds,
          nowMs,
          BigInt(saleId),
          version,
        );
      return { outcome: 'done', action: 'sale.patch', detail: patch };
    });
  }

  addStock(saleId: string, itemCode: string, add: number, call: AdminCall, nowMs: number): SaleChange {
    return this.#change(saleId, call, nowMs, (sale) => {
      const item = sale.items.find(({ code }) => code === itemCode);
      if (item === undefined) return { outcome: 'not_found' };
      if (sale.closed) return { outcome: 'sale_closed' };
      if (item.kind !== 'counted') {
        return { outcome: 'invalid_request', path: '/add', message: 'a seated item has no stock to add to' };
      }
      const total = item.total + add;
      if (total > BOUNDS.stockMax) {
        return { outcome: 'invalid_request', path: '/add', message: `would lift the total above ${BOUNDS.stockMax}` };
      }
      if (add < 0 && ledgerFree(item) < -add) return { outcome: 'insufficient_free' };
      this.#db.prepare('UPDATE items SET total = ?, rev = rev + 1 WHERE id = ?').run(total, BigInt(item.id));
      return { outcome: 'done', action: 'sale.stock', detail: { item: itemCode, add, total } };
    });
  }

  setPaused(saleId: string, paused: boolean, call: AdminCall, nowMs: number): SaleChange {
    return this.#change(saleId, call, nowMs, (sale) => {
      if (sale.closed) return { outcome: 'sale_closed' };
      this.#setFlag('paused', paused, sale, nowMs);
      return { outcome: 'done', action: paused ? 'sale.pause' : 'sale.resume', detail: {} };
    });
  }

  close(saleId: string, call: AdminCall, nowMs: number): SaleChange {
    return this.#change(saleId, call, nowMs, (sale) => {
      this.#setFlag('closed', true, sale, nowMs);
      return { outcome: 'done', action: 'sale.close', detail: {} };
    });
  }

  /** Pausing what is paused changes nothing, and so raises no version. */
  #setFlag(flag: 'paused' | 'closed', on: boolean, sale: SaleRecord, nowMs: number): void {
    if (sale[flag] === on) return;
    this.#db
      .prepare(`UPDATE sales SET ${flag} = ?, version = version + 1, updated_at = ? WHERE id = ?`)
      .run(on ? 1 : 0, nowMs, BigInt(sale.id));
  }

  #change(saleId: string, call: AdminCall, nowMs: number, change: Change): SaleChange {
    const sale = this.get(saleId);
    if (sale === null) return { outcome: 'not_found' };
    const repeated = this.#repeated(call, nowMs);
    if (repeated) return repeated;
    const result = change(sale, nowMs);
    return result.outcome === 'done' ? this.#done(saleId, call, nowMs, result) : result;
  }

  #repeated(call: AdminCall, nowMs: number): SaleChange | null {
    if (call.keyed === null) return null;
    const bound = this.#keys.find(call.keyed, nowMs);
    if (bound === null) return null;
    if (bound.fingerprint !== call.keyed.fingerprint) return { outcome: 'idempotency_key_reused' };
    return { outcome: 'replayed', answer: bound.answer };
  }

  #done(saleId: string, call: AdminCall, nowMs: number, entry: AuditEntry): SaleChange {
    const { auditId, by } = call;
    const { action, detail } = entry;
    this.#steps.do(writeNotes([{ auditId, by, action, subject: `sale:${saleId}`, detail }], nowMs));
    const sale = this.get(saleId)!;
    const answer = call.answer(sale);
    if (call.keyed) this.#keys.bindAnswer(call.keyed, answer, nowMs);
    return { outcome: 'changed', sale, answer };
  }
}
