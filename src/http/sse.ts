import type { Socket } from 'node:net';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { unavailable } from '../base/errors.ts';
import type { Timers } from '../base/timers.ts';
import { addressKey, addressOf, isLocalAddress } from './address.ts';
import type { Overload } from './overload.ts';
import { HttpProblem } from './problem.ts';
import { streamsOnly } from './sockets.ts';

const COMMENT_EVERY_MS = 15_000;
/** A reader that is this far behind is cut off: it may come back with Last-Event-ID. */
const BUFFERED_BYTES_MAX = 256 * 1024;

/** Of orders. A buyer has an order or two and a device or three, and must not take the places of all others. */
const PER_BUYER_MAX = 20;

/** Anybody may watch a sale; only buyers and admins watch an order, and strangers must not take their places. */
export type StreamKind = 'public' | 'order';

/**
 * The places of one kind of stream. A place is taken and counted in one step, and its release may be called from wherever
 * the stream can end: only the first call counts.
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

  /** `address` is null if it says nothing about who reads, `buyer` if it is none. Throws 503 if there is no place. */
  take(address: string | null, buyer: string | null = null): Disposable {
    if (this.#taken >= this.#max) throw full('too many event streams are open');
    if (this.#ofAddress.full(address)) throw full('too many event streams of this address are open');
    if (this.#ofBuyer.full(buyer)) throw full('too many event streams of this buyer are open');
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

/** How many places each has; whoever is null has no bound. */
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

/** Server-sent events: bounded in number, kept alive by comments, ended with the server. */
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

  /** `onRequest` of a route that streams: from here on nothing may be pipelined behind it. */
  readonly alone = (request: FastifyRequest, reply: FastifyReply, done: () => void): void => {
    streamsOnly(request.raw, reply.raw);
    done();
  };

  /**
   * Serves one stream: takes a place, lets `watch` subscribe, and opens it. The place is free again when the client leaves
   * or the server closes, also while `watch` still waits, and when `watch` fails. `watch` gives what ends its subscription.
   * `buyer`: whose token the request has, if it is a buyer's.
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
    // It may have left before: then no event will tell.
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
 * Whose stream it is, or null if that cannot be told: without TRUST_PROXY, a client of this machine or its own network may
 * be the proxy that all readers come through.
 */
function readerOf(request: FastifyRequest): string | null {
  const address = addressOf(request);
  // Fastify has `ips` only where proxies are trusted.
  return request.ips === undefined && isLocalAddress(address) ? null : addressKey(address);
}

export class EventStream {
  readonly #reply: FastifyReply;
  readonly #socket: Socket;
  readonly #timers: Timers;
  readonly #left: () => void;
  /** What is heard before the stream is open is the snapshot. */
  #early: (string | Buffer)[] | null = [];
  #finished = false;
  #ended = false;
  #stop = (): void => {};

  constructor(request: FastifyRequest, reply: FastifyReply, timers: Timers, left: () => void) {
    this.#reply = reply;
    this.#socket = request.raw.socket;
    this.#timers = timers;
    this.#left = left;
    // The socket's event and not the response's: a response that is pipelined behind others may never get the socket.
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

  /** There will be nothing more to tell: ends when what was sent before has been written. */
  end(): void {
    this.#finished = true;
    if (this.#early === null) this.abandon();
  }

  /** The one end of every stream: its client left, the server closes, or everything is told. */
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

  /** Text that is made already: a Buffer can be shared by all who get the same. */
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
