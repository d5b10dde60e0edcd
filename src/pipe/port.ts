import type { OrderMessage } from '../model/order.ts';

/**
 * The pipe carries admitted orders from the gate to the ledger: at least once, in order per sale and consumer. A message
 * is in the pipe from the atomic step of its admission until the batch it was handed over in is decided.
 *
 * The handler decides a whole batch. It resolves with the messages that the ledger can never take as they are: those are tried
 * again apart from the others, and end as dead letters. It rejects when nothing can be decided now (the ledger is out): then the
 * whole batch is handed over again.
 */
export interface Pipe {
  /**
   * Starts handing over batches. What arrives while one is being handled goes into the next. A consumer that rejects for long may be
   * the only one that cannot reach its ledger: other consumers then get its batches, and it gets no more until `ready` resolves.
   */
  consume(handle: Handle, ready?: () => Promise<unknown>): void;
  /**
   * Resolves with true when all that is in the pipe of this sale now has left it; with false after `withinMs`, or when nothing of
   * it was decided for `idleMs`. A message that is put aside for another try, or becomes a dead letter, is not decided.
   */
  caughtUp(saleId: string, withinMs?: number, idleMs?: number): Promise<boolean>;
  /** How many messages of the sale are in the pipe, including those to be tried again, without dead letters. */
  depthOf(saleId: string): Promise<number>;
  /** Hands over no more; resolves when what was handed over is decided. The rest stays in the pipe. */
  stop(): Promise<void>;
}

// biome-ignore lint/suspicious/noConfusingVoidType: a handler that decides everything has nothing to return
export type Handle = (batch: OrderMessage[]) => Promise<readonly Undeliverable[] | Handled | void>;

/** The batch is stored; its consequences (gate, answers) are under way. The next batch may be handed over meanwhile. */
export interface Handled {
  readonly undeliverable: readonly Undeliverable[];
  /** Resolves when the consequences are done: only then is the batch decided. Rejects: it is handed over again. */
  readonly told: Promise<void>;
}

export interface Undeliverable {
  readonly message: OrderMessage;
  readonly error: Error;
}

/** A pipe that several processes share. */
export interface SharedPipe extends Pipe {
  readonly letters: DeadLetters;
  readonly counters: PipeCounters;
  /** Why nothing can be carried now, or null while it can. */
  readonly reason: string | null;
  /** For a process that does not consume: polls, so that `counters` and `reason` are up to date. */
  observe(): void;
  close(): Promise<void>;
}

export interface PipeCounters {
  /** At the last poll: orders in all streams (estimated for long ones) and waiting for another try. */
  readonly depth: number;
  /** At the last poll: dead letters of all sales. */
  readonly letters: number;
  /** Since the start of this process: messages put aside for another try, and messages that became dead letters. */
  readonly retries: number;
  readonly died: number;
  /** Orders taken over from other consumers. */
  readonly claimed: number;
}

/** Messages that the ledger could not take after many tries. They hold their units until somebody decides. */
export interface DeadLetters {
  /** Newest first: those with an order id below `before`. */
  list(limit: number, before: string | null): Promise<DeadLetter[]>;
  get(orderId: string): Promise<DeadLetter | null>;
  /** Puts it back into the pipe with its tries reset. False: there is no such letter. */
  retry(orderId: string): Promise<boolean>;
  /** Deletes it, after its order was ended in the ledger. False: there was no such letter. */
  drop(orderId: string): Promise<boolean>;
}

export interface DeadLetter {
  readonly message: OrderMessage;
  readonly error: string;
  readonly attempts: number;
  readonly diedAtMs: number;
}
