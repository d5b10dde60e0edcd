import { unitsAt } from '../../model/life.ts';
import type { Money } from '../../model/money.ts';
import type { OrderRecord } from '../../model/order.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import type { WebhookEvent } from '../../model/webhook.ts';
import type { AuditNote } from '../port/audit.ts';
import type { Believed, Move, Moved } from '../port/payments.ts';
import { byId } from '../rules/backstops.ts';
import type { StoredRefund } from '../rules/decide.ts';
import { CONFIRM, type Decision, decideMove, type MoneyState } from '../rules/decide.ts';
import { auditStep } from './audit.ts';
import { eventStep } from './events.ts';
import { type BatchOrder, type ItemFacts, OrderBatch, raiseFence, type Wanted } from './order-batch.ts';
import { writePayments } from './payments.ts';
import { doneRefunds, toldRefunds, voidRefundsOf } from './refunds.ts';
import { type Cells, ConflictError, type LifeDialect, query, type Work, Writes } from './work.ts';

export interface MoveOptions {
  /** An event of each is stored for the webhooks. */
  readonly keepEvents: boolean;
  /**
   * Takes for true what the moves believe, and that nobody else has their references. If that is wrong, a row is not there or
   * a constraint fails, and nothing is stored: the batch is to be done again without believing.
   */
  readonly believing: boolean;
}

/**
 * Moves of a batch, in its order: each is decided by what those before it have left. Then all of it is written in one
 * round: an order once, whatever was done to it, and the hot rows of the items last.
 */
export function* moveOrders(
  batch: readonly Move[],
  dialect: LifeDialect,
  items: ItemFacts,
  { keepEvents, believing }: MoveOptions,
): Work<Moved[]> {
  if (batch.length === 0) return [];
  const loaded = yield* OrderBatch.open(dialect, items, wantedBy(batch, believing));
  const changes = new Changes();
  const moved = batch.map((move): Moved => {
    const entry = loaded.entry(move.orderId);
    const part = loaded.refundOf(move);
    const decision = decideMove(move, entry && loaded.stateOf(entry), moneyOf(loaded, move), loaded.nowMs, part);
    // Only a move proves what it believed, by the rows that it changes. Any other outcome must be decided by what is read; also
    // since another attempt may have the reference, which was not looked for.
    if (believing && move.money !== undefined && decision.outcome !== 'moved') {
      throw new ConflictError(`order ${move.orderId} is not as believed: ${decision.outcome}`);
    }
    if (entry !== null) changes.note(move, decision, entry, loaded);
    return { outcome: decision.outcome, order: entry?.order ?? null, attempt: decision.attempt };
  });
  const writes = new Writes();
  changes.write(writes, loaded, keepEvents);
  yield* writes.last();
  return moved;
}

function wantedBy(batch: readonly Move[], believing: boolean): Wanted {
  const wanted = {
    orderIds: new Set<string>(),
    attemptIds: new Set<string>(),
    references: new Set<string>(),
    believed: new Map<string, Believed>(),
    refunds: { ids: new Set<string>(), madeWith: new Set<string>() },
  };
  for (const { orderId, money, revives, believed, part, refunds } of batch) {
    if (believing && believed !== undefined) {
      wanted.believed.set(orderId, believed);
      continue;
    }
    wanted.orderIds.add(orderId);
    if (part !== undefined && 'own' in part) wanted.refunds.ids.add(part.own);
    if (part !== undefined && 'told' in part) {
      wanted.refunds.madeWith.add(part.told);
      if (refunds !== undefined) wanted.attemptIds.add(refunds);
    }
    // Late money is moved under the locks of both orders.
    if (revives !== undefined) wanted.orderIds.add(revives);
    if (money === undefined) continue;
    if ('capture' in money) wanted.attemptIds.add(money.capture);
    const reference = 'capture' in money ? money.reference : money.taken;
    if (reference !== null && !believing) wanted.references.add(reference);
  }
  // An order that is read is not believed.
  for (const orderId of wanted.orderIds) wanted.believed.delete(orderId);
  return wanted;
}

function moneyOf(loaded: OrderBatch, { money }: Move): MoneyState {
  if (money === undefined) return { named: null, referenced: null };
  return 'capture' in money
    ? loaded.moneyOf(money.capture, null, money.reference)
    : loaded.moneyOf(money.attemptId, CONFIRM, money.taken);
}

/** What the ledger's clock must say of the order's time, in the UPDATE itself: by the move that took it out of `reserved`. */
type Timed = 'over' | 'left' | 'any';

const CONDITIONS: Record<Timed, string | null> = { over: 't.expires_at <= ?', left: 't.expires_at > ?', any: null };

/** What a batch has changed, and how that is written. */
class Changes {
  /** By the first move of each. */
  readonly #orders = new Map<BatchOrder, Timed>();
  readonly #audit: AuditNote[] = [];
  readonly #versions: { readonly order: OrderRecord; readonly type: WebhookEvent }[] = [];
  readonly #done: { readonly id: string; readonly reference: string | null }[] = [];
  readonly #told: { readonly refund: StoredRefund; readonly move: Move }[] = [];
  /** Attempts whose money is back as a whole. */
  readonly #back: string[] = [];

  note(move: Move, { to, attempt, stores, outcome, revives }: Decision, entry: BatchOrder, loaded: OrderBatch): void {
    const { orderId, auditId, by, event } = move;
    const before = entry.order;
    const subject = `order:${orderId}`;
    const named = attempt === null ? {} : { attempt: attempt.id, provider: attempt.provider };
    const given = to === null ? {} : this.#noteRefund(move, attempt, loaded);
    if (stores && attempt !== null) {
      if (loaded.has(attempt.id)) loaded.put(attempt);
      else loaded.open(attempt, by, null);
    }
    if (to !== null) {
      if (!this.#orders.has(entry)) this.#orders.set(entry, timed(move));
      entry.order = {
        ...before,
        status: to,
        version: before.version + 1,
        // It never goes back, whatever the clock does: events of an order are told by their time.
        updatedAtMs: Math.max(loaded.nowMs, before.updatedAtMs),
        revives: revives ?? before.revives,
      };
      if (move.fence !== null) raiseFence(entry, BigInt(move.fence));
      this.#versions.push({ order: entry.order, type: EVENT_TYPES[event] });
      const detail = { from: before.status, to, ...named, ...given, ...(revives === null ? {} : { revives }) };
      this.#audit.push({ auditId, by, action: `order.${event}`, subject, detail });
    } else if (stores) {
      const detail = { ...named, outcome, status: before.status, amount: attempt!.amount };
      this.#audit.push({ auditId, by, action: 'payment.late', subject, detail });
    }
  }

  /** What goes back with it, for the audit. */
  #noteRefund(move: Move, attempt: PaymentAttempt | null, loaded: OrderBatch): { amount?: Money; refunded?: Money } {
    const { event, part, orderId } = move;
    if (attempt === null || (event !== 'refund' && event !== 'refund_part')) return {};
    const { currency } = attempt.amount;
    const before = loaded.attempt(attempt.id)?.refunded ?? 0;
    const given = {
      amount: { amount: attempt.refunded - before, currency },
      refunded: { amount: attempt.refunded, currency },
    };
    if (part === undefined) {
      this.#back.push(attempt.id);
      return given;
    }
    if ('own' in part) {
      const stored = loaded.refundOf(move)!;
      loaded.putRefund({ ...stored, state: 'done', nextAtMs: null });
      this.#done.push({ id: stored.id, reference: part.reference });
      return { ...given, amount: stored.amount };
    }
    if ('told' in part) {
      const refund: StoredRefund = {
        ...{ id: part.id, attemptId: attempt.id, orderId, amount: part.amount, backBefore: before },
        ...{ state: 'done', madeWith: part.told, error: null, nextAtMs: null, tries: 0, createdAtMs: loaded.nowMs },
      };
      loaded.putRefund(refund);
      this.#told.push({ refund, move });
    }
    return given;
  }

  get freed(): BatchOrder[] {
    return [...this.#orders.keys()].filter(({ order }) => unitsAt(order.status) === null);
  }

  write(writes: Writes, loaded: OrderBatch, keepEvents: boolean): void {
    // By id, as they are locked where they are read: no deadlock.
    const entries = [...this.#orders.keys()].sort((a, b) => byId(a.order.id, b.order.id));
    for (const time of ['over', 'left', 'any'] as const) {
      const some = entries.filter((entry) => this.#orders.get(entry) === time);
      writes.addRows(updateOrders(some, CONDITIONS[time], loaded.nowMs));
    }
    writePayments(writes, loaded);
    writes.addRows(doneRefunds(this.#done, loaded.nowMs));
    writes.addRows(toldRefunds(this.#told, loaded.nowMs));
    if (this.#back.length > 0) writes.add(voidRefundsOf(this.#back, loaded.nowMs), null);
    const { freed } = this;
    writes.addRows({ do: 'delete', table: 'claims', match: CLAIM, rows: claimsOf(freed) }, false);
    writes.addRows({ do: 'delete', table: 'seat_claims', match: SEAT_CLAIM, rows: seatClaimsOf(freed) }, false);
    if (freed.length > 0) {
      writes.add({ do: 'freed', orders: freed.map(({ order }) => ({ orderId: order.id, buyer: order.buyer })) }, null);
    }
    writes.addRows(auditStep(this.#audit, loaded.nowMs));
    if (keepEvents) writes.addRows(eventStep(this.#versions));
    for (const [itemId, { reserved, sold }] of unitsOf(entries)) {
      const move = 'UPDATE items SET reserved = reserved + ?, sold = sold + ?, rev = rev + 1 WHERE id = ?';
      writes.add(query(move, reserved, sold, BigInt(itemId)), 1);
    }
    if (freed.length === 0) return;
    const ids = freed.map(({ order }) => BigInt(order.id));
    writes.add(
      query(
        `INSERT INTO release_outbox (order_id, sale_id, item_id, buyer, units, rev, created_at)
         SELECT o.id, o.sale_id, o.item_id, o.buyer, o.quantity, i.rev, o.updated_at
         FROM orders o JOIN items i ON i.id = o.item_id WHERE o.id IN (?)`,
        ids,
      ),
      freed.length,
    );
  }
}

const EVENT_TYPES = {
  pay: 'order.paid',
  cancel: 'order.cancelled',
  expire: 'order.expired',
  refund: 'order.refunded',
  refund_part: 'order.partly_refunded',
} as const satisfies Record<Move['event'], WebhookEvent>;

function timed({ event, money }: Move): Timed {
  if (event === 'expire') return 'over';
  return money !== undefined && 'taken' in money ? 'left' : 'any';
}

function updateOrders(entries: readonly BatchOrder[], condition: string | null, nowMs: number) {
  // Both are rare: a token that the attempt does not have already, and late money.
  const fenced = entries.some(({ fence, first }) => fence !== first.fence);
  const revives = entries.some(({ order }) => order.revives !== null);
  return {
    do: 'update' as const,
    table: 'orders',
    match: ['id', 'status', 'version'],
    set: ['status', 'version', 'updated_at', ...(fenced ? ['fence'] : []), ...(revives ? ['revives'] : [])],
    rows: entries.map(
      ({ order, first, fence }): Cells => [
        BigInt(order.id),
        first.status,
        first.version,
        order.status,
        order.version,
        order.updatedAtMs,
        ...(fenced ? [fence] : []),
        ...(revives ? [order.revives === null ? null : BigInt(order.revives)] : []),
      ],
    ),
    ...(condition === null ? {} : { and: { sql: condition, values: [nowMs] } }),
  };
}

const CLAIM = ['sale_id', 'buyer', 'slot', 'order_id'];

/** Exactly their own claims, and sorted: no deadlock. */
function claimsOf(entries: readonly BatchOrder[]): Cells[] {
  return entries
    .flatMap(({ order, slots }) =>
      slots.split(',').map((slot) => ({ saleId: order.saleId, buyer: order.buyer, slot: Number(slot), id: order.id })),
    )
    .sort((a, b) => byId(a.saleId, b.saleId) || (a.buyer < b.buyer ? -1 : a.buyer > b.buyer ? 1 : a.slot - b.slot))
    .map(({ saleId, buyer, slot, id }) => [BigInt(saleId), buyer, slot, BigInt(id)]);
}

const SEAT_CLAIM = ['item_id', 'seat', 'order_id'];

/** Exactly their own seats, and sorted: no deadlock. */
function seatClaimsOf(entries: readonly BatchOrder[]): Cells[] {
  return entries
    .flatMap(({ order: { id, itemId, seats = [] } }) => seats.map((seat) => ({ itemId, seat, id })))
    .sort((a, b) => byId(a.itemId, b.itemId) || a.seat - b.seat)
    .map(({ itemId, seat, id }) => [BigInt(itemId), seat, BigInt(id)]);
}

/** How many units of each item go where, items in the order of their ids. */
function unitsOf(entries: readonly BatchOrder[]): [string, { reserved: number; sold: number }][] {
  const units = new Map<string, { reserved: number; sold: number }>();
  for (const { order, first } of entries) {
    const from = unitsAt(first.status);
    const to = unitsAt(order.status);
    // A refund of a part moves no units, and so must not touch the hot row of the item.
    if (from === to) continue;
    const item = units.get(order.itemId) ?? { reserved: 0, sold: 0 };
    units.set(order.itemId, item);
    if (from !== null) item[from] -= order.quantity;
    if (to !== null) item[to] += order.quantity;
  }
  return [...units].sort(([a], [b]) => byId(a, b));
}
