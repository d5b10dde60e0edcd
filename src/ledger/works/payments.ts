import { invariant } from '../../base/errors.ts';
import { actorText } from '../../model/actor.ts';
import type { Money } from '../../model/money.ts';
import type { OrderStatus } from '../../model/order.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import { plainText } from '../../model/text.ts';
import type { AuditNote } from '../port/audit.ts';
import {
  type AttemptEnd,
  type AttemptOpened,
  DECLINED_MAX,
  type NewAttempt,
  type Postponed,
  type Postponement,
  type Unsettled,
} from '../port/payments.ts';
import { decideOpening, refunded } from '../rules/decide.ts';
import type { Audited } from './audit.ts';
import { auditStep } from './audit.ts';
import { declineSteps } from './declines.ts';
import { type BatchOrder, type ItemFacts, liveAttempts, newestEnded, OrderBatch } from './order-batch.ts';
import { ATTEMPT_COLUMNS, attemptOfRow, cellsOfAttempt, SELECT_ATTEMPTS } from './rows.ts';
import {
  type Cells,
  CLOCK,
  ConflictError,
  type LifeDialect,
  nowOf,
  query,
  type Result,
  type Step,
  type Work,
  Writes,
} from './work.ts';

/** What a provider says of a failure may be long. */
const ERROR_MAX = 500;

const NEW_COLUMNS = ['actor', 'origin', ...ATTEMPT_COLUMNS];
/** Without `refunded`, which is 0 by default: only an attempt that is paid and refunded in one batch needs it. */
const NOT_REFUNDED = NEW_COLUMNS.slice(0, -1);

/**
 * Written for every attempt that changes; other columns only if they change for one of the batch. Somebody may have changed
 * these since they were read, without changing the state.
 */
const ALWAYS_WRITTEN = new Set(['error', 'next_at', 'tries', 'updated_at']);

/** New attempts, and those that have changed, each only as it was when it was read. */
export function writePayments(writes: Writes, loaded: OrderBatch): void {
  const fresh: Cells[] = [];
  let anyRefunded = false;
  const changed: Changed[] = [];
  for (const { before, now } of loaded.changedAttempts()) {
    const fence = loaded.fenceOf(now);
    if (before === null) {
      const by = loaded.beginnerOf(now.id);
      fresh.push([actorText(by), by.origin, ...cellsOfAttempt(now, fence)]);
      if (now.refunded > 0) anyRefunded = true;
    } else {
      changed.push({ before, now, fence: [before.orderId === now.orderId ? fence : null, fence] });
    }
  }
  // Changes before inserts: an attempt that ends makes room for the next one under the order's constraints.
  writes.addRows(updateAttempts(changed));
  const columns = anyRefunded ? NEW_COLUMNS : NOT_REFUNDED;
  const rows = anyRefunded ? fresh : fresh.map((cells) => cells.slice(0, -1));
  writes.addRows({ do: 'insert', table: 'payments', columns, rows });
}

interface Changed {
  readonly before: PaymentAttempt;
  readonly now: PaymentAttempt;
  /** Before and now; it changes with the order only. */
  readonly fence: readonly [before: bigint | null, now: bigint | null];
}

/** An attempt never comes back to a state that it has left: so id and state say that it is as it was read. */
function updateAttempts(changed: readonly Changed[]) {
  const before = changed.map((one) => cellsOfAttempt(one.before, one.fence[0]));
  const now = changed.map((one) => cellsOfAttempt(one.now, one.fence[1]));
  const written = ATTEMPT_COLUMNS.flatMap((column, at) =>
    ALWAYS_WRITTEN.has(column) || now.some((cells, row) => cells[at] !== before[row]![at]) ? [{ column, at }] : [],
  );
  return {
    do: 'update' as const,
    table: 'payments',
    match: ['id', 'state'],
    set: written.map(({ column }) => column),
    rows: now.map((cells, row): Cells => {
      const { id, state } = changed[row]!.before;
      return [BigInt(id), state, ...written.map(({ at }) => cells[at]!)];
    }),
  };
}

export function* openAttempts(
  batch: readonly NewAttempt[],
  dialect: LifeDialect,
  items: ItemFacts,
  tail: Tail | null,
): Work<AttemptOpened[]> {
  if (batch.length === 0) return [];
  const loaded = yield* OrderBatch.open(dialect, items, {
    orderIds: new Set(batch.map(({ orderId }) => orderId)),
    attemptIds: new Set(),
    references: new Set(),
    declines: true,
  });
  const open = yield* openOfBuyers(batch, loaded, dialect, tail);
  const answers = batch.map((wanted): AttemptOpened => {
    const entry = loaded.entry(wanted.orderId);
    const { named } = loaded.moneyOf(wanted.id, null, null);
    const declined = entry === null ? undefined : { ...loaded.declinedOf(entry), open: open.of(entry.order) };
    const answer = decideOpening(wanted, entry && loaded.stateOf(entry), named, loaded.nowMs, declined);
    if (answer.outcome !== 'opened' || answer.attempt === named) return answer;
    loaded.open(answer.attempt, wanted.by, wanted.fence);
    open.add(answer.order);
    return answer;
  });
  const writes = new Writes();
  writePayments(writes, loaded);
  yield* writes.last();
  return answers;
}

/** Live orders that `claims` does not contain yet (SQLite). */
interface Tail {
  liveOf(buyer: string): readonly { readonly orderId: string; readonly saleId: string }[];
}

/** How many attempts of a buyer are open: those in the sale before this batch, and those of this batch. */
class OpenOfBuyers {
  readonly #stored = new Map<string, Set<string>>();
  readonly #added = new Map<string, number>();

  note(saleId: string, buyer: string, orderId: string): void {
    const place = `${saleId}\n${buyer}`;
    const orders = this.#stored.get(place);
    if (orders === undefined) this.#stored.set(place, new Set([orderId]));
    else orders.add(orderId);
  }

  add({ buyer }: { readonly buyer: string }): void {
    this.#added.set(buyer, (this.#added.get(buyer) ?? 0) + 1);
  }

  of({ saleId, buyer }: { readonly saleId: string; readonly buyer: string }): number {
    return (this.#stored.get(`${saleId}\n${buyer}`)?.size ?? 0) + (this.#added.get(buyer) ?? 0);
  }
}

/**
 * Open attempts of the batch's buyers, each in the sale of its order: by the claims, of which a buyer has at most a hundred in
 * a sale. Most buyers cost nothing: whoever has the first slot of a sale, and no payment that was declined, is not looked at.
 * There is one such order of a buyer in a sale.
 */
function* openOfBuyers(
  batch: readonly NewAttempt[],
  loaded: OrderBatch,
  dialect: LifeDialect,
  tail: Tail | null,
): Work<OpenOfBuyers> {
  const open = new OpenOfBuyers();
  const bySale = new Map<string, Set<string>>();
  for (const { orderId } of batch) {
    const entry = loaded.entry(orderId);
    if (entry === null || !mayHaveOthers(entry, loaded)) continue;
    const { saleId, buyer } = entry.order;
    const buyers = bySale.get(saleId);
    if (buyers === undefined) bySale.set(saleId, new Set([buyer]));
    else buyers.add(buyer);
  }
  if (bySale.size === 0) return open;
  const claimed = [...bySale].map(([saleId, buyers]) => openByClaims(dialect, saleId, [...buyers]));
  const buyerOf = new Map<string, { readonly saleId: string; readonly buyer: string }>();
  if (tail !== null) {
    for (const [saleId, buyers] of bySale) {
      for (const buyer of buyers) {
        for (const one of tail.liveOf(buyer)) if (one.saleId === saleId) buyerOf.set(one.orderId, { saleId, buyer });
      }
    }
  }
  const ids = [...buyerOf.keys()].map(BigInt);
  const found = yield [...claimed, ...(ids.length === 0 ? [] : [liveAttempts(dialect, ids)])];
  for (const { rows } of found.slice(0, claimed.length)) {
    for (const row of rows) open.note(row.sale_id as string, row.buyer as string, row.order_id as string);
  }
  for (const { state, orderId } of (found[claimed.length]?.rows ?? []).map(attemptOfRow)) {
    const { saleId, buyer } = buyerOf.get(orderId)!;
    if (state === 'open') open.note(saleId, buyer, orderId);
  }
  return open;
}

/** Orders of these buyers in the sale that have an open attempt; an order of several units comes once for each unit. */
export function openByClaims({ live }: LifeDialect, saleId: string, buyers: readonly string[]): Step {
  return query(
    `SELECT c.sale_id, c.buyer, c.order_id FROM claims c JOIN ${live.from} ON p.order_id = c.order_id
     WHERE c.sale_id = ? AND c.buyer IN (?) AND ${live.where} AND p.state = 'open'`,
    BigInt(saleId),
    buyers,
  );
}

function mayHaveOthers(entry: BatchOrder, loaded: OrderBatch): boolean {
  const { order, buyer } = loaded.declinedOf(entry);
  // Blocked, however many are open.
  if (order >= DECLINED_MAX.order || buyer >= DECLINED_MAX.buyer) return false;
  return entry.slots !== '1' || buyer > 0;
}

/** What is done to one attempt, if `change` says so. */
export interface AttemptChange {
  readonly attemptId: string;
  /** The provider's name for it, if it has none yet. */
  readonly reference: string | null;
  change(attempt: PaymentAttempt, nowMs: number, besides: Result | undefined): PaymentAttempt;
  readonly audited?: Audited & { readonly action: string };
  /** Read once the row is locked. */
  readonly besides?: Step;
  /** The attempt may end, which changes its order's row, too. */
  readonly ends?: boolean;
}

/** Each attempt at most once, since a second change would not see the first. Returns them as they are then. */
export function* changeAttempts(
  batch: readonly AttemptChange[],
  dialect: LifeDialect,
): Work<(PaymentAttempt | null)[]> {
  invariant(new Set(batch.map(({ attemptId }) => attemptId)).size === batch.length, 'an attempt is changed once');
  const ending = batch.filter(({ ends }) => ends).map(({ attemptId }) => BigInt(attemptId));
  const besides = batch.flatMap((one) => one.besides ?? []);
  const references = batch.flatMap(({ reference }) => reference ?? []);
  // Orders are locked before payments, and both by id, as everywhere: no deadlock.
  const [lock, lockedIds] = ending.length === 0 ? [[], null] : yield* lockOrdersOf(ending, dialect);
  const results = [
    ...(yield [
      ...lock,
      query(
        `${SELECT_ATTEMPTS} WHERE id IN (?) ORDER BY id ${dialect.forUpdate}`,
        batch.map(({ attemptId }) => BigInt(attemptId)),
      ),
      CLOCK,
      ...besides,
      ...(references.length === 0
        ? []
        : [query('SELECT id, provider, reference FROM payments WHERE reference IN (?)', references)]),
    ]),
  ];
  results.splice(0, lock.length);
  const [found, clock] = results.splice(0, 2);
  const nowMs = nowOf(clock);
  const rows = new Map(found!.rows.map((row) => [row.id as string, row]));
  const owners = new Map<string, string>();
  for (const row of results[besides.length]?.rows ?? [])
    owners.set(`${row.provider}\n${row.reference}`, row.id as string);

  const writes = new Writes();
  const changed: Changed[] = [];
  const audit: AuditNote[] = [];
  const later: Step[] = [];
  const answers = batch.map((one): PaymentAttempt | null => {
    const { attemptId, reference, audited, ends } = one;
    const more = one.besides === undefined ? undefined : results.shift();
    const row = rows.get(attemptId);
    if (row === undefined) return null;
    const before = attemptOfRow(row);
    if (ends && lockedIds !== null && !lockedIds.has(before.orderId)) {
      throw new ConflictError(`attempt ${attemptId} has moved to another order`);
    }
    const wanted = one.change(before, nowMs, more);
    if (wanted === before) return before;
    // A reference that another attempt has is left out: news would find the wrong attempt by it.
    const place = `${before.provider}\n${reference}`;
    const taken = (owners.get(place) ?? attemptId) !== attemptId;
    if (reference !== null && !taken) owners.set(place, attemptId);
    const now = { ...wanted, reference: before.reference ?? (taken ? null : reference), updatedAtMs: nowMs };
    changed.push({ before, now, fence: [null, null] });
    if (audited !== undefined) {
      const { by, auditId, action } = audited;
      const detail = { attempt: attemptId, provider: before.provider, from: before.state, ...moneyBack(before, now) };
      audit.push({ auditId, by, action, subject: `order:${before.orderId}`, detail });
    }
    if (ends) {
      // Ended attempts are not read when the next one is opened, so the order's row keeps their highest token.
      const token = BigInt(row.fence!);
      const raise = 'UPDATE orders SET fence = ? WHERE id = ? AND fence < ?';
      if (token > 0n) later.push(query(raise, token, BigInt(before.orderId), token));
      if (now.state === 'failed') later.push(...declineSteps(now, nowMs));
    }
    return now;
  });
  writes.addRows(updateAttempts(changed));
  writes.addRows(auditStep(audit, nowMs));
  for (const step of later) writes.add(step, null);
  yield* writes.last();
  return answers;
}

/** The step that locks the orders of these attempts, and the ids of those orders, unless the step finds them itself. */
function* lockOrdersOf(
  attemptIds: readonly bigint[],
  { forUpdate, byPrimaryKey }: LifeDialect,
): Work<[Step[], ReadonlySet<string> | null]> {
  const [first] = attemptIds;
  if (attemptIds.length === 1) {
    const sql = `SELECT id FROM orders WHERE id = (SELECT order_id FROM payments WHERE id = ?) ${forUpdate}`;
    return [[query(sql, first!)], null];
  }
  const [found] = yield [query('SELECT DISTINCT order_id FROM payments WHERE id IN (?)', attemptIds)];
  const orderIds = found!.rows.map((row) => row.order_id as string);
  const sql = `SELECT id FROM orders ${byPrimaryKey} WHERE id IN (?) ORDER BY id ${forUpdate}`;
  return [[query(sql, orderIds.map(BigInt))], new Set(orderIds)];
}

function* changeAttempt(one: AttemptChange, dialect: LifeDialect): Work<PaymentAttempt | null> {
  return (yield* changeAttempts([one], dialect))[0]!;
}

/** What is to go back from now on, or is known to be back. */
function moneyBack(before: PaymentAttempt, now: PaymentAttempt): { amount?: Money; refunded?: Money } {
  const { amount, currency } = now.amount;
  if (now.state === 'refunding' && before.state !== 'refunding') {
    return { amount: { amount: amount - now.refunded, currency } };
  }
  if (now.refunded === before.refunded) return {};
  const given = { amount: now.refunded - before.refunded, currency };
  return { amount: given, refunded: { amount: now.refunded, currency } };
}

export function closing(
  attemptId: string,
  { state, error, reference = null }: AttemptEnd,
  audited: Audited,
): AttemptChange {
  return {
    attemptId,
    reference,
    change: (attempt) =>
      attempt.state === 'open' ? { ...attempt, state, error: cut(error), nextAtMs: null } : attempt,
    audited: { ...audited, action: `payment.${state}` },
    ends: true,
  };
}

/** The provider's own name for one that is open. */
export function naming(attemptId: string, reference: string): AttemptChange {
  return {
    attemptId,
    reference,
    change: (attempt) => (attempt.state === 'open' && attempt.reference === null ? { ...attempt } : attempt),
  };
}

export function startRefund(
  attemptId: string,
  audited: Audited,
  back: boolean,
  dialect: LifeDialect,
): Work<PaymentAttempt | null> {
  const change: AttemptChange = {
    attemptId,
    reference: null,
    change: (attempt, nowMs, underWay) => {
      if (attempt.state !== 'captured' && attempt.state !== 'late') return attempt;
      if (!back && underWay!.rows.length > 0) return attempt;
      return { ...attempt, state: 'refunding', error: null, nextAtMs: nowMs, tries: 0 };
    },
    audited: { ...audited, action: 'payment.refund' },
    besides: query(`SELECT id FROM refunds WHERE attempt_id = ? AND state = 'asked'`, BigInt(attemptId)),
  };
  return changeAttempt(change, dialect);
}

export function noteRefunded(
  attemptId: string,
  total: Money,
  audited: Audited,
  dialect: LifeDialect,
): Work<PaymentAttempt | null> {
  const change: AttemptChange = {
    attemptId,
    reference: null,
    change: (attempt) => {
      const { state, pays, refunded: before, amount } = attempt;
      const grows = total.currency === amount.currency && total.amount > before && total.amount < amount.amount;
      // The payment of a paid order changes with the order's move.
      return state === 'refunding' && !pays && grows ? { ...attempt, refunded: total.amount } : attempt;
    },
    audited: { ...audited, action: 'payment.refund_part' },
  };
  return changeAttempt(change, dialect);
}

export function finishRefund(
  attemptId: string,
  reference: string | null,
  dialect: LifeDialect,
): Work<PaymentAttempt | null> {
  const change = (attempt: PaymentAttempt, nowMs: number): PaymentAttempt => {
    // The payment of a paid order ends with its order, in one transaction.
    if (attempt.state !== 'refunding' || attempt.pays) return attempt;
    return refunded(attempt, nowMs);
  };
  return changeAttempt({ attemptId, reference, change }, dialect);
}

export function doubtAttempt(attemptId: string, error: string, dialect: LifeDialect): Work<PaymentAttempt | null> {
  const change = (attempt: PaymentAttempt, nowMs: number): PaymentAttempt => {
    if (!isClosed(attempt)) return attempt;
    // A new doubt gets a new time, so that whoever is about to clear the first one notices it.
    const nextAtMs = attempt.nextAtMs === nowMs ? nowMs + 1 : nowMs;
    return { ...attempt, error: cut(error), nextAtMs, tries: 0 };
  };
  return changeAttempt({ attemptId, reference: null, change }, dialect);
}

export function clearDoubt({ id, nextAtMs }: PaymentAttempt, dialect: LifeDialect): Work<PaymentAttempt | null> {
  const change = (attempt: PaymentAttempt): PaymentAttempt =>
    isClosed(attempt) && attempt.nextAtMs === nextAtMs ? { ...attempt, nextAtMs: null } : attempt;
  return changeAttempt({ attemptId: id, reference: null, change }, dialect);
}

function isClosed({ state }: PaymentAttempt): boolean {
  return state === 'failed' || state === 'voided';
}

export function* postponeAttempts(batch: readonly Postponement[], dialect: LifeDialect): Work<Postponed[]> {
  const wanted = new Map(batch.map((one) => [one.attemptId, one]));
  if (wanted.size === 0) return [];
  const [found, clock] = yield [
    query(`${SELECT_ATTEMPTS} WHERE id IN (?) ORDER BY id ${dialect.forUpdate}`, [...wanted.keys()].map(BigInt)),
    CLOCK,
  ];
  const nowMs = nowOf(clock);
  const attempts = found!.rows.map(attemptOfRow).filter(({ nextAtMs }) => nextAtMs !== null);
  if (attempts.length === 0) return [];
  const [orders] = yield [
    query('SELECT id, expires_at FROM orders WHERE id IN (?)', [
      ...new Set(attempts.map(({ orderId }) => BigInt(orderId))),
    ]),
  ];
  const expiries = new Map(orders!.rows.map((row) => [row.id as string, Number(row.expires_at ?? 0)]));
  const postponed: Postponed[] = [];
  const changed = attempts.map((before): Changed => {
    const { error, afterMs } = wanted.get(before.id)!;
    const expiresAtMs = expiries.get(before.orderId) ?? 0;
    const over = expiresAtMs <= nowMs;
    const atMs = nowMs + afterMs;
    const nextAtMs = before.state === 'open' && !over ? Math.min(atMs, expiresAtMs) : atMs;
    const now = { ...before, error: cut(error), nextAtMs, tries: before.tries + 1, updatedAtMs: nowMs };
    postponed.push({ attempt: now, over });
    return { before, now, fence: [null, null] };
  });
  const writes = new Writes();
  writes.addRows(updateAttempts(changed));
  yield* writes.last();
  return postponed;
}

function cut(error: string | null | undefined): string | null {
  return (error ?? null) === null ? null : plainText(error, ERROR_MAX);
}

export function* highestFence(): Work<bigint> {
  const found = yield ['orders', 'payments'].map((table) => query(`SELECT MAX(fence) AS fence FROM ${table}`));
  let highest = 0n;
  for (const { rows } of found) {
    const fence = BigInt(rows[0]?.fence ?? 0);
    if (fence > highest) highest = fence;
  }
  return highest;
}

export function* attemptsAmong(ids: readonly string[]): Work<Map<string, PaymentAttempt>> {
  const [found] = yield [query(`${SELECT_ATTEMPTS} WHERE id IN (?)`, ids.map(BigInt))];
  return new Map(found!.rows.map(attemptOfRow).map((attempt) => [attempt.id, attempt]));
}

export function* findAttempt(provider: string, reference: string): Work<PaymentAttempt | null> {
  const [found] = yield [query(`${SELECT_ATTEMPTS} WHERE reference = ? AND provider = ?`, reference, provider)];
  return found!.rows.map(attemptOfRow)[0] ?? null;
}

export function* attemptsOf(orderId: string, limit: number, { live, ended }: LifeDialect): Work<PaymentAttempt[]> {
  const columns = (table: string): string => ATTEMPT_COLUMNS.map((name) => `${table}.${name}`).join(', ');
  const found = yield [
    query(`SELECT ${columns('p')} FROM ${live.from} WHERE p.order_id = ? AND ${live.where}`, BigInt(orderId)),
    query(
      `SELECT ${columns('q')} FROM ${ended.from} WHERE q.order_id = ? AND ${ended.where} ORDER BY q.id DESC LIMIT ?`,
      BigInt(orderId),
      limit,
    ),
  ];
  const attempts = found.flatMap(({ rows }) => rows.map(attemptOfRow));
  return attempts.sort((a, b) => (BigInt(a.id) < BigInt(b.id) ? 1 : -1)).slice(0, limit);
}

export function* lastAttempts(orderIds: readonly string[], dialect: LifeDialect): Work<Map<string, PaymentAttempt>> {
  const last = new Map<string, PaymentAttempt>();
  if (orderIds.length === 0) return last;
  const ids = orderIds.map(BigInt);
  const [live, ended] = yield [liveAttempts(dialect, ids), newestEnded(dialect, ids)];
  for (const attempt of [...ended!.rows, ...live!.rows].map(attemptOfRow)) {
    if (!last.get(attempt.orderId)?.pays) last.set(attempt.orderId, attempt);
  }
  return last;
}

export function* dueAttempts(limit: number, after?: PaymentAttempt): Work<PaymentAttempt[]> {
  const [clock] = yield [CLOCK];
  const next = after === undefined ? '' : 'AND next_at >= ? AND (next_at > ? OR id > ?)';
  const values = after === undefined ? [] : [after.nextAtMs, after.nextAtMs, BigInt(after.id)];
  const [found] = yield [
    query(`${SELECT_ATTEMPTS} WHERE next_at <= ? ${next} ORDER BY next_at, id LIMIT ?`, nowOf(clock), ...values, limit),
  ];
  return found!.rows.map(attemptOfRow);
}

export function* unfinishedAmong(ids: readonly string[]): Work<Set<string>> {
  if (ids.length === 0) return new Set();
  const among = ids.map(BigInt);
  const found = yield [
    query('SELECT id FROM payments WHERE id IN (?) AND next_at IS NOT NULL', among),
    query('SELECT id FROM refunds WHERE id IN (?) AND next_at IS NOT NULL', among),
  ];
  return new Set(found.flatMap(({ rows }) => rows.map((row) => row.id as string)));
}

export function* unsettledAttempts(tries: number, limit: number, saleId: string | null): Work<Unsettled[]> {
  const [found] = yield [
    query(
      `SELECT o.sale_id, o.status AS order_status, ${ATTEMPT_COLUMNS.map((name) => `p.${name}`).join(', ')}
       FROM payments p JOIN orders o ON o.id = p.order_id
       WHERE p.next_at IS NOT NULL AND p.tries >= ? ${saleId === null ? '' : 'AND o.sale_id = ?'}
       ORDER BY p.next_at, p.id LIMIT ?`,
      tries,
      ...(saleId === null ? [] : [BigInt(saleId)]),
      limit,
    ),
  ];
  return found!.rows.map((row) => ({
    attempt: attemptOfRow(row),
    saleId: row.sale_id as string,
    orderStatus: row.order_status as OrderStatus,
  }));
}
