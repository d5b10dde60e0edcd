import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Overload } from './overload.ts';
import { UNSENT_BOUNDS, Unsent, type UnsentBounds, type UnsentOn } from './unsent.ts';

/** Requests of one socket that may be unanswered, or answered and not yet sent. Clients that pipeline use ten or so. */
const OUTSTANDING_MAX = 64;
/** Answers of one socket that wait behind an earlier one. */
const QUEUED_BYTES_MAX = 1024 * 1024;
/** What a file counts for at most: it is in memory already, however many wait for it. */
const QUEUED_FILE_BYTES_MAX = QUEUED_BYTES_MAX / 4;
/** An answer that goes out at once and is no longer than this is not followed: the system takes it. */
const SMALL_BYTES = 2 * 1024;
/** What an answer takes in memory beside its body: the request, the headers, the objects of Node and Fastify. */
const ANSWER_BYTES = 4 * 1024;
/** What is read and thrown away of a body that nobody wants, so that its sender sees the answer. */
const DISCARDED_BYTES_MAX = 16 * 1024 * 1024;

interface SocketState {
  outstanding: number;
  queuedBytes: number;
  /** A request for an event stream is outstanding: nothing behind it can be answered before the stream ends. */
  streaming: boolean;
  cut: boolean;
  /** Answered before its body has come. */
  refused: IncomingMessage | null;
}

// Symbols on Node's own objects: a map would be one look-up more for every request, and has to be cleaned up.
const STATE = Symbol('doorbuster.socket');
const QUEUED = Symbol('doorbuster.queued');

type Tracked = Socket & { [STATE]?: SocketState };
type Answer = ServerResponse & { [QUEUED]?: number };

/**
 * What one socket may ask for at a time, and what all of them may leave unread. HTTP/1.1 answers in order, so that one slow
 * answer, or an event stream, holds all that is pipelined behind it; Node reads on until 64 KiB of answers wait, which are
 * thousands of requests. A socket that goes beyond a bound is closed: its requests come from one packet, and there is no
 * reading less of it.
 */
export class Sockets {
  readonly #overload: Overload;
  readonly #unsent: Unsent;

  constructor(overload: Overload, on: UnsentOn, bounds: UnsentBounds = UNSENT_BOUNDS) {
    this.#overload = overload;
    this.#unsent = new Unsent(on, bounds);
  }

  /** Of answers that no client has taken yet. */
  get unsentBytes(): number {
    return this.#unsent.bytes;
  }

  close(): void {
    this.#unsent.close();
  }

  /** False if the socket asks for too much: it is closed, and nobody answers. */
  enter(request: IncomingMessage, response: ServerResponse): boolean {
    if (!enterSocket(request, response)) return false;
    // A body has to come first; its parser counts the request then.
    if (!hasBody(request)) this.#overload.enter(request);
    return true;
  }

  /** The handler has answered; `payload` goes out when everything before it on this socket has. */
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
    // The head of the queue has the socket, whose own buffer stops the reading.
    if (goesOut) return;
    (response as Answer)[QUEUED] = bytes;
    state.queuedBytes += bytes;
    if (state.queuedBytes > QUEUED_BYTES_MAX) cut(socket, state);
  }
}

const keptBodies = new WeakSet<Buffer>();

/** Says that this body is sent to everybody and never let go: an answer that waits with it takes no memory for it. */
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
  state.queuedBytes -= (this as Answer)[QUEUED] ?? 0;
}

/** False if the socket asks for too much: it is closed, and nobody answers. Alone, for what no hook sees. */
export function enterSocket(request: IncomingMessage, response: ServerResponse): boolean {
  if (!mayEnter(request)) return false;
  response.on('close', leave);
  return true;
}

/** Counts the request on its socket. HTTP/2 multiplexes, and bounds its streams itself. */
function mayEnter(request: IncomingMessage): boolean {
  if (request.httpVersionMajor > 1) return true;
  const state = stateOf(request.socket);
  // What came in the same packet as the request that went too far.
  if (state.cut) return false;
  if (state.streaming || state.outstanding >= OUTSTANDING_MAX) {
    cut(request.socket, state);
    return false;
  }
  state.outstanding++;
  return true;
}

/** From the request for a stream to its end, nothing may come behind it. */
export function streamsOnly(request: IncomingMessage, response: ServerResponse): void {
  if (request.httpVersionMajor > 1) return;
  const state = stateOf(request.socket);
  state.streaming = true;
  response.once('close', () => {
    state.streaming = false;
  });
}

/** Requests that have not been answered and sent. */
export function outstandingOf(socket: Socket): number {
  return (socket as Tracked)[STATE]?.outstanding ?? 0;
}

/** True while nothing of an answer stands on the wire before what would be written now. */
export function mayBeAnswered(socket: Socket): boolean {
  const state = (socket as Tracked)[STATE];
  if (!socket.writable) return false;
  if (state === undefined) return true;
  const { refused, streaming, cut, outstanding } = state;
  if (cut || streaming || outstanding > 1 || (refused !== null && !refused.complete)) return false;
  // Node's name for the response that has the socket; its own default handler asks the same.
  const { _httpMessage: current } = socket as Socket & { _httpMessage?: ServerResponse | null };
  return !current?.headersSent;
}

function cut(socket: Socket, state: SocketState): void {
  state.cut = true;
  socket.destroy();
}

/**
 * A request was answered before its body came. Closed at once, the sender would see a reset and not the answer, and left
 * open it could send for ever: a little is read and thrown away, and whoever sends or announces more is cut off.
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
