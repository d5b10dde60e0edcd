import type { Socket } from 'node:net';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { unavailable } from '../base/errors.ts';
import type { Timers } from '../base/timers.ts';
import { addressKey, addressOf, isLocalAddress } from './address.ts';
import type { Overload } from './overload.ts';
import { HttpProblem } from './problem.ts';
import { streamsOnly } from './sockets.ts';

const COMMENT_EVERY_MS = 15_000;
/** A reader this far behind is disconnected. It can reconnect with Last-Event-ID. */
const BUFFERED_BYTES_MAX = 256 * 1024;

/** Order streams per buyer. A buyer has an order or two and two or three devices, and must not use up everybody's places. */
const PER_BUYER_MAX = 20;

/** Anybody may watch a sale (`public`). Buyers and admins watch orders, and strangers must not use up their places. */
export type StreamKind = 'public' | 'order';

/**
 * Counts the open streams of one kind. Checking and taking a place is one step, and its release is idempotent, because a
 * stream can end in several ways.
 */
export class StreamPlaces {
  readonly #max: number;
  readonly #ofAddress: Shares;
  readonly #ofBuyer: Shares;
  #taken = 0;

  constructor(max: number, perAddressMax: number, perBuyerMax = PER_BUYER_MAX) {
    this.#max = max;
    this.#ofAddress = new Shares(perAddressMax);
    this.#ofBuyer = new Shares(perBuyerMax);
  }

  get taken(): number {
    return this.#taken;
  }

  /** Throws 503 if there is no place. `address` is null if it does not identify the reader, `buyer` if the reader is not one. */
  take(address: string | null, buyer: string | null = null): Disposable {
    if (this.#taken >= this.#max) throw full('too many event streams are open');
    if (this.#ofAddress.full(address)) throw full('this address has too many open event streams');
    if (this.#ofBuyer.full(buyer)) throw full('this buyer has too many open event streams');
    this.#add(1, address, buyer);
    let released = false;
    return {
      [Symbol.dispose]: () => {
        if (released) return;
        released = true;
        this.#add(-1, address, buyer);
      },
    };
  }

  #add(count: 1 | -1, address: string | null, buyer: string | null): void {
    this.#taken += count;
    this.#ofAddress.add(count, address);
    this.#ofBuyer.add(count, buyer);
  }
}

/** Places taken per address or per buyer; null has no bound. */
class Shares {
  readonly #max: number;
  readonly #taken = new Map<string, number>();

  constructor(max: number) {
    this.#max = max;
  }

  full(by: string | null): boolean {
    return by !== null && (this.#taken.get(by) ?? 0) >= this.#max;
  }

  add(count: 1 | -1, by: string | null): void {
    if (by === null) return;
    const taken = (this.#taken.get(by) ?? 0) + count;
    if (taken === 0) this.#taken.delete(by);
    else this.#taken.set(by, taken);
  }
}

function full(detail: string): HttpProblem {
  return new HttpProblem('overloaded', detail, undefined, { 'retry-after': '5' });
}

/** Server-sent events: bounded in number, kept alive by comments, ended when the server closes. */
export class EventStreams {
  readonly #timers: Timers;
  readonly #overload: Overload;
  readonly #places: Record<StreamKind, StreamPlaces>;
  readonly #streams = new Set<EventStream>();

  constructor(timers: Timers, bounds: { max: number; perAddressMax: number }, overload: Overload) {
    this.#timers = timers;
    this.#overload = overload;
    const places = (): StreamPlaces => new StreamPlaces(bounds.max, bounds.perAddressMax);
    this.#places = { public: places(), order: places() };
  }

  /** The `onRequest` hook of a route that streams: nothing may be pipelined behind such a request. */
  readonly alone = (request: FastifyRequest, reply: FastifyReply, done: () => void): void => {
    streamsOnly(request.raw, reply.raw);
    done();
  };

  /**
   * Serves one stream: takes a place, lets `watch` subscribe, and opens the stream. The place is freed when the client leaves
   * or the server closes (even while `watch` is still pending) and when `watch` fails. `watch` returns a function that ends its
   * subscription. `buyer`: the buyer whose token the request carries, or null.
   */
  async serve(
    kind: StreamKind,
    request: FastifyRequest,
    reply: FastifyReply,
    watch: (stream: EventStream) => Promise<() => void>,
    buyer: string | null = null,
  ): Promise<void> {
    const place = this.#places[kind].take(readerOf(request), buyer);
    const stream = new EventStream(request, reply, this.#timers, () => {
      place[Symbol.dispose]();
      this.#streams.delete(stream);
    });
    this.#streams.add(stream);
    // The client may have left already: then no `close` event follows.
    if (request.raw.socket.destroyed) stream.abandon();
    try {
      const stop = await watch(stream);
      if (stream.ended) {
        stop();
        if (!request.raw.socket.destroyed) throw unavailable('the shop is closing');
      }
      reply.hijack();
      this.#overload.answered(request.raw);
      if (!stream.ended) stream.open(stop);
    } catch (error) {
      stream.abandon();
      throw error;
    }
  }

  close(): void {
    for (const stream of [...this.#streams]) stream.abandon();
  }
}

/**
 * The address to count the stream by, or null if it does not identify the reader: without TRUST_PROXY, a local address may be
 * the proxy that all readers come through.
 */
function readerOf(request: FastifyRequest): string | null {
  const address = addressOf(request);
  // Fastify sets `ips` only if it trusts proxies.
  return request.ips === undefined && isLocalAddress(address) ? null : addressKey(address);
}

export class EventStream {
  readonly #reply: FastifyReply;
  readonly #socket: Socket;
  readonly #timers: Timers;
  readonly #left: () => void;
  /** Events that `watch` sent before the stream opened: the snapshot. Null once it is open. */
  #early: (string | Buffer)[] | null = [];
  #finished = false;
  #ended = false;
  #stop = (): void => {};

  constructor(request: FastifyRequest, reply: FastifyReply, timers: Timers, left: () => void) {
    this.#reply = reply;
    this.#socket = request.raw.socket;
    this.#timers = timers;
    this.#left = left;
    // The socket's event as well: a response that is pipelined behind others may never get the socket, nor its `close`.
    this.#socket.once('close', this.abandon);
    reply.raw.once('close', this.abandon);
  }

  get ended(): boolean {
    return this.#ended;
  }

  open(stop: () => void): void {
    const headers: Record<string, number | string | string[]> = {};
    for (const [name, value] of Object.entries(this.#reply.getHeaders()))
      if (value !== undefined) headers[name] = value;
    this.#reply.raw.writeHead(200, {
      ...headers,
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-store',
      'x-accel-buffering': 'no',
    });
    const cancelComments = this.#timers.every(COMMENT_EVERY_MS, () => this.write(':\n\n'));
    this.#stop = () => {
      cancelComments();
      stop();
    };
    const early = this.#early!;
    this.#early = null;
    this.write(`: doorbuster\n\n${early.join('')}`);
    if (this.#finished) this.abandon();
  }

  send(event: string, id: string, data: unknown): void {
    this.write(eventText(event, id, data));
  }

  /** Ends the stream after everything that was sent so far. */
  end(): void {
    this.#finished = true;
    if (this.#early === null) this.abandon();
  }

  /** Every stream ends here: its client left, the server closes, or there is nothing more to send. */
  readonly abandon = (): void => {
    if (this.#ended) return;
    this.#ended = true;
    this.#socket.off('close', this.abandon);
    this.#reply.raw.off('close', this.abandon);
    this.#left();
    if (this.#early !== null) return;
    this.#stop();
    this.#reply.raw.end();
  };

  /** Writes serialised events. A Buffer can be shared by all readers of the same events. */
  write(text: string | Buffer): void {
    if (this.#ended) return;
    if (this.#early !== null) {
      this.#early.push(text);
      return;
    }
    this.#reply.raw.write(text);
    if (this.#reply.raw.writableLength > BUFFERED_BYTES_MAX) {
      this.#reply.raw.destroy();
      this.abandon();
    }
  }
}

export function eventText(event: string, id: string, data: unknown): string {
  return `event: ${event}\nid: ${id}\ndata: ${JSON.stringify(data)}\n\n`;
}

export function lastEventId(request: FastifyRequest): string | null {
  const id = request.headers['last-event-id'];
  return typeof id === 'string' && id.length > 0 ? id : null;
}
