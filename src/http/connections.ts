import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Runtime } from '../base/runtime.ts';
import { addressKey, isLocalAddress } from './address.ts';
import { problem } from './problem.ts';
import { enterSocket, mayBeAnswered, outstandingOf } from './sockets.ts';

export interface ConnectionBounds {
  connectionsMax: number;
  connectionsPerAddressMax: number;
  requestWithinMs: number;
  /** A client that reads nothing of its answer for this long is disconnected. */
  unreadMs?: number;
}

/** How often Node checks request timeouts. With its default of 30 s, a limit of 15 s would end a request after up to 45 s. */
export const CHECK_EVERY_MS = 1_000;
/** Longer than the 60 s idle timeout of most load balancers, which would otherwise use a connection that we just closed. */
const IDLE_MS = 72_000;
const UNREAD_MS = 30_000;
/** When all connections are in use, idle ones are closed at most this often. */
const ROOM_EVERY_MS = 100;

/**
 * Bounds connections: how many there are in all and per address, how long a request may take to arrive, how long an answer
 * may stay unread and how long a connection may idle. `proxied`: connections come from proxies that each serve many clients,
 * so that the bound per address does not apply.
 */
export function boundConnections(
  server: Server,
  bounds: ConnectionBounds,
  { clock, log }: Pick<Runtime, 'clock' | 'log'>,
  proxied: boolean,
): void {
  server.requestTimeout = bounds.requestWithinMs;
  server.headersTimeout = bounds.requestWithinMs;
  server.keepAliveTimeout = IDLE_MS;
  server.maxConnections = bounds.connectionsMax;
  server.setTimeout(bounds.unreadMs ?? UNREAD_MS);
  server.on('timeout', (socket: Socket) => {
    // Not the client's fault: a handler is still running, or an event stream has nothing to send.
    if (outstandingOf(socket) > 0 && socket.writableLength === 0) return;
    socket.destroy();
  });
  // Without a listener Node answers by itself, and none of our hooks sees the request.
  server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    if (enterSocket(request, response)) response.writeHead(417, { 'content-length': 0, connection: 'close' }).end();
  });
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => answerClientError(error, socket));

  let roomAtMs = Number.NEGATIVE_INFINITY;
  server.on('drop', () => {
    log.warn({ max: bounds.connectionsMax }, 'CONNECTIONS_MAX is reached; new connections are closed');
    if (clock.monotonic() - roomAtMs < ROOM_EVERY_MS) return;
    roomAtMs = clock.monotonic();
    server.closeIdleConnections();
  });

  const ofAddress = new Map<string, number>();
  server.on('connection', (socket: Socket) => {
    const { remoteAddress } = socket;
    if (proxied || remoteAddress === undefined || isLocalAddress(remoteAddress)) return;
    const address = addressKey(remoteAddress);
    const open = (ofAddress.get(address) ?? 0) + 1;
    if (open > bounds.connectionsPerAddressMax) {
      log.warn({ address }, 'too many connections from one address; new ones are closed');
      socket.destroy();
      return;
    }
    ofAddress.set(address, open);
    socket.once('close', () => {
      const left = ofAddress.get(address)! - 1;
      if (left === 0) ofAddress.delete(address);
      else ofAddress.set(address, left);
    });
  });
}

const CLIENT_ERRORS = {
  ERR_HTTP_REQUEST_TIMEOUT: { line: '408 Request Timeout', body: problem('request_timeout') },
  HPE_HEADER_OVERFLOW: { line: '431 Request Header Fields Too Large', body: problem('headers_too_large') },
  HPE_CHUNK_EXTENSIONS_OVERFLOW: { line: '413 Payload Too Large', body: problem('body_too_large') },
};
const NOT_HTTP = { line: '400 Bad Request', body: problem('malformed_json', 'this is not HTTP') };

/** Answers bytes that are not a valid request, in place of Node. No route or hook sees them, and nothing is logged. */
function answerClientError(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !mayBeAnswered(socket)) return void socket.destroy();
  const { line, body } = CLIENT_ERRORS[error.code as keyof typeof CLIENT_ERRORS] ?? NOT_HTTP;
  socket.write(
    `HTTP/1.1 ${line}\r\ncontent-type: application/problem+json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
  // With `end` alone, the connection would stay open until the other side closes it.
  socket.destroySoon();
}
