import { actorText } from '../../model/actor.ts';
import type { PartRefund } from '../../model/payment.ts';
import { plainText } from '../../model/text.ts';
import { KEY_KEPT_MS } from '../port/keys.ts';
import type { DueRefund, Move, NewRefund, RefundAsked, UnsettledRefund } from '../port/payments.ts';
import type { StoredRefund } from '../rules/decide.ts';
import type { Audited } from './audit.ts';
import { auditStep } from './audit.ts';
import { attemptOfRow, refundOfRow, SELECT_ATTEMPTS, SELECT_REFUNDS } from './rows.ts';
import { type Cells, CLOCK, type LifeDialect, nowOf, query, type Step, type Work, Writes } from './work.ts';

const ERROR_MAX = 500;

const COLUMNS = [
  ...['id', 'attempt_id', 'order_id', 'amount', 'currency', 'back_before', 'state', 'made_with', 'next_at', 'tries'],
  ...['created_at', 'updated_at', 'actor', 'origin'],
];

const SELECT_WITH_PROVIDER = `SELECT r.id, r.attempt_id, r.order_id, r.amount, r.currency, r.back_before, r.state, r.made_with,
  r.error, r.next_at, r.tries, r.created_at, p.provider, o.sale_id
  FROM refunds r JOIN payments p ON p.id = r.attempt_id JOIN orders o ON o.id = r.order_id`;

function insertRefunds(
  refunds: readonly { refund: StoredRefund; by: Move['by'] }[],
  nowMs: number,
): Extract<Step, { do: 'insert' }> {
  return {
    do: 'insert',
    table: 'refunds',
    columns: COLUMNS,
    rows: refunds.map(({ refund, by }): Cells => {
      const { id, attemptId, orderId, amount, backBefore, state, madeWith, nextAtMs, tries } = refund;
      return [
        ...[
          BigInt(id),
          BigInt(attemptId),
          BigInt(orderId),
          amount.amount,
          amount.currency,
          backBefore,
          state,
          madeWith,
        ],
        ...[nextAtMs, tries, nowMs, nowMs, actorText(by), by.origin],
      ];
    }),
  };
}

/** Refunds that a provider told of which cannot say what is back in all. */
export function toldRefunds(
  told: readonly { refund: StoredRefund; move: Move }[],
  nowMs: number,
): Extract<Step, { do: 'insert' }> {
  return insertRefunds(
    told.map(({ refund, move }) => ({ refund, by: move.by })),
    nowMs,
  );
}

/** The provider has taken them on. */
export function doneRefunds(
  done: readonly { readonly id: string; readonly reference: string | null }[],
  nowMs: number,
): Extract<Step, { do: 'update' }> {
  return {
    do: 'update',
    table: 'refunds',
    match: ['id', 'state'],
    set: ['state', 'reference', 'error', 'next_at', 'updated_at'],
    rows: done.map(({ id, reference }): Cells => [BigInt(id), 'asked', 'done', reference, null, null, nowMs]),
  };
}

/** All of the money is back: nobody has to give a part of it any more. */
export function voidRefundsOf(attemptIds: readonly string[], nowMs: number): Step {
  return query(
    `UPDATE refunds SET state = 'void', error = 'all of the money is back', next_at = NULL, updated_at = ?
     WHERE attempt_id IN (?) AND state = 'asked'`,
    nowMs,
    attemptIds.map(BigInt),
  );
}

/** Under the lock of the payment's row: what is left cannot be promised twice. */
export function* askRefund(asked: NewRefund, { forUpdate }: LifeDialect): Work<RefundAsked> {
  const { id, attemptId, amount, madeWith, by, auditId } = asked;
  const [found, underWay, made, clock] = yield [
    query(`${SELECT_ATTEMPTS} WHERE id = ? ${forUpdate}`, BigInt(attemptId)),
    query(`${SELECT_REFUNDS} WHERE attempt_id = ? AND state = 'asked'`, BigInt(attemptId)),
    madeWith === null
      ? CLOCK
      : query(
          `${SELECT_REFUNDS} WHERE attempt_id = ? AND made_with = ? ORDER BY id DESC LIMIT 1`,
          BigInt(attemptId),
          madeWith,
        ),
    CLOCK,
  ];
  const nowMs = nowOf(clock);
  const attempt = found!.rows.map(attemptOfRow)[0];
  if (attempt === undefined) return { outcome: 'refused' };
  const first = madeWith === null ? undefined : made!.rows.map(refundOfRow)[0];
  if (first !== undefined && nowMs - first.createdAtMs < KEY_KEPT_MS) {
    const same = first.amount.amount === amount.amount && first.amount.currency === amount.currency;
    return same ? { outcome: 'repeat', refund: first, attempt } : { outcome: 'key_reused' };
  }
  if (attempt.state !== 'captured' || !attempt.pays) return { outcome: 'refused' };
  const other = underWay!.rows.map(refundOfRow)[0];
  if (other !== undefined) return { outcome: 'under_way', refund: other, attempt };
  const left = attempt.amount.amount - attempt.refunded;
  if (amount.currency !== attempt.amount.currency || amount.amount > left) return { outcome: 'amount_mismatch' };
  const refund: StoredRefund = {
    ...{ id, attemptId, orderId: attempt.orderId, amount, backBefore: attempt.refunded, state: 'asked', madeWith },
    ...{ error: null, nextAtMs: nowMs, tries: 0, createdAtMs: nowMs },
  };
  const writes = new Writes();
  if (amount.amount === left) {
    // The whole payment goes back. Only the key is kept: a repeat must not be a new refund of an order that has ended.
    if (madeWith !== null) {
      writes.addRows(insertRefunds([{ refund: { ...refund, state: 'void', nextAtMs: null }, by }], nowMs));
    }
    yield* writes.last();
    return { outcome: 'all' };
  }
  writes.addRows(insertRefunds([{ refund, by }], nowMs));
  const detail = { attempt: attemptId, provider: attempt.provider, refund: id, amount };
  const subject = `order:${attempt.orderId}`;
  writes.addRows(auditStep([{ auditId, by, action: 'payment.refund_part', subject, detail }], nowMs));
  yield* writes.last();
  return { outcome: 'asked', refund, attempt };
}

export function* refundUnderWay(attemptId: string): Work<PartRefund | null> {
  const [found] = yield [query(`${SELECT_REFUNDS} WHERE attempt_id = ? AND state = 'asked'`, BigInt(attemptId))];
  return found!.rows.map(refundOfRow)[0] ?? null;
}

export function* getRefund(refundId: string): Work<PartRefund | null> {
  const [found] = yield [query(`${SELECT_REFUNDS} WHERE id = ?`, BigInt(refundId))];
  return found!.rows.map(refundOfRow)[0] ?? null;
}

export function* voidRefund(
  refundId: string,
  error: string,
  { by, auditId }: Audited,
  { forUpdate }: LifeDialect,
): Work<PartRefund | null> {
  const [found, clock] = yield [query(`${SELECT_REFUNDS} WHERE id = ? ${forUpdate}`, BigInt(refundId)), CLOCK];
  const refund = found!.rows.map(refundOfRow)[0] ?? null;
  if (refund?.state !== 'asked') return refund;
  const nowMs = nowOf(clock);
  const reason = cut(error);
  const writes = new Writes();
  writes.addRows({
    do: 'update',
    table: 'refunds',
    match: ['id', 'state'],
    set: ['state', 'error', 'next_at', 'updated_at'],
    rows: [[BigInt(refundId), 'asked', 'void', reason, null, nowMs]],
  });
  const detail = { attempt: refund.attemptId, refund: refundId, amount: refund.amount, error: reason };
  const subject = `order:${refund.orderId}`;
  writes.addRows(auditStep([{ auditId, by, action: 'payment.refund_void', subject, detail }], nowMs));
  yield* writes.last();
  return { ...refund, state: 'void', error: reason, nextAtMs: null };
}

export function* postponeRefunds(some: readonly { refundId: string; error: string; afterMs: number }[]): Work<void> {
  const [clock] = yield [CLOCK];
  const nowMs = nowOf(clock);
  yield some.map(({ refundId, error, afterMs }) =>
    query(
      `UPDATE refunds SET next_at = ?, error = ?, tries = tries + 1 WHERE id = ? AND state = 'asked'`,
      nowMs + afterMs,
      cut(error),
      BigInt(refundId),
    ),
  );
}

export function* dueRefunds(limit: number, after?: DueRefund): Work<DueRefund[]> {
  const [clock] = yield [CLOCK];
  const [found] = yield [
    query(
      `${SELECT_WITH_PROVIDER} WHERE r.next_at <= ? ${after === undefined ? '' : 'AND r.next_at >= ? AND (r.next_at > ? OR r.id > ?)'}
       ORDER BY r.next_at, r.id LIMIT ?`,
      nowOf(clock),
      ...(after === undefined ? [] : [after.nextAtMs, after.nextAtMs, BigInt(after.id)]),
      limit,
    ),
  ];
  return found!.rows.map((row) => ({ ...refundOfRow(row), provider: row.provider as string }));
}

export function* unsettledRefunds(tries: number, limit: number, saleId: string | null): Work<UnsettledRefund[]> {
  const [found] = yield [
    query(
      `${SELECT_WITH_PROVIDER}
       WHERE r.next_at IS NOT NULL AND r.tries >= ? ${saleId === null ? '' : 'AND o.sale_id = ?'}
       ORDER BY r.next_at, r.id LIMIT ?`,
      tries,
      ...(saleId === null ? [] : [BigInt(saleId)]),
      limit,
    ),
  ];
  return found!.rows.map((row) => ({
    refund: refundOfRow(row),
    provider: row.provider as string,
    saleId: row.sale_id as string,
  }));
}

function cut(error: string | undefined): string {
  return plainText(error, ERROR_MAX);
}
