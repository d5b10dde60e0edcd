import type { OrderMessage } from '../model/order.ts';

/**
 * The pipe carries admitted orders from the gate to the ledger: at least once, in order per sale. A message is in the
 * pipe from the atomic step of its admission until the consumer's promise for its batch has settled.
 */
export interface Pipe {
  /** Starts handing over batches, one at a time. Whatever arrives while one is being handled goes into the next. */
  consume(handle: (batch: OrderMessage[]) => Promise<void>): void;
  /** Resolves when nothing is in the pipe. */
  drained(): Promise<void>;
  /** Resolves when all that is in the pipe now has left it, whatever has come since. */
  caughtUp(): Promise<void>;
  /** How many messages are in the pipe. */
  readonly depth: number;
}
