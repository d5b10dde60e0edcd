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
  /** A client that takes nothing of its answer for this long will not read it. */
  unreadMs?: number;
}

/** With Node's own 30 s a bound of 15 s would end a request after up to 45. */
export const CHECK_EVERY_MS = 1_000;
/** Longer than the 60 s after which usual load balancers drop an idle connection: else they would use one we just closed. */
const IDLE_MS = 72_000;
const UNREAD_MS = 30_000;
/** Connections that make room when all are taken are looked for this often at most. */
const ROOM_EVERY_MS = 100;

/**
 * The bounds of connections: how many there are, in all and of one address; how long a request may take to arrive, an
 * answer may stay unread, and a connection may idle. `proxied` says that connections come from proxies, each of which
 * stands for many clients.
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
    // A handler that is still at work, or a stream with nothing to tell, is not the client's fault.
    if (outstandingOf(socket) > 0 && socket.writableLength === 0) return;
    socket.destroy();
  });
  // Without a listener Node answers by itself, and no hook of ours sees the request.
  server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    if (enterSocket(request, response)) response.writeHead(417, { 'content-length': 0, connection: 'close' }).end();
  });
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => answerClientError(error, socket));

  let roomAtMs = Number.NEGATIVE_INFINITY;
  server.on('drop', () => {
    log.warn({ max: bounds.connectionsMax }, 'all connections are taken; new ones are closed');
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
      log.warn({ address }, 'too many connections of one address; new ones are closed');
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

/** Node's own answers to what is no request, in our words. No request, so no route, hook or log line. */
function answerClientError(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !mayBeAnswered(socket)) return void socket.destroy();
  const { line, body } = CLIENT_ERRORS[error.code as keyof typeof CLIENT_ERRORS] ?? NOT_HTTP;
  socket.write(
    `HTTP/1.1 ${line}\r\ncontent-type: application/problem+json\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
  // Ended only, the connection would stay open until the other side closes it.
  socket.destroySoon();
}
