import type { SandboxIntent } from '../../model/payment.ts';

/** The sandbox provider's own book, so that it outlives processes. A real provider has one of its own. */
export interface SandboxBook {
  /** Stores it if there is none of that id; returns what is stored. */
  putIntent(intent: NewIntent): Promise<SandboxIntent>;
  getIntent(id: string): Promise<SandboxIntent | null>;
  /** Changes its state if it is one of `from`, and returns it; null: there is none, or it is in another state. */
  moveIntent(
    id: string,
    from: readonly SandboxIntent['state'][],
    to: SandboxIntent['state'],
  ): Promise<SandboxIntent | null>;
  /**
   * Gives a part of a captured one back, or all of it: once for each `refundId`. Null: there is none, it has no money, or not
   * that much.
   */
  refundIntent(id: string, refundId: string, amount: number): Promise<SandboxIntent | null>;
  /** Captures pending ones whose time has come by the book's clock. Returns captured ones that the shop has not been told of. */
  captureDue(limit: number): Promise<{ captured: number; untold: SandboxIntent[] }>;
  intentsTold(ids: readonly string[]): Promise<void>;
}

export interface NewIntent extends Omit<SandboxIntent, 'dueAtMs'> {
  /** Until it captures itself, by the book's clock; null: never. */
  readonly dueAfterMs: number | null;
}
