import type { ServerResponse } from 'node:http';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { Timers } from '../base/timers.ts';
import { HttpProblem } from './problem.ts';

const COMMENT_EVERY_MS = 15_000;
/** A reader that is this far behind is cut off: it may come back with Last-Event-ID. */
const BUFFERED_BYTES_MAX = 256 * 1024;

/** Server-sent events: bounded in number, kept alive by comments, ended with the server. */
export class EventStreams {
  readonly #timers: Timers;
  readonly #max: number;
  readonly #opened: (response: ServerResponse) => void;
  readonly #open = new Set<EventStream>();

  /** `opened` is told of each response that has become a stream. */
  constructor(timers: Timers, max: number, opened: (response: ServerResponse) => void) {
    this.#timers = timers;
    this.#max = max;
    this.#opened = opened;
  }

  /** Throws 503 when there are too many. Call it before anything is subscribed. */
  admit(): void {
    if (this.#open.size >= this.#max) {
      throw new HttpProblem('overloaded', 'too many event streams are open', undefined, { 'retry-after': '5' });
    }
  }

  open(request: FastifyRequest, reply: FastifyReply): EventStream {
    reply.hijack();
    this.#opened(reply.raw);
    const stream = new EventStream(request, reply, this.#timers, () => this.#open.delete(stream));
    this.#open.add(stream);
    return stream;
  }

  close(): void {
    for (const stream of [...this.#open]) stream.end();
  }
}

export class EventStream {
  readonly #reply: FastifyReply;
  readonly #cancelComments: () => void;
  readonly #onEnd: (() => void)[];
  #ended = false;

  constructor(request: FastifyRequest, reply: FastifyReply, timers: Timers, onEnd: () => void) {
    this.#reply = reply;
    this.#onEnd = [onEnd];
    const headers: Record<string, number | string | string[]> = {};
    for (const [name, value] of Object.entries(reply.getHeaders())) if (value !== undefined) headers[name] = value;
    reply.raw.writeHead(200, {
      ...headers,
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-store',
      'x-accel-buffering': 'no',
    });
    reply.raw.write(': doorbuster\n\n');
    this.#cancelComments = timers.every(COMMENT_EVERY_MS, () => this.#write(':\n\n'));
    request.raw.socket.once('close', () => this.end());
    reply.raw.once('close', () => this.end());
  }

  onEnd(run: () => void): void {
    if (this.#ended) run();
    else this.#onEnd.push(run);
  }

  send(event: string, id: string, data: unknown): void {
    this.#write(`event: ${event}\nid: ${id}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#cancelComments();
    this.#reply.raw.end();
    for (const run of this.#onEnd) run();
  }

  #write(text: string): void {
    if (this.#ended) return;
    this.#reply.raw.write(text);
    if (this.#reply.raw.writableLength > BUFFERED_BYTES_MAX) {
      this.#reply.raw.destroy();
      this.end();
    }
  }
}

export function lastEventId(request: FastifyRequest): string | null {
  const id = request.headers['last-event-id'];
  return typeof id === 'string' && id.length > 0 ? id : null;
}
