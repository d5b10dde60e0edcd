import type { Asker, RedisLink } from '../../base/redis/link.ts';
import type { Script } from '../../base/redis/scripts.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { Layout } from './layout.ts';

/** How a command is put into a call and its reply is read. */
export interface Command<Request, Reply> {
  readonly script: Script;
  /** The replies begin with the server's time. */
  readonly timed: boolean;
  /** For how long a lock is handed over unless that is confirmed: a setting of the client, the same for all. */
  readonly graceMs: number;
  write(bucket: number, request: Request, keys: string[], args: (string | number)[]): void;
  read(reply: unknown): Reply;
  failed(error: unknown): unknown;
}

interface Entry<Request, Reply> {
  readonly request: Request;
  resolve(reply: Reply): void;
  reject(error: unknown): void;
}

/** A call holds Redis for as long as it runs; this many locks take about half a millisecond. */
const BATCH_MAX = 128;

/**
 * Requests of one command for one bucket that are made in the same turn of the event loop go to Redis in one call. A lone
 * request is not delayed. This is what makes us faster than one call for each: most of the cost of a lock is the way there
 * and back, on our side of the socket.
 */
export class Batches<Request, Reply> {
  readonly #link: RedisLink;
  readonly #layout: Layout;
  readonly #runtime: Runtime;
  readonly #command: Command<Request, Reply>;
  readonly #onTime: (sentMs: number, storeUs: number) => void;
  readonly #waiting = new Map<number, Entry<Request, Reply>[]>();

  constructor(
    link: RedisLink,
    layout: Layout,
    runtime: Runtime,
    command: Command<Request, Reply>,
    onTime: (sentMs: number, storeUs: number) => void,
  ) {
    this.#link = link;
    this.#layout = layout;
    this.#runtime = runtime;
    this.#command = command;
    this.#onTime = onTime;
  }

  send(bucket: number, request: Request): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const entry = { request, resolve, reject };
      const batch = this.#waiting.get(bucket);
      if (batch) {
        batch.push(entry);
        return;
      }
      this.#waiting.set(bucket, [entry]);
      if (this.#waiting.size > 1) return;
      // With nothing under way there is nobody to wait for, but for those who are woken by the same answer as we were.
      if (this.#link.idle) queueMicrotask(this.#flush);
      else this.#runtime.timers.nextTurn(this.#flush);
    });
  }

  readonly #flush = (): void => {
    for (const [bucket, entries] of this.#waiting) {
      for (let from = 0; from < entries.length; from += BATCH_MAX) {
        this.#call(bucket, entries.length <= BATCH_MAX ? entries : entries.slice(from, from + BATCH_MAX));
      }
    }
    this.#waiting.clear();
  };

  #call(bucket: number, entries: Entry<Request, Reply>[]): void {
    const keys = [this.#layout.clock(bucket), this.#layout.gone(bucket)];
    const publish = this.#link.cluster ? 'SPUBLISH' : 'PUBLISH';
    const args: (string | number)[] = [this.#layout.channel(bucket), publish, this.#command.graceMs];
    for (const { request } of entries) this.#command.write(bucket, request, keys, args);
    const sentMs = this.#runtime.clock.monotonic();
    const asker: Asker = {
      answered: (reply) => this.#answered(entries, sentMs, reply as unknown[]),
      failed: (error) => this.#failed(bucket, entries, error),
    };
    this.#link.send(this.#command.script, keys, args, asker);
  }

  #answered(entries: readonly Entry<Request, Reply>[], sentMs: number, replies: unknown[]): void {
    let first = 0;
    if (this.#command.timed) {
      this.#onTime(sentMs, Number(replies[0]));
      first = 1;
    }
    for (let i = 0; i < entries.length; i++) entries[i]!.resolve(this.#command.read(replies[i + first]));
  }

  #failed(bucket: number, entries: readonly Entry<Request, Reply>[], error: unknown): void {
    // One key of another type must not fail its neighbours. Each is idempotent, so that half a batch is no harm.
    if (entries.length > 1 && error instanceof Error && error.name === 'ReplyError') {
      for (const entry of entries) this.#call(bucket, [entry]);
    } else {
      for (const entry of entries) entry.reject(this.#command.failed(error));
    }
  }
}
