import { connect, type Socket } from 'node:net';
import { ADMIN_KEY, token } from './server.ts';

/**
 * A small HTTP/1.1 client for crowds: keep-alive over a fixed number of connections, one request at a time on each.
 * It uses sockets directly, because a test must know what node:http's agent hides: whether the bytes of a request had been
 * sent when its connection ended. It never retries by itself.
 */
export interface CrowdRequest {
  method?: 'GET' | 'POST' | 'PATCH' | 'PUT' | 'DELETE';
  path: string;
  buyer?: string;
  admin?: boolean;
  key?: string | undefined;
  body?: unknown;
}

export interface CrowdReply {
  status: number;
  // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever came
  body: any;
  replayed: boolean;
  retryAfter: string | null;
  contentType: string;
  /** By performance.now(): just before the bytes were sent, and when the whole answer had arrived. */
  sentAtMs: number;
  answeredAtMs: number;
}

/** The connection ended before the answer was complete: the outcome of the request is unknown. */
export class ConnectionLost extends Error {
  /** False: no byte of the request was ever written, so it cannot have had an effect. */
  readonly sent: boolean;
  /** True: the connection had served another request before, and may have been closed while idle. */
  readonly reused: boolean;
  /** True: a part of the answer had arrived. */
  readonly halfAnswered: boolean;

  constructor(message: string, at: { sent: boolean; reused: boolean; halfAnswered: boolean }) {
    super(message);
    this.sent = at.sent;
    this.reused = at.reused;
    this.halfAnswered = at.halfAnswered;
  }
}

interface Job {
  text: string;
  sentAtMs: number;
  resolve: (reply: CrowdReply) => void;
  reject: (error: Error) => void;
}

const tokens = new Map<string, string>();

/** Caches tokens, because signing costs more than sending. */
function bearerOf(buyer: string): string {
  let bearer = tokens.get(buyer);
  if (bearer === undefined) {
    bearer = token(buyer);
    tokens.set(buyer, bearer);
  }
  return bearer;
}

export class CrowdClient {
  readonly #host: string;
  readonly #port: number;
  readonly #connectionsMax: number;
  readonly #localAddress: string | undefined;
  readonly #open = new Set<Connection>();
  readonly #idle: Connection[] = [];
  readonly #waiting: Job[] = [];
  #closed = false;

  /** `localAddress`: the source address of its connections. */
  constructor(url: string, connections = 64, localAddress?: string) {
    const { hostname, port } = new URL(url);
    this.#host = hostname;
    this.#port = Number(port);
    this.#connectionsMax = connections;
    this.#localAddress = localAddress;
  }

  send(request: CrowdRequest): Promise<CrowdReply> {
    const bearer = request.buyer !== undefined ? bearerOf(request.buyer) : request.admin ? ADMIN_KEY : null;
    const body = request.body === undefined ? '' : JSON.stringify(request.body);
    const text = [
      `${request.method ?? 'POST'} ${request.path} HTTP/1.1`,
      `host: ${this.#host}:${this.#port}`,
      ...(bearer === null ? [] : [`authorization: Bearer ${bearer}`]),
      ...(request.key === undefined ? [] : [`idempotency-key: ${request.key}`]),
      ...(body === '' ? [] : ['content-type: application/json', `content-length: ${Buffer.byteLength(body)}`]),
      '',
      body,
    ].join('\r\n');
    return new Promise((resolve, reject) => {
      if (this.#closed) {
        reject(new ConnectionLost('the client is closed', { sent: false, reused: false, halfAnswered: false }));
        return;
      }
      const job = { text, sentAtMs: 0, resolve, reject };
      const idle = this.#idle.pop();
      if (idle) idle.take(job);
      else if (this.#open.size < this.#connectionsMax) this.#connect(job);
      else this.#waiting.push(job);
    });
  }

  /** Closes all connections; unanswered requests end as ConnectionLost. */
  close(): void {
    this.#closed = true;
    for (const connection of [...this.#open]) connection.cut();
    for (const { reject } of this.#waiting.splice(0)) {
      reject(new ConnectionLost('the client was closed', { sent: false, reused: false, halfAnswered: false }));
    }
  }

  #connect(job: Job): void {
    const from = this.#localAddress === undefined ? {} : { localAddress: this.#localAddress };
    const connection = new Connection(connect({ port: this.#port, host: this.#host, ...from }), {
      idle: () => {
        const next = this.#waiting.shift();
        if (next) connection.take(next);
        else this.#idle.push(connection);
      },
      ended: () => {
        this.#open.delete(connection);
        const at = this.#idle.indexOf(connection);
        if (at >= 0) this.#idle.splice(at, 1);
        const next = this.#waiting.shift();
        if (next) this.#connect(next);
      },
    });
    this.#open.add(connection);
    connection.take(job);
  }
}

const HEAD_END = Buffer.from('\r\n\r\n');

class Connection {
  readonly #socket: Socket;
  readonly #on: { idle: () => void; ended: () => void };
  #job: Job | null = null;
  #received: Buffer = Buffer.alloc(0);
  #answered = 0;
  #connected = false;
  #error = 'closed by the server';

  constructor(socket: Socket, on: { idle: () => void; ended: () => void }) {
    this.#socket = socket;
    this.#on = on;
    socket.setNoDelay(true);
    socket.on('connect', () => {
      this.#connected = true;
      this.#write();
    });
    socket.on('data', (chunk: Buffer) => this.#hear(chunk));
    socket.on('error', (error) => {
      this.#error = error.message;
    });
    socket.on('end', () => socket.destroy());
    socket.on('close', () => this.#lost());
  }

  take(job: Job): void {
    this.#job = job;
    if (this.#connected) this.#write();
  }

  cut(): void {
    this.#error = 'cut by the client';
    this.#socket.destroy();
  }

  #write(): void {
    if (this.#job === null) return;
    this.#job.sentAtMs = performance.now();
    this.#socket.write(this.#job.text);
  }

  #hear(chunk: Buffer): void {
    this.#received = this.#received.length === 0 ? chunk : Buffer.concat([this.#received, chunk]);
    const headEnd = this.#received.indexOf(HEAD_END);
    if (headEnd < 0) return;
    const head = this.#received.toString('latin1', 0, headEnd);
    const length = /\r\ncontent-length: (\d+)/i.exec(head)?.[1];
    if (length === undefined) {
      this.#error = `an answer without a length: ${head}`;
      this.#socket.destroy();
      return;
    }
    const end = headEnd + 4 + Number(length);
    if (this.#received.length < end) return;
    const text = this.#received.toString('utf8', headEnd + 4, end);
    this.#received = this.#received.subarray(end);
    const contentType = /\r\ncontent-type: ([^\r]+)/i.exec(head)?.[1] ?? '';
    const job = this.#job!;
    this.#job = null;
    this.#answered++;
    job.resolve({
      status: Number(head.slice(9, 12)),
      body: contentType.includes('json') ? JSON.parse(text) : text,
      replayed: /\r\nidempotent-replayed: true/i.test(head),
      retryAfter: /\r\nretry-after: ([^\r]+)/i.exec(head)?.[1] ?? null,
      contentType,
      sentAtMs: job.sentAtMs,
      answeredAtMs: performance.now(),
    });
    if (/\r\nconnection: close/i.test(head)) this.#socket.destroy();
    else this.#on.idle();
  }

  #lost(): void {
    const job = this.#job;
    this.#job = null;
    this.#on.ended();
    job?.reject(
      new ConnectionLost(this.#error, {
        sent: this.#connected,
        reused: this.#answered > 0,
        halfAnswered: this.#received.length > 0,
      }),
    );
  }
}
