import type { RedisLink } from '../../base/redis/link.ts';
import type { Script } from '../../base/redis/scripts.ts';
import { type Asker, bulk } from '../../base/redis/sent-script.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { Layout } from './layout.ts';

/** A script that serves many requests in one call. */
export interface Command<Address> {
  readonly script: Script;
  /** For how long a lock is handed over unless that is confirmed: a setting of the client, the same for all. */
  readonly graceMs: number;
  /** How many keys and arguments a request has; and its keys as they are written on the wire. */
  readonly keys: number;
  readonly args: number;
  writeKeys(bucket: number, address: Address): string;
  failed(error: unknown): unknown;
}

/** What can be asked of a script: how a request is put to it, and how its reply is read. */
export interface Verb<Request, Reply> {
  /** The reply to a lone request, when it is a number, is (nearly) the server's time. */
  readonly timed: boolean;
  /** The arguments, as they are written on the wire. */
  write(request: Request): string;
  read(reply: unknown, request: Request): Reply;
}

// biome-ignore lint/suspicious/noExplicitAny: requests of several kinds stand in one batch, each beside the verb that knows it.
type AnyVerb = Verb<any, any>;

interface Asked<Address> {
  readonly verb: AnyVerb;
  readonly request: Address;
  resolve(reply: unknown): void;
  reject(error: unknown): void;
}

/** A call holds Redis for as long as it runs; this many locks take about half a millisecond. */
const BATCH_MAX = 128;
const FRAME_KEYS = 2;
const FRAME_ARGS = 3;

/**
 * Requests to one script for one bucket that are made in the same turn of the event loop go to Redis in one call. A lone
 * request is not delayed. This is what makes us faster than one call for each: most of the cost of a lock is the way there
 * and back, on our side of the socket.
 */
export class Batches<Address> {
  readonly #link: RedisLink;
  readonly #layout: Layout;
  readonly #runtime: Runtime;
  readonly #command: Command<Address>;
  readonly #onTime: (sentMs: number, storeUs: number) => void;
  /** By bucket, and which buckets these are. No Map: each one that is cleared would keep what stood in it, see base/in-flight.ts. */
  readonly #waiting: (Asked<Address>[] | undefined)[] = [];
  #buckets: number[] = [];
  readonly #frames = new Map<number, { keys: string; args: string }>();

  constructor(
    link: RedisLink,
    layout: Layout,
    runtime: Runtime,
    command: Command<Address>,
    onTime: (sentMs: number, storeUs: number) => void,
  ) {
    this.#link = link;
    this.#layout = layout;
    this.#runtime = runtime;
    this.#command = command;
    this.#onTime = onTime;
  }

  send<Request extends Address, Reply>(bucket: number, verb: Verb<Request, Reply>, request: Request): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const entry: Asked<Address> = { verb, request, resolve: resolve as (reply: unknown) => void, reject };
      const batch = this.#waiting[bucket];
      if (batch) {
        batch.push(entry);
        return;
      }
      this.#waiting[bucket] = [entry];
      if (this.#buckets.push(bucket) > 1) return;
      this.#link.expect();
      // With nothing under way, company can only come from callers that the same reply has resumed. A tick that is requested
      // in a promise's callback runs after all of them.
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

  #call(bucket: number, entries: Asked<Address>[]): void {
    const command = this.#command;
    let { keys, args } = this.#frameOf(bucket);
    for (const { verb, request } of entries) {
      keys += command.writeKeys(bucket, request);
      args += verb.write(request);
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
  answered(entries: readonly Asked<Address>[], sentMs: number, reply: unknown): void {
    if (typeof reply === 'number') {
      const { verb, request, resolve } = entries[0]!;
      if (verb.timed) this.#onTime(sentMs, reply);
      resolve(verb.read(reply, request));
      return;
    }
    const [timeUs, ...replies] = reply as [number, ...unknown[]];
    if (timeUs > 0) this.#onTime(sentMs, timeUs);
    for (let i = 0; i < entries.length; i++) {
      const { verb, request, resolve, reject } = entries[i]!;
      const failure = failureIn(replies[i]);
      if (failure === null) resolve(verb.read(replies[i], request));
      else reject(this.#command.failed(this.#link.failure(failure, 'EVALSHA')));
      // As for an error reply to a whole call: a new connection finds the present master.
      if (failure?.message.startsWith('READONLY')) this.#link.reconnect();
    }
  }

  /** For our own calls. */
  failed(bucket: number, entries: readonly Asked<Address>[], error: unknown): void {
    // There is a key that we have no rights to: Redis refused the whole call before it began.
    if (entries.length > 1 && error instanceof Error && error.message.startsWith('NOPERM')) {
      for (const entry of entries) this.#call(bucket, [entry]);
      return;
    }
    for (const entry of entries) entry.reject(this.#command.failed(error));
  }
}

/** Of a request that failed while its neighbours did not: see `guarded` in _frame.lua. */
export function failureIn(reply: unknown): Error | null {
  if (!Array.isArray(reply) || reply[0] !== -9) return null;
  return Object.assign(new Error(String(reply[1])), { name: 'ReplyError' });
}

/** One call under way: one object instead of two closures and their context. */
class Call<Address> implements Asker {
  readonly #batches: Batches<Address>;
  readonly #bucket: number;
  readonly #entries: readonly Asked<Address>[];
  readonly #sentMs: number;

  constructor(batches: Batches<Address>, bucket: number, entries: readonly Asked<Address>[], sentMs: number) {
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
