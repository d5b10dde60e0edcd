import type { Actor } from '../../model/actor.ts';
import type { Page } from './page.ts';

export interface AuditLedger {
  /** Records a change made outside the ledger. The ledger's own changes write their row in their transaction. */
  note(note: AuditNote): Promise<void>;
  /** Newest first. */
  audit(filter: { subject?: string }, page: Page): Promise<AuditEntry[]>;
}

/** A row of the audit that is to be written. Nothing changes or removes one. */
export interface AuditNote {
  readonly auditId: string;
  readonly by: Actor;
  readonly action: string;
  readonly subject: string;
  readonly detail: unknown;
}

export interface AuditEntry {
  readonly id: string;
  readonly atMs: number;
  /** `admin:alice`: see model/actor.ts. */
  readonly actor: string;
  readonly origin: string | null;
  readonly action: string;
  readonly subject: string;
  readonly detail: string;
}
