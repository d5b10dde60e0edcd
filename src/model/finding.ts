/** What is looked at; more will come with the reconciler. */
export const CHECKS = ['releases', 'payments'] as const;

export type CheckName = (typeof CHECKS)[number];

/** Something that is not as it must be and does not mend by itself. Each text is one line, for a person. */
export interface Finding {
  /** The same for the same trouble, however often it is found. */
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
