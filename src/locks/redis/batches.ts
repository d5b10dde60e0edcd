import { type Asker, bulk, type RedisLink } from '../../base/redis/link.ts';
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
  /** How many keys and arguments a request has; and each of these as it is written on the wire. */
  readonly keys: number;
  readonly args: number;
  writeKeys(bucket: number, request: Request): string;
  writeArgs(request: Request): string;
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
const FRAME_KEYS = 2;
const FRAME_ARGS = 3;

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
  /** By bucket, and which buckets these are. No Map: each one that is cleared would keep what stood in it, see base/tally.ts. */
  readonly #waiting: (Entry<Request, Reply>[] | undefined)[] = [];
  #buckets: number[] = [];
  readonly #frames = new Map<number, { keys: string; args: string }>();

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
      const batch = this.#waiting[bucket];
      if (batch) {
        batch.push(entry);
        return;
      }
      this.#waiting[bucket] = [entry];
      if (this.#buckets.push(bucket) > 1) return;
      this.#link.expect();
      // With nothing under way there is nobody to wait for but those who go on by the same answer as we did. A tick that is
      // asked for by a promise's callback runs when all of these have.
      if (this.#link.idle) process.nextTick(this.#flush);
      else this.#runtime.timers.nextTurn(this.#flush);
    });
  }

  readonly #flush = (): void => {
    const buckets = this.#buckets;
    this.#buckets = [];
    const batches = buckets.map((bucket) => this.#waiting[bucket]!);
    for (const bucket of buckets) this.#waiting[bucket] = undefined;
    try {
      for (const [at, entries] of batches.entries()) {
        const bucket = buckets[at]!;
        for (let from = 0; from < entries.length; from += BATCH_MAX) {
          this.#call(bucket, entries.length <= BATCH_MAX ? entries : entries.slice(from, from + BATCH_MAX));
        }
      }
    } finally {
      this.#link.expected();
    }
  };

  #call(bucket: number, entries: Entry<Request, Reply>[]): void {
    const command = this.#command;
    let { keys, args } = this.#frameOf(bucket);
    for (const { request } of entries) {
      keys += command.writeKeys(bucket, request);
      args += command.writeArgs(request);
    }
    const sentMs = this.#runtime.clock.monotonic();
    const count = FRAME_KEYS + entries.length * command.keys;
    const parts = count + FRAME_ARGS + entries.length * command.args;
    this.#link.send(command.script, count, parts, keys + args, sentMs, new Call(this, bucket, entries, sentMs));
  }

  /** What every call for a bucket begins with. */
  #frameOf(bucket: number): { keys: string; args: string } {
    let frame = this.#frames.get(bucket);
    if (!frame) {
      const publish = this.#link.cluster ? 'SPUBLISH' : 'PUBLISH';
      frame = {
        keys: bulk(this.#layout.clock(bucket)) + bulk(this.#layout.gone(bucket)),
        args: bulk(this.#layout.channel(bucket)) + bulk(publish) + bulk(String(this.#command.graceMs)),
      };
      this.#frames.set(bucket, frame);
    }
    return frame;
  }

  /** For our own calls. */
  answered(entries: readonly Entry<Request, Reply>[], sentMs: number, reply: unknown): void {
    // The short answer to one request: a token is also (nearly) the time.
    if (typeof reply === 'number') {
      if (this.#command.timed) this.#onTime(sentMs, reply);
      entries[0]!.resolve(this.#command.read(reply));
      return;
    }
    const replies = reply as unknown[];
    let first = 0;
    if (this.#command.timed) {
      this.#onTime(sentMs, Number(replies[0]));
      first = 1;
    }
    for (let i = 0; i < entries.length; i++) entries[i]!.resolve(this.#command.read(replies[i + first]));
  }

  /** For our own calls. */
  failed(bucket: number, entries: readonly Entry<Request, Reply>[], error: unknown): void {
    // One key of another type must not fail its neighbours. Each is idempotent, so that half a batch is no harm.
    if (entries.length > 1 && error instanceof Error && error.name === 'ReplyError') {
      for (const entry of entries) this.#call(bucket, [entry]);
    } else {
      for (const entry of entries) entry.reject(this.#command.failed(error));
    }
  }
}

/** One call under way: one object, where two closures would be three. */
class Call<Request, Reply> implements Asker {
  readonly #batches: Batches<Request, Reply>;
  readonly #bucket: number;
  readonly #entries: readonly Entry<Request, Reply>[];
  readonly #sentMs: number;

  constructor(
    batches: Batches<Request, Reply>,
    bucket: number,
    entries: readonly Entry<Request, Reply>[],
    sentMs: number,
  ) {
    this.#batches = batches;
    this.#bucket = bucket;
    this.#entries = entries;
    this.#sentMs = sentMs;
  }

  answered(reply: unknown): void {
    this.#batches.answered(this.#entries, this.#sentMs, reply);
  }

  failed(error: unknown): void {
    this.#batches.failed(this.#bucket, this.#entries, error);
  }
}
