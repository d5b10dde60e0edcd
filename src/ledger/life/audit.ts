import type { Actor, AuditEntry } from '../life.ts';
import type { Page } from '../port.ts';
import { auditOfRow } from './rows.ts';
import { type Cells, query, type Step, type Work } from './step.ts';

export interface NewAuditEntry {
  readonly auditId: string;
  readonly by: Actor;
  readonly action: string;
  readonly subject: string;
  readonly detail: unknown;
}

/** Who did what, when and from where. Nothing changes or removes an entry. */
export function auditStep(entries: readonly NewAuditEntry[], nowMs: number): Extract<Step, { do: 'insert' }> {
  return {
    do: 'insert',
    table: 'audit',
    columns: ['id', 'at', 'actor', 'origin', 'action', 'subject', 'detail'],
    rows: entries.map(
      ({ auditId, by, action, subject, detail }): Cells => [
        BigInt(auditId),
        nowMs,
        by.actor,
        by.origin,
        action,
        subject,
        JSON.stringify(detail),
      ],
    ),
  };
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
