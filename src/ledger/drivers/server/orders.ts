import { TerminalError } from '../../../base/errors.ts';
import { firstRecord, type OrderMessage, type OrderRecord } from '../../../model/order.ts';
import type { RejectReason } from '../../../model/outcome.ts';
import type { AuditNote } from '../../port/audit.ts';
import { KEY_KEPT_MS, type OrderKeyBinding, type OrderKeyScope } from '../../port/keys.ts';
import type { OrderFilter, StoredOrder } from '../../port/orders.ts';
import type { Page } from '../../port/page.ts';
import {
  byId,
  claimPlace,
  type Found,
  type ItemState,
  type Judgement,
  judge,
  keyPlace,
  mustBeSame,
  mustBeWellFormed,
  NOTHING_FOUND,
  type StoredContent,
  slotsText,
} from '../../rules/backstops.ts';
import type { OrderStore } from '../../store.ts';
import { auditStep, placedNotes } from '../../works/audit.ts';
import { reservedEvents } from '../../works/events.ts';
import { type GateRow, PAGE_ORDERS } from '../../works/gate-pages.ts';
import { findOrderKey, GATE_COLUMNS, gateRowOf, listOrders, rowsAmong } from '../../works/orders.ts';
import { seatsTaken } from '../../works/seats.ts';
import { ConflictError, type Work } from '../../works/work.ts';
import type { Database } from './database.ts';
import type { Written } from './dialect.ts';
import type { Session } from './session.ts';

/** What the orders need of their store. */
interface On {
  mustBeAlone(): void;
  look<T>(work: () => Work<T>): Promise<T>;
  /** Runs work inside the session's open transaction. */
  within<T>(session: Session, work: Work<T>): Promise<T>;
}

/** Locked items and the time, as the first round trip of a batch brings them. */
interface Ground {
  items: Map<string, ItemState>;
  nowMs: number;
}

/**
 * Orders: the batched insert with its backstops, and reads.
 *
 * Unique keys and conditional updates decide, never a read before them: claims, seats and keys by their indexes, epoch and units
 * by the update of the item row, in id order.
 *
 *   quick     assumes that nothing of the batch is in the ledger, which is so unless something went wrong. It reads the items
 *             without locking them, decides, and writes, the hot rows of the items last. The counts of rows really inserted
 *             and changed prove the assumption. Three round trips: read, write, commit; two where the database checks the
 *             counts itself (`Written`). Writers of one item insert side by side, and wait for each other only while one
 *             commits.
 *   careful   counts disagree, or a backstop refused an order. It locks the items, reads what is stored and decides by that.
 *             The counts must agree here, too; if another writer came in between, the transaction is rolled back and retried.
 */
export class Orders implements OrderStore {
  readonly #database: Database;
  readonly #on: On;
  /** Claims, keys and lists are written with the order: nothing is left for later. */
  readonly tail = null;

  constructor(database: Database, on: On) {
    this.#database = database;
    this.#on = on;
  }

  async commit(batch: readonly OrderMessage[], keepEvents: boolean): Promise<StoredOrder[]> {
    this.#on.mustBeAlone();
    if (batch.length === 0) return [];
    for (const message of batch) mustBeWellFormed(message);
    const quick = await this.#database.attempt((session) => this.#quickly(session, batch, keepEvents));
    if (quick !== null) return quick;
    return this.#database.attempt(async (session) => {
      const ground = await this.#lockItems(session, batch);
      const { found, rows, expired } = await this.#find(session, batch, ground.nowMs);
      mustBeSame(batch, rows);
      const judgement = judge(batch, ground.items, found);
      await this.#forgetKeys(session, judgement, expired);
      return this.#writeFound(session, batch, judgement, ground, rows, keepEvents);
    });
  }

  /** Null: the careful path must decide; nothing was written. */
  async #quickly(session: Session, batch: readonly OrderMessage[], keepEvents: boolean): Promise<StoredOrder[] | null> {
    const ground = await this.#ground(session, batch, this.#database.dialect.lockFirst);
    const judgement = judge(batch, ground.items, NOTHING_FOUND);
    const stored = judgement.clean ? this.#answers(batch, judgement, ground, new Map()) : null;
    const how = { hopefully: true, keepEvents };
    const written = stored === null ? 'hindered' : await this.#write(session, batch, judgement, ground, how, stored);
    if (written !== 'committed') await session.query(written === 'written' ? 'COMMIT' : 'ROLLBACK');
    return written === 'hindered' ? null : stored;
  }

  async reject(batch: readonly OrderMessage[], reason: RejectReason, note?: AuditNote): Promise<StoredOrder[]> {
    this.#on.mustBeAlone();
    if (batch.length === 0) return [];
    for (const message of batch) mustBeWellFormed(message);
    return this.#database.attempt(async (session) => {
      const ground = await this.#lockItems(session, batch);
      const rows = await this.#on.within(session, rowsAmong(batch.map(({ orderId }) => orderId)));
      const fresh = new Map<string, OrderMessage>();
      for (const message of batch) if (!rows.has(message.orderId)) fresh.set(message.orderId, message);
      const judgement: Judgement = {
        fresh: [...fresh.values()].map((message) => ({ message, slots: slotsText(message), reason })),
        repeated: [],
        taken: [],
        clean: false,
      };
      if (note !== undefined) await this.#database.dialect.steps.run(session, [auditStep([note], ground.nowMs)]);
      // Nothing is reserved here.
      return this.#writeFound(session, batch, judgement, ground, rows, false);
    });
  }

  #lockItems(session: Session, batch: readonly OrderMessage[]): Promise<Ground> {
    return this.#ground(session, batch, true);
  }

  async #ground(session: Session, batch: readonly OrderMessage[], lock: boolean): Promise<Ground> {
    const { begin, byPrimaryKey, announced } = this.#database.dialect;
    const itemIds = new Set<string>();
    const saleIds = new Set<string>();
    for (const { itemId, saleId } of batch) {
      itemIds.add(itemId);
      saleIds.add(saleId);
    }
    const sorted = [...itemIds].sort(byId);
    const clock = this.#database.clockInScript;
    const opening = lock || announced === null ? [begin] : [begin, announced.say(sorted)];
    // The limits are read after the items are locked: a snapshot taken before could be older than the admissions.
    const results = await session.script(
      `${opening.join('; ')}; SELECT id, sale_id, code, epoch, total - reserved - sold - blocked AS free,
         CASE kind WHEN 'seated' THEN total END AS seats FROM items ${byPrimaryKey}
         WHERE id IN (${sorted.join(', ')}) ORDER BY id${lock ? ' FOR UPDATE' : ''};
       SELECT id, per_buyer_max FROM sales WHERE id IN (${[...saleIds].join(', ')})${clock.sql}`,
    );
    const [locked, limits, now] = results.slice(opening.length);
    const perBuyerMax = new Map(limits!.rows.map((row) => [row.id as string, Number(row.per_buyer_max)]));
    const items = new Map<string, ItemState>();
    for (const { id, sale_id, code, epoch, free, seats } of locked!.rows) {
      const saleId = sale_id as string;
      items.set(id as string, {
        id: id as string,
        saleId,
        code: code as string,
        epoch: Number(epoch),
        free: Number(free),
        perBuyerMax: perBuyerMax.get(saleId) ?? 0,
        seats: seats === null ? null : Number(seats),
      });
    }
    for (const { itemId, orderId } of batch) {
      if (!items.has(itemId))
        throw new TerminalError('item_unknown', `order ${orderId} is of item ${itemId}: there is none`);
    }
    return { items, nowMs: clock.read(now) };
  }

  async #write(
    session: Session,
    batch: readonly OrderMessage[],
    { fresh, taken }: Judgement,
    { nowMs }: Ground,
    { hopefully, keepEvents }: { hopefully: boolean; keepEvents: boolean },
    stored: readonly StoredOrder[],
  ): Promise<Written> {
    const events = keepEvents ? reservedEvents(stored) : null;
    const notes = placedNotes(batch, stored);
    const also = [
      ...(events === null ? [] : [{ ...events, leavePresent: true } as const]),
      ...(notes.length === 0 ? [] : [auditStep(notes, nowMs)]),
    ];
    const rows = { orders: fresh, also, taken, nowMs, hopefully };
    return this.#database.dialect.orders.write(session, rows);
  }

  /** Writes what was decided on the careful path, and commits. */
  async #writeFound(
    session: Session,
    batch: readonly OrderMessage[],
    judgement: Judgement,
    ground: Ground,
    rows: ReadonlyMap<string, StoredContent>,
    keepEvents: boolean,
  ): Promise<StoredOrder[]> {
    const stored = this.#answers(batch, judgement, ground, rows);
    const how = { hopefully: false, keepEvents };
    const written = judgement.fresh.length === 0 || (await this.#write(session, batch, judgement, ground, how, stored));
    if (written === 'hindered') throw new ConflictError('another writer came in between');
    if (written !== 'committed') await session.query('COMMIT');
    return stored;
  }

  /** Orders, claims, keys and seats that a batch may collide with. */
  async #find(
    session: Session,
    batch: readonly OrderMessage[],
    nowMs: number,
  ): Promise<{ found: Found; rows: Map<string, StoredContent>; expired: Set<string> }> {
    const rows = await this.#on.within(session, rowsAmong(batch.map(({ orderId }) => orderId)));
    const buyers = new Map<string, Set<string>>();
    for (const { saleId, buyer } of batch) {
      const those = buyers.get(saleId);
      if (those === undefined) buyers.set(saleId, new Set([buyer]));
      else those.add(buyer);
    }
    const claims = new Set<string>();
    const keys = new Set<string>();
    const expired = new Set<string>();
    for (const [saleId, those] of buyers) {
      const taken = await session.query('SELECT buyer, slot FROM claims WHERE sale_id = ? AND buyer IN (?)', [
        BigInt(saleId),
        [...those],
      ]);
      for (const { buyer, slot } of taken.rows) claims.add(claimPlace(saleId, buyer as string, Number(slot)));
      const bound = await session.query(
        'SELECT buyer, idem_key, created_at FROM orders WHERE buyer IN (?) AND sale_id = ? AND idem_key IS NOT NULL',
        [[...those], BigInt(saleId)],
      );
      for (const { buyer, idem_key, created_at } of bound.rows) {
        const place = keyPlace(saleId, buyer as string, idem_key as string);
        if (Number(created_at) > nowMs - KEY_KEPT_MS) keys.add(place);
        else expired.add(place);
      }
    }
    const seats = await this.#on.within(session, seatsTaken(batch));
    return { found: { orders: new Set(rows.keys()), claims, keys, seats }, rows, expired };
  }

  /** An expired key that is not pruned yet must not keep the next order from binding it. */
  async #forgetKeys(session: Session, { fresh }: Judgement, expired: ReadonlySet<string>): Promise<void> {
    for (const { message, reason } of fresh) {
      const { saleId, buyer, key } = message;
      if (reason !== null || key === null || !expired.has(keyPlace(saleId, buyer, key))) continue;
      await session.query('UPDATE orders SET idem_key = NULL WHERE buyer = ? AND sale_id = ? AND idem_key = ?', [
        buyer,
        BigInt(saleId),
        key,
      ]);
    }
  }

  #answers(
    batch: readonly OrderMessage[],
    { fresh }: Judgement,
    { items, nowMs }: Ground,
    rows: ReadonlyMap<string, StoredContent>,
  ): StoredOrder[] {
    const made = new Map<string, OrderRecord>();
    for (const { message, reason } of fresh) {
      made.set(message.orderId, firstRecord({ ...message, itemCode: items.get(message.itemId)!.code }, reason, nowMs));
    }
    const told = new Set<string>();
    return batch.map(({ orderId }) => {
      const order = made.get(orderId);
      if (order === undefined) return { order: rows.get(orderId)!.order, inserted: false };
      const inserted = !told.has(orderId);
      told.add(orderId);
      return { order, inserted };
    });
  }

  list(filter: OrderFilter, page: Page): Promise<OrderRecord[]> {
    return this.#on.look(() => listOrders(filter, page));
  }

  findKey(scope: OrderKeyScope): Promise<OrderKeyBinding | null> {
    return this.#on.look(() => findOrderKey(scope));
  }

  page(saleId: string, afterId: string): Promise<GateRow[]> {
    const sql = this.#database.dialect.ordersAfter(GATE_COLUMNS, BigInt(saleId), BigInt(afterId), PAGE_ORDERS);
    return this.#database.read(async (session) => {
      const results = await session.script(sql);
      return (results.find((each) => each.rows.length > 0)?.rows ?? []).map(gateRowOf);
    });
  }
}
