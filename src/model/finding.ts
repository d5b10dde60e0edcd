/** The checks that exist; the reconciler will add more. */
export const CHECKS = ['releases', 'payments'] as const;

export type CheckName = (typeof CHECKS)[number];

/** A fault that does not mend by itself. Each text is one line, for a person. */
export interface Finding {
  /** Identifies the fault: the same each time it is found. */
  readonly id: string;
  readonly check: CheckName;
  readonly saleId: string;
  /** `order:<id>` */
  readonly subject: string;
  readonly expected: string;
  readonly actual: string;
  readonly cause: string;
  /** What to do about it. */
  readonly repair: string;
}

export interface CheckReport {
  readonly checkedAtMs: number;
  readonly findings: readonly Finding[];
  /** There were more than a report holds. */
  readonly more: boolean;
}
