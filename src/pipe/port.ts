/**
 * A pipe carries messages of one kind, such as admitted orders, from where they are decided to the ledger: at least once, in order per
 * channel and consumer. Channels have names: `sale:<id>` for the orders of a sale, `likes:<shard>` for likes (src/pipe/channels.ts). A
 * message is in the pipe from the atomic step that decided it (an order's admission) until the batch it was handed over in is decided.
 *
 * The handler decides a whole batch. It resolves with the messages that the ledger can never take as they are: those are tried
 * again apart from the others, and end as dead letters. It rejects when nothing can be decided now (the ledger is out): then the
 * whole batch is handed over again.
 */
export interface Pipe<M> {
  /**
   * Starts handing over batches. What arrives while one is being handled goes into the next. A consumer that rejects for long may be
   * the only one that cannot reach its ledger: other consumers then get its batches, and it gets no more until `ready` resolves.
   */
  consume(handle: Handle<M>, ready?: () => Promise<unknown>): void;
  /**
   * Resolves with true when all that is in this channel now has left it; with false after `withinMs`, or when nothing of
   * it was decided for `idleMs`. A message that is put aside for another try, or becomes a dead letter, is not decided.
   */
  caughtUp(channel: string, withinMs?: number, idleMs?: number): Promise<boolean>;
  /** How many messages are in the channel, including those to be tried again, without dead letters. */
  depthOf(channel: string): Promise<number>;
  /** Hands over no more; resolves when what was handed over is decided. The rest stays in the pipe. */
  stop(): Promise<void>;
}

// biome-ignore lint/suspicious/noConfusingVoidType: a handler that decides everything has nothing to return
export type Handle<M> = (batch: M[]) => Promise<readonly Undeliverable<M>[] | Handled<M> | void>;

/** The batch is stored; its consequences (gate, answers) are under way. The next batch may be handed over meanwhile. */
export interface Handled<M> {
  readonly undeliverable: readonly Undeliverable<M>[];
  /** Resolves when the consequences are done: only then is the batch decided. Rejects: it is handed over again. */
  readonly told: Promise<void>;
}

export interface Undeliverable<M> {
  readonly message: M;
  readonly error: Error;
}

/** A pipe that several processes share. */
export interface SharedPipe<M> extends Pipe<M> {
  readonly letters: DeadLetters<M>;
  readonly counters: PipeCounters;
  /** Why nothing can be carried now, or null while it can. */
  readonly reason: string | null;
  /** For a process that does not consume: polls, so that `counters` and `reason` are up to date. */
  observe(): void;
  close(): Promise<void>;
}

export interface PipeCounters {
  /** At the last poll: messages in all streams (estimated for long ones) and waiting for another try. */
  readonly depth: number;
  /** At the last poll: dead letters of all channels. */
  readonly letters: number;
  /** Since the start of this process: messages put aside for another try, and messages that became dead letters. */
  readonly retries: number;
  readonly died: number;
  /** Messages taken over from other consumers. */
  readonly claimed: number;
}

/** Messages that the ledger could not take after many tries. Orders hold their units until somebody decides. */
export interface DeadLetters<M> {
  /** Newest first: those with an id below `before`. */
  list(limit: number, before: string | null): Promise<DeadLetter<M>[]>;
  get(id: string): Promise<DeadLetter<M> | null>;
  /** The ids of all letters of one channel. */
  idsIn(channel: string): Promise<string[]>;
  /** Puts it back into the pipe with its tries reset. False: there is no such letter. */
  retry(id: string): Promise<boolean>;
  /** Deletes it, after its message was ended in the ledger. False: there was no such letter. */
  drop(id: string): Promise<boolean>;
}

export interface DeadLetter<M> {
  /** The message's id (an order's is the order's), or `entry-…` or `foreign-…` where nothing could be read. */
  readonly id: string;
  /** The channel that carried it; null: a broker brought it, and it is not ours. */
  readonly channel: string | null;
  readonly message: M;
  readonly error: string;
  readonly attempts: number;
  readonly diedAtMs: number;
}
