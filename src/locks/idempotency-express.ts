import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { Idempotency, type IdempotencyOptions, type Run } from './idempotency.ts';
import type { Locks } from './locks.ts';

type Next = (error?: unknown) => void;

/** What Express and body parsers add. */
interface Parsed {
  originalUrl?: string;
  body?: unknown;
}

/**
 * Anti-double-submit for Express, connect and plain node:http (see idempotency.ts):
 *
 *     app.use(express.json());
 *     app.post('/orders', expressIdempotency(locks, { caller: (request) => request.user.id }), createOrder);
 *
 * Behind the body parser (a body that is not parsed is not compared) and behind compression and sessions, so that what is
 * kept is what the handler said. `end` is held back until the answer is stored, everything else passes at once.
 */
export function expressIdempotency<Request extends IncomingMessage = IncomingMessage>(
  locks: Locks,
  options: IdempotencyOptions<Request> = {},
): (request: Request, response: ServerResponse, next: Next) => void {
  const idempotency = new Idempotency<Request>(locks, options);

  async function handle(request: Request, response: ServerResponse): Promise<boolean> {
    const { originalUrl, body } = request as Parsed;
    const { method = '', headers, url = '' } = request;
    const leaving = new AbortController();
    const left = (): void => leaving.abort();
    response.once('close', left);
    const opening = await idempotency.open({ request, method, url: originalUrl ?? url, headers, body }, leaving.signal);
    response.off('close', left);
    if (opening.go === 'run') watch(response, opening.run);
    if (opening.go !== 'reply') return true;
    const { reply } = opening;
    response.statusCode = reply.status;
    for (const [name, value] of Object.entries(reply.headers)) response.setHeader(name, value);
    response.end(reply.body);
    return false;
  }

  return (request, response, next) => {
    handle(request, response).then((goesOn) => {
      if (goesOn) next();
    }, next);
  };
}

/** Looks at what is written, and holds the end back until it is stored. */
function watch(response: ServerResponse, run: Run): void {
  const { write, end, writeHead } = response;
  const chunks: Buffer[] = [];
  let bytes = 0;
  let given: OutgoingHttpHeaders = {};
  let ending: Promise<void> | null = null;

  const tell = (seen: boolean): Promise<void> => {
    const headers = { ...response.getHeaders(), ...given };
    return run.end({ status: response.statusCode, headers, body: seen ? Buffer.concat(chunks) : null });
  };
  const fail = (error: Error): void => void response.destroy(error);
  const see = (chunk: unknown, encoding: unknown): void => {
    if (typeof chunk !== 'string' && !(chunk instanceof Uint8Array)) return;
    bytes += typeof chunk === 'string' ? Buffer.byteLength(chunk, encodingOf(encoding)) : chunk.length;
    if (bytes <= run.answerBytesMax) {
      chunks.push(typeof chunk === 'string' ? Buffer.from(chunk, encodingOf(encoding)) : Buffer.from(chunk));
      return;
    }
    // A repeat that waits for the answer need not wait for the rest.
    chunks.length = 0;
    void tell(false);
  };

  response.writeHead = function (this: ServerResponse, ...args: unknown[]) {
    // Node does not keep headers that are given here where getHeaders finds them.
    given = { ...given, ...headersIn(args) };
    return writeHead.apply(response, args as never);
  } as typeof writeHead;

  response.write = function (this: ServerResponse, ...args: unknown[]) {
    if (ending) {
      // Too late: Node itself reports it, once the end has been sent.
      ending.then(() => write.apply(response, args as never)).catch(fail);
      return false;
    }
    see(args[0], args[1]);
    if (isEndless(response, given)) void tell(false);
    return write.apply(response, args as never);
  } as typeof write;

  response.end = function (this: ServerResponse, ...args: unknown[]) {
    if (ending) {
      ending.then(() => end.apply(response, args as never)).catch(fail);
      return response;
    }
    // What Node would refuse must be refused now, to the code that sent it.
    if (!isChunk(args[0])) return end.apply(response, args as never);
    see(args[0], args[1]);
    // To the handler the answer counts as sent: code that asks must not send a second one.
    const sent = { configurable: true, get: () => true };
    Object.defineProperties(response, { headersSent: sent, writableEnded: sent });
    ending = tell(bytes <= run.answerBytesMax).then(() => {
      const plain = response as { headersSent?: boolean; writableEnded?: boolean };
      delete plain.headersSent;
      delete plain.writableEnded;
      end.apply(response, args as never);
    });
    ending.catch(fail);
    return response;
  } as typeof end;
}

function isChunk(chunk: unknown): boolean {
  return chunk == null || ['string', 'function'].includes(typeof chunk) || chunk instanceof Uint8Array;
}

/** Server-sent events go on until somebody leaves. */
function isEndless(response: ServerResponse, given: OutgoingHttpHeaders): boolean {
  return /^text\/event-stream\b/.test(String(given['content-type'] ?? response.getHeader('content-type') ?? ''));
}

function encodingOf(encoding: unknown): BufferEncoding {
  return typeof encoding === 'string' && Buffer.isEncoding(encoding) ? encoding : 'utf8';
}

/** writeHead(status, message?, headers?), with headers as an object or as a list of names and values. */
function headersIn(args: readonly unknown[]): OutgoingHttpHeaders {
  const last = args.at(-1);
  if (typeof last !== 'object' || last === null) return {};
  const pairs = Array.isArray(last)
    ? Array.isArray(last[0])
      ? (last as [string, string][])
      : last.flatMap((name, at) => (at % 2 === 0 ? [[name, last[at + 1]] as [string, string]] : []))
    : Object.entries(last as OutgoingHttpHeaders);
  return Object.fromEntries(pairs.map(([name, value]) => [name.toLowerCase(), value]));
}
