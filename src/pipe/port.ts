import type { OrderMessage } from '../model/order.ts';

/**
 * The pipe carries admitted orders from the gate to the ledger: at least once, in order per sale and consumer. A message
 * is in the pipe from the atomic step of its admission until the batch it was handed over in is decided.
 *
 * Who handles a batch decides all of it: resolves with the messages that the ledger can never take as they are (they are
 * tried again apart from the others, and end as dead letters), or rejects when nothing can be decided now (the ledger is
 * out): then the whole batch is handed over again.
 */
export interface Pipe {
  /**
   * Starts handing over batches. Whatever arrives while one is being handled goes into the next. A consumer that rejects
   * for long may be the only one that cannot reach its ledger: where there are others they get its batches, and it gets
   * no more until `ready` resolves.
   */
  consume(handle: Handle, ready?: () => Promise<unknown>): void;
  /**
   * Resolves when all that is in the pipe of this sale now has left it: true; or false after `withinMs`, or when none of it was
   * decided for `idleMs`. A message that is put aside to be tried again, or dies, was not decided.
   */
  caughtUp(saleId: string, withinMs?: number, idleMs?: number): Promise<boolean>;
  /** Messages of the sale that are in the pipe, also those to be tried again; dead letters are not. */
  depthOf(saleId: string): Promise<number>;
  /** Hands over no more; resolves when what was handed over is decided. What is left stays in the pipe. */
  stop(): Promise<void>;
}

// biome-ignore lint/suspicious/noConfusingVoidType: who decides everything has nothing to return
export type Handle = (batch: OrderMessage[]) => Promise<readonly Undeliverable[] | Handled | void>;

/** The batch is stored, and what follows from that is under way: the next one may be handed over meanwhile. */
export interface Handled {
  readonly undeliverable: readonly Undeliverable[];
  /** Resolves when all that follows is done: only then the batch is decided. Rejects: it is handed over again. */
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
  /** Without consuming: looks now and then, so that `counters` and `reason` say what is the case. */
  observe(): void;
  close(): Promise<void>;
}

export interface PipeCounters {
  /** By the last look: orders in all streams (estimated for long ones) and among those to be tried again. */
  readonly depth: number;
  /** By the last look: dead letters of all sales. */
  readonly letters: number;
  /** Since the start of this process: messages put aside to be tried again, and those that became dead letters. */
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
  /** Back into the pipe, with no tries counted. False: there is none. */
  retry(orderId: string): Promise<boolean>;
  /** Forgets it: its order has been ended in the ledger. False: there was none. */
  drop(orderId: string): Promise<boolean>;
}

export interface DeadLetter {
  readonly message: OrderMessage;
  readonly error: string;
  readonly attempts: number;
  readonly diedAtMs: number;
}
