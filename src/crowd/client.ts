import { Agent as HttpAgent, type IncomingMessage, request as requestHttp } from 'node:http';
import { Agent as HttpsAgent, request as requestHttps } from 'node:https';
import { messageOf } from '../base/errors.ts';

/** An answer, or why there is none. A crowd expects broken connections, so they are values and not errors. */
export type Reply =
  | { ok: true; status: number; headers: IncomingMessage['headers']; body: unknown }
  | { ok: false; reason: string };

export interface CallOptions {
  bearer?: string;
  key?: string;
  body?: unknown;
}

/** A client of one server, or a door to whichever of several servers answers. */
export interface Caller {
  call(method: string, path: string, options?: CallOptions): Promise<Reply>;
}

/** A server that is silent for this long counts as gone: a buyer would have closed the page. */
const ANSWER_MS_MAX = 30_000;

/** HTTP with keep-alive over a bounded number of connections. */
export class Client implements Caller {
  readonly url: string;
  readonly #base: URL;
  readonly #prefix: string;
  readonly #agent: HttpAgent | HttpsAgent;
  readonly #request: typeof requestHttp;

  constructor(base: URL, connections: number) {
    this.url = base.href;
    this.#base = base;
    this.#prefix = base.pathname.replace(/\/+$/, '');
    const https = base.protocol === 'https:';
    this.#agent = new (https ? HttpsAgent : HttpAgent)({ keepAlive: true, maxSockets: connections });
    this.#request = https ? (requestHttps as typeof requestHttp) : requestHttp;
  }

  call(method: string, path: string, { bearer, key, body }: CallOptions = {}): Promise<Reply> {
    const payload = body === undefined ? null : JSON.stringify(body);
    const headers: Record<string, string | number> = { accept: 'application/json' };
    if (bearer !== undefined) headers.authorization = `Bearer ${bearer}`;
    if (key !== undefined) headers['idempotency-key'] = key;
    if (payload !== null) {
      headers['content-type'] = 'application/json';
      headers['content-length'] = Buffer.byteLength(payload);
    }
    return new Promise((resolve) => {
      const fail = (error: unknown): void => resolve({ ok: false, reason: reasonOf(error) });
      const request = this.#request(
        {
          protocol: this.#base.protocol,
          // Node expects an IPv6 address without brackets.
          hostname: this.#base.hostname.replace(/^\[|\]$/g, ''),
          port: this.#base.port,
          method,
          path: this.#prefix + path,
          headers,
          agent: this.#agent,
          timeout: ANSWER_MS_MAX,
        },
        (response) => {
          let text = '';
          response.setEncoding('utf8');
          response.on('data', (chunk: string) => {
            text += chunk;
          });
          response.on('error', fail);
          response.on('end', () =>
            // Cut off in the middle: the status arrived, the order did not.
            response.complete
              ? resolve({ ok: true, status: response.statusCode!, headers: response.headers, body: parse(text) })
              : fail(new Error('the answer was cut off')),
          );
        },
      );
      request.on('timeout', () => request.destroy(new Error(`no answer within ${ANSWER_MS_MAX / 1000} s`)));
      request.on('error', fail);
      request.end(payload ?? undefined);
    });
  }

  /** Closes all connections. */
  close(): void {
    this.#agent.destroy();
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null;
  }
}

function reasonOf(error: unknown): string {
  return (error as { code?: string }).code ?? messageOf(error);
}

/** The problem's code, if the body is a problem. */
export function codeOf(body: unknown): string | null {
  const code = (body as { code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : null;
}

/** Why nobody answered, as a message. */
export function unansweredWords(url: string, reason: string): string {
  if (reason === 'ECONNREFUSED')
    return `no server answers at ${url} (ECONNREFUSED): check that it is running, and the port`;
  return `cannot reach ${url} (${reason}): check that the server is running there`;
}

/** What the server answered, as a message. */
export function detailOf(reply: Reply): string {
  if (!reply.ok) return reply.reason;
  const detail = (reply.body as { detail?: unknown } | null)?.detail;
  return typeof detail === 'string' ? `${reply.status}, ${detail}` : String(reply.status);
}

const RETRY_AFTER_SECONDS_MAX = 30;

export function retryAfterMs(reply: Reply & { ok: true }): number {
  const seconds = Number(reply.headers['retry-after']);
  return (seconds > 0 ? Math.min(seconds, RETRY_AFTER_SECONDS_MAX) : 1) * 1000;
}
