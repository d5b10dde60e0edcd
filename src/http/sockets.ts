import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Overload } from './overload.ts';
import { UNSENT_BOUNDS, Unsent, type UnsentBounds, type UnsentOn } from './unsent.ts';

/** Requests of one socket that are unanswered, or answered and not yet sent. Clients that pipeline use about ten. */
const OUTSTANDING_MAX = 64;
/** Answers of one socket that wait behind an earlier one. */
const QUEUED_BYTES_MAX = 1024 * 1024;
/** A file counts as at most this much: it is in memory once, however many answers wait with it. */
const QUEUED_FILE_BYTES_MAX = QUEUED_BYTES_MAX / 4;
/** An answer that is sent at once and is no longer than this is not tracked: it fits into the socket's kernel buffer. */
const SMALL_BYTES = 2 * 1024;
/** Memory of an answer besides its body: the request, the headers, the objects of Node and Fastify. */
const ANSWER_BYTES = 4 * 1024;
/** How much of an unwanted body is read and discarded, so that its sender sees the answer. */
const DISCARDED_BYTES_MAX = 16 * 1024 * 1024;

interface SocketState {
  outstanding: number;
  queuedBytes: number;
  /** A request for an event stream is outstanding: nothing behind it can be answered before the stream ends. */
  streaming: boolean;
  cut: boolean;
  /** A request that was answered before its body arrived. */
  refused: IncomingMessage | null;
}

// Symbols on Node's own objects: a map would cost one more look-up per request, and would need cleaning up.
const STATE = Symbol('doorbuster.socket');
const QUEUED = Symbol('doorbuster.queued');

type Tracked = Socket & { [STATE]?: SocketState };
type TrackedResponse = ServerResponse & { [QUEUED]?: number };

/**
 * Bounds what one socket may request at a time, and what all sockets may leave unread. HTTP/1.1 answers in order, so one slow
 * answer or an event stream holds up everything that is pipelined behind it, and Node reads on until 64 KiB of answers wait:
 * thousands of requests. A socket that exceeds a bound is closed. It cannot be slowed down, because its requests may all have
 * come in one packet.
 */
export class Sockets {
  readonly #overload: Overload;
  readonly #unsent: Unsent;

  constructor(overload: Overload, on: UnsentOn, bounds: UnsentBounds = UNSENT_BOUNDS) {
    this.#overload = overload;
    this.#unsent = new Unsent(on, bounds);
  }

  /** Memory of the answers that clients have not read yet. */
  get unsentBytes(): number {
    return this.#unsent.bytes;
  }

  close(): void {
    this.#unsent.close();
  }

  /** False if the socket exceeded a bound: it is closed, and the request must not be answered. */
  enter(request: IncomingMessage, response: ServerResponse): boolean {
    if (!enterSocket(request, response)) return false;
    // With a body, the parser counts the request once the body has arrived.
    if (!hasBody(request)) this.#overload.enter(request);
    return true;
  }

  /** The handler has answered; `payload` is sent after everything before it on this socket. */
  answered(request: IncomingMessage, response: ServerResponse, payload: unknown): void {
    this.#overload.answered(request);
    if (!request.complete) discardRest(request, response);
    const bytes = bytesOf(payload);
    const goesOut = response.socket !== null;
    if (goesOut && bytes <= SMALL_BYTES) return;
    const socket = request.socket as Tracked | null;
    const state = socket?.[STATE];
    if (socket === null || state === undefined) return;
    const body = payload as string | Buffer | null | undefined;
    const isKept = Buffer.isBuffer(body) && keptBodies.has(body);
    this.#unsent.add(socket, response, ANSWER_BYTES + (isKept ? 0 : bytes), isKept ? body.length : bytes);
    // The first answer in the queue writes to the socket directly, and Node stops reading requests while its buffer is full.
    if (goesOut) return;
    (response as TrackedResponse)[QUEUED] = bytes;
    state.queuedBytes += bytes;
    if (state.queuedBytes > QUEUED_BYTES_MAX) cut(socket, state);
  }
}

const keptBodies = new WeakSet<Buffer>();

/** Marks a body that is shared by all answers and never freed: an answer that waits with it takes no memory for it. */
export function kept(body: Buffer): Buffer {
  keptBodies.add(body);
  return body;
}

function bytesOf(payload: unknown): number {
  if (payload === null || payload === undefined) return 0;
  if (typeof payload === 'string') return payload.length;
  if (!Buffer.isBuffer(payload)) return QUEUED_FILE_BYTES_MAX;
  return keptBodies.has(payload) ? Math.min(payload.length, QUEUED_FILE_BYTES_MAX) : payload.length;
}

/** Whether Fastify reads a body before it calls the handler. */
function hasBody({ method, headers }: IncomingMessage): boolean {
  if (method === 'GET' || method === 'HEAD') return false;
  const length = headers['content-length'];
  return (length !== undefined && length !== '0') || headers['transfer-encoding'] !== undefined;
}

function stateOf(socket: Tracked): SocketState {
  socket[STATE] ??= { outstanding: 0, queuedBytes: 0, streaming: false, cut: false, refused: null };
  return socket[STATE];
}

function leave(this: ServerResponse): void {
  const state = (this.req.socket as Tracked)[STATE];
  if (state === undefined) return;
  state.outstanding--;
  state.queuedBytes -= (this as TrackedResponse)[QUEUED] ?? 0;
}

/** `Sockets.enter` without counting the request in flight, for requests that no hook sees. */
export function enterSocket(request: IncomingMessage, response: ServerResponse): boolean {
  if (!mayEnter(request)) return false;
  response.on('close', leave);
  return true;
}

/** Counts the request on its socket. HTTP/2 multiplexes and bounds its streams itself. */
function mayEnter(request: IncomingMessage): boolean {
  if (request.httpVersionMajor > 1) return true;
  const state = stateOf(request.socket);
  // A request from the same packet as the one that exceeded the bound.
  if (state.cut) return false;
  if (state.streaming || state.outstanding >= OUTSTANDING_MAX) {
    cut(request.socket, state);
    return false;
  }
  state.outstanding++;
  return true;
}

/** From a request for an event stream until its end, nothing may be pipelined behind it. */
export function streamsOnly(request: IncomingMessage, response: ServerResponse): void {
  if (request.httpVersionMajor > 1) return;
  const state = stateOf(request.socket);
  state.streaming = true;
  response.once('close', () => {
    state.streaming = false;
  });
}

/** Requests that are unanswered, or whose answer is not sent yet. */
export function outstandingOf(socket: Socket): number {
  return (socket as Tracked)[STATE]?.outstanding ?? 0;
}

/** True if an answer written to the socket now would not mix with another one. */
export function mayBeAnswered(socket: Socket): boolean {
  const state = (socket as Tracked)[STATE];
  if (!socket.writable) return false;
  if (state === undefined) return true;
  const { refused, streaming, cut, outstanding } = state;
  if (cut || streaming || outstanding > 1 || (refused !== null && !refused.complete)) return false;
  // Private to Node: the response that currently owns the socket. Node's own clientError handler checks the same.
  const { _httpMessage: current } = socket as Socket & { _httpMessage?: ServerResponse | null };
  return !current?.headersSent;
}

function cut(socket: Socket, state: SocketState): void {
  state.cut = true;
  socket.destroy();
}

/**
 * Handles the body of a request that was answered before it arrived. If the socket closed at once, the sender would see a
 * reset instead of the answer; if it stayed open, the sender could send for ever. So a bounded part is read and discarded,
 * and a client that sends or announces more is disconnected.
 */
function discardRest(request: IncomingMessage, response: ServerResponse): void {
  const { 'content-length': announced, 'transfer-encoding': encoding } = request.headers;
  if (announced === undefined && encoding === undefined) return;
  if (Number(announced ?? 0) > DISCARDED_BYTES_MAX) {
    if (!response.headersSent) response.setHeader('connection', 'close');
    return;
  }
  stateOf(request.socket).refused = request;
  let left = DISCARDED_BYTES_MAX;
  request.on('data', (chunk: Buffer) => {
    left -= chunk.length;
    if (left < 0) request.socket.destroy();
  });
}
