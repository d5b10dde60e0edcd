import { type Actor, actorText } from '../../model/actor.ts';
import type { OrderMessage } from '../../model/order.ts';
import type { SaleSnapshot } from '../../model/snapshot.ts';
import type { AuditEntry, AuditNote } from '../port/audit.ts';
import type { StoredOrder } from '../port/orders.ts';
import type { Page } from '../port/page.ts';
import type { Rebuilding } from '../port/sales.ts';
import { auditOfRow } from './rows.ts';
import { type Cells, CLOCK, type InsertStep, nowOf, query, type Work, Writes } from './work.ts';

/** Who does something, and the id of its audit row. */
export interface Audited {
  readonly by: Actor;
  readonly auditId: string;
}

/** Who did what, when and from where: the only statement that writes to the audit. Nothing changes or removes a row. */
export function auditStep(notes: readonly AuditNote[], nowMs: number): InsertStep {
  return {
    do: 'insert',
    table: 'audit',
    columns: ['id', 'at', 'actor', 'origin', 'action', 'subject', 'detail'],
    rows: notes.map(
      ({ auditId, by, action, subject, detail }): Cells => [
        BigInt(auditId),
        nowMs,
        actorText(by),
        by.origin,
        action,
        subject,
        JSON.stringify(detail),
      ],
    ),
  };
}

export function* writeNote(note: AuditNote): Work<void> {
  const [clock] = yield [CLOCK];
  yield* writeNotes([note], nowOf(clock));
}

export function* writeNotes(notes: readonly AuditNote[], nowMs: number): Work<void> {
  const writes = new Writes();
  writes.addRows(auditStep(notes, nowMs));
  yield* writes.done();
}

const NONE: readonly AuditNote[] = [];

/**
 * The audit rows of a batch: one for each inserted order that somebody placed for its buyer. A buyer's own order is its own
 * record and needs none.
 */
export function placedNotes(batch: readonly OrderMessage[], stored: readonly StoredOrder[]): readonly AuditNote[] {
  let notes: AuditNote[] | null = null;
  for (let at = 0; at < batch.length; at++) {
    const { placedBy } = batch[at]!;
    if (placedBy === undefined || !stored[at]!.inserted) continue;
    const { auditId, ...by } = placedBy;
    const { id, saleId, buyer, itemCode: item, quantity, seats, status, reason } = stored[at]!.order;
    const detail = {
      ...{ saleId, buyer, item, quantity, ...(seats !== undefined && { seats }) },
      ...{ status, ...(reason !== null && { reason }) },
    };
    notes ??= [];
    notes.push({ auditId, by, action: 'order.place', subject: `order:${id}`, detail });
  }
  return notes ?? NONE;
}

/** The epoch that the first gate of a sale has: the sale's row says who made it. */
const FIRST_EPOCH = 2;

/** The audit row of a rebuild: orders that the old gate had admitted and the ledger has not stored end as `gate_rebuilt`. */
export function rebuiltNotes(
  { saleId, epoch }: Pick<SaleSnapshot, 'saleId' | 'epoch'>,
  note: Rebuilding | undefined,
): readonly AuditNote[] {
  if (note === undefined || epoch <= FIRST_EPOCH) return NONE;
  return [{ ...note, action: 'gate.rebuild', subject: `sale:${saleId}`, detail: { epoch } }];
}

export function* audit({ subject }: { subject?: string }, { limit, before }: Page): Work<AuditEntry[]> {
  const conditions = [
    ...(subject === undefined ? [] : [{ sql: 'subject = ?', value: subject }]),
    ...(before === null ? [] : [{ sql: 'id < ?', value: BigInt(before) }]),
  ];
  const where = conditions.length === 0 ? '' : `WHERE ${conditions.map(({ sql }) => sql).join(' AND ')}`;
  const [found] = yield [
    query(
      `SELECT id, "at", actor, origin, action, subject, detail FROM audit ${where} ORDER BY id DESC LIMIT ?`,
      ...conditions.map(({ value }) => value),
      limit,
    ),
  ];
  return found!.rows.map(auditOfRow);
}
