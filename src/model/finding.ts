/** The checks that exist; the reconciler will add more. */
export const CHECKS = ['releases', 'payments', 'counts'] as const;

export type CheckName = (typeof CHECKS)[number];

/** A fault that does not mend by itself. Each text is one line, for a person. */
export interface Finding {
  /** Identifies the fault: the same each time it is found. */
  readonly id: string;
  readonly check: CheckName;
  /** Absent: it belongs to no sale. */
  readonly saleId?: string;
  /** `order:<id>`, `post:<id>` or `comment:<id>` */
  readonly subject: string;
  readonly expected: string;
  readonly actual: string;
  readonly cause: string;
  /** What to do about it. */
  readonly repair: string;
}

export interface CheckReport {
  readonly checkedAtMs: number;
  /** What was looked at. */
  readonly checks: readonly CheckName[];
  readonly findings: readonly Finding[];
  /** There were more than a report holds. */
  readonly more: boolean;
  /** Where a check of counts goes on that took too long for one report; null: it is complete. */
  readonly next: string | null;
}

/** A report is read by people, as a whole. */
export const FINDINGS_MAX = 1000;
