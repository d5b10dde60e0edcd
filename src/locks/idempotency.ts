/**
 * A request that is sent twice is carried out once: the second gets the first one's answer. On `once`, for Fastify
 * (idempotency-fastify.ts) and for Express, connect and plain node:http (idempotency-express.ts).
 *
 *   The key        comes from the client (`Idempotency-Key`, or a request id header of its own making): drawn before the first
 *                  try and sent with every try. One that the server draws differs each time and protects nothing. Without
 *                  the header a request passes as if this were not here, or gets 400 (`required`).
 *   Its scope      is the method, the path and the caller. The default caller is the Authorization header: set `caller` to
 *                  your user's id if its token may be renewed between two tries, or if people sign in by cookie (without a
 *                  caller two people who send the same key get the same answer). What else was sent (query and body) must
 *                  be the same as the first time: 422 otherwise. The order of a JSON body's members does not matter.
 *   Meanwhile      repeats wait for the first answer for `wait`, then get 409 with Retry-After.
 *   Afterwards     for `keep` they get the stored answer, with `Idempotent-Replayed: true`. It is stored before it is sent.
 *   Kept           are answers that decide: below 500, no 401, 403, 407, 408, 425, 429, and none with Retry-After. The others
 *                  ask for another try, and get one: a waiting repeat then runs itself.
 *   Not kept       is the body of an answer that is streamed (Fastify) or larger than `answerBytesMax`. The request was
 *                  carried out, though, so that a repeat gets 409 that says so, and is not run again.
 *   A client       that leaves does not end the first try: its answer is kept for when it comes back.
 *   An outage      of the locks' store: 503 with Retry-After, or with `onOutage: 'pass'` the request goes on unprotected.
 *
 * Once means what it means for `once`: if the process dies, or loses the lock (`atMost`, a store that forgets), before the
 * answer is stored, a repeat runs again. What must not happen twice even then needs a unique key in the database as well.
 */

import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders, OutgoingHttpHeaders } from 'node:http';
import { RetryableError, TerminalError } from '../base/errors.ts';
import { bodyFingerprint } from '../base/idempotency.ts';
import type { Logger } from '../base/logger.ts';
import { checkedCount, checkedSpan, refuseUnknown } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import { HeldError, TimeoutError, UnavailableError } from './client/errors.ts';
import { Locks } from './locks.ts';
import { type OnceOptions, once } from './once.ts';

export interface IdempotencyOptions<Request> {
  /** The request header with the client's key. Default `idempotency-key`. */
  header?: string;
  /** Answer 400 to a request without it. */
  required?: boolean;
  /** Methods that are protected. Default POST and PATCH: the others may be repeated anyway. */
  methods?: readonly string[];
  /** Who asks: keys of different callers never meet. */
  caller?: (request: Request) => string | undefined;
  /** What a repeat must have in common with the first beyond its path. Default: the query and the parsed body. */
  fingerprint?: (request: Request) => string | Buffer;
  /** How long a repeat waits for the first answer, in milliseconds. Default 10 000. */
  wait?: number;
  /** How long an answer is kept. Default a day. */
  keep?: number;
  /** How long a handler may take before a repeat may run as well. Default 5 minutes. */
  atMost?: number;
  /** Larger bodies are not kept. Default 256 KiB. */
  answerBytesMax?: number;
  /** Headers of the answer that are kept beside Content-Type, -Encoding, -Language and -Disposition, Location and ETag. */
  headers?: readonly string[];
  /** Whether an answer is kept, by its status. */
  keeps?: (status: number) => boolean;
  onOutage?: 'refuse' | 'pass';
}

/** What an adapter knows of a request. */
export interface Asked<Request> {
  readonly request: Request;
  readonly method: string;
  /** With its query. */
  readonly url: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: unknown;
}

/** What an adapter knows of an answer. */
export interface Answer {
  readonly status: number;
  readonly headers: OutgoingHttpHeaders;
  /** Null: it could not be seen, or was too large. */
  readonly body: Buffer | string | null;
}

/** What a repeat must have in common with the first request. */
interface Same {
  /** By the order of the body's members, too: all that processes of an earlier version store, and all that they compare. */
  readonly asked: string;
  /** Whatever the order of the body's members. */
  readonly says?: string;
}

/** What is stored. */
interface Kept extends Same {
  readonly status: number;
  readonly headers: Record<string, string | string[]>;
  readonly body: string | null;
  readonly base64?: true;
}

/** To be sent as it is. */
export interface Reply {
  readonly status: number;
  readonly headers: Record<string, string | string[]>;
  readonly body: Buffer;
}

/** `pass`: not protected. `run`: carry it out and tell the run its answer. `reply`: send this answer. */
export type Opening =
  | { readonly go: 'pass' }
  | { readonly go: 'run'; readonly run: Run }
  | { readonly go: 'reply'; readonly reply: Reply };

/** The first try of a request, which the repeats wait for. */
export interface Run {
  readonly answerBytesMax: number;
  /** Stores the answer, or lets the next one try. To be awaited before the answer is sent. Never rejects; once only. */
  end(answer: Answer): Promise<void>;
}

const OPTIONS: ReadonlySet<string> = new Set([
  'header',
  'required',
  'methods',
  'caller',
  'fingerprint',
  'wait',
  'keep',
  'atMost',
  'answerBytesMax',
  'headers',
  'keeps',
  'onOutage',
] satisfies (keyof IdempotencyOptions<unknown>)[]);

const PASS: Opening = { go: 'pass' };
const KEY_CHARS_MAX = 255;
/** `once` keeps a million characters; a third more than the bytes for base64, and the rest for headers. */
const ANSWER_BYTES_MAX = 700_000;
const RESULT_CHARS_MAX = 950_000;
const HEADERS = [
  'content-type',
  'content-encoding',
  'content-language',
  'content-disposition',
  'location',
  'content-location',
  'etag',
];
/** Refused before the work began, or asked to come again. */
const UNDECIDED = new Set([401, 403, 407, 408, 425, 429]);

const PROBLEMS = {
  idempotency_key_missing: [400, 'A key of the client is needed'],
  idempotency_key_invalid: [400, 'The key cannot be used'],
  idempotency_in_flight: [409, 'The first request with this key is still running'],
  idempotency_answer_not_kept: [409, 'The request was carried out; its answer could not be kept'],
  idempotency_key_reused: [422, 'The key belongs to another request'],
  unavailable: [503, 'Repeated requests cannot be recognised now; try again'],
} as const;

/** The answer says nothing final: the next one may try. */
class NotKept extends Error {}

export class Idempotency<Request> {
  readonly #client: LockClient;
  readonly #log: Logger;
  readonly #options: IdempotencyOptions<Request>;
  readonly #header: string;
  readonly #methods: ReadonlySet<string>;
  readonly #headers: ReadonlySet<string>;
  readonly #once: OnceOptions;
  readonly #answerBytesMax: number;

  constructor(locks: Locks, options: IdempotencyOptions<Request> = {}) {
    if (!(locks instanceof Locks)) throw new TerminalError('invalid_argument', 'locks must come from createLocks');
    refuseUnknown(options, OPTIONS, 'the idempotency middleware');
    this.#client = Locks.clientOf(locks);
    this.#log = this.#client.runtime.log;
    this.#options = options;
    this.#header = (options.header ?? 'idempotency-key').toLowerCase();
    this.#methods = new Set((options.methods ?? ['POST', 'PATCH']).map((each) => each.toUpperCase()));
    this.#headers = new Set([...HEADERS, ...(options.headers ?? []).map((each) => each.toLowerCase())]);
    this.#once = {
      wait: checkedSpan(options.wait ?? 10_000, 'wait', 0),
      keep: checkedSpan(options.keep ?? 86_400_000, 'keep', 1000),
      maxHold: checkedSpan(options.atMost ?? 300_000, 'atMost', 100),
      label: 'idempotency',
    };
    this.#answerBytesMax = checkedCount(options.answerBytesMax ?? 256 * 1024, 'answerBytesMax', 0);
    if (this.#answerBytesMax > ANSWER_BYTES_MAX) {
      throw new TerminalError('invalid_argument', `answerBytesMax must be at most ${ANSWER_BYTES_MAX}`);
    }
  }

  /** Decides what becomes of a request; `gone` aborts when its client has left. Rejects only if an option of the caller's does. */
  async open(asked: Asked<Request>, gone: AbortSignal): Promise<Opening> {
    if (!this.#methods.has(asked.method)) return PASS;
    const key = asked.headers[this.#header];
    if (key === undefined || key === '') {
      if (!this.#options.required) return PASS;
      return problem('idempotency_key_missing', `send a key of your own in ${this.#header}`);
    }
    if (typeof key !== 'string' || key.length > KEY_CHARS_MAX) {
      return problem(
        'idempotency_key_invalid',
        `${this.#header} must be one key of at most ${KEY_CHARS_MAX} characters`,
      );
    }
    const queryAt = asked.url.indexOf('?');
    const path = queryAt < 0 ? asked.url : asked.url.slice(0, queryAt);
    const caller = this.#options.caller ? this.#options.caller(asked.request) : asked.headers.authorization;
    const name = `idempotency:${digest([asked.method, path, caller ?? '', key])}`;
    const same = this.#same(asked, queryAt < 0 ? '' : asked.url.slice(queryAt));
    if (same === null) {
      return problem('idempotency_key_invalid', 'the body cannot be compared with that of a repeat');
    }
    return await this.#open(name, same, gone);
  }

  #same(asked: Asked<Request>, query: string): Same | null {
    if (this.#options.fingerprint) return { asked: digest([this.#options.fingerprint(asked.request)]) };
    const { body } = asked;
    if (body === undefined || body === null) return { asked: digest([query]) };
    if (typeof body === 'string' || Buffer.isBuffer(body)) return { asked: digest([query, body]) };
    try {
      return { asked: digest([query, JSON.stringify(body)]), says: digest([query, bodyFingerprint(body)]) };
    } catch {
      // Nested too deep, or not JSON: a stream, a file. Those need a `fingerprint`.
      return null;
    }
  }

  #open(name: string, same: Same, gone: AbortSignal): Promise<Opening> {
    return new Promise((resolve) => {
      const { promise: answer, resolve: keep, reject: drop } = Promise.withResolvers<Kept>();
      const first = (): Promise<Kept> => {
        const run: Run = {
          answerBytesMax: this.#answerBytesMax,
          end: async (given) => {
            if (this.#decides(given)) keep(this.#kept(same, given));
            else drop(new NotKept());
            await ended;
          },
        };
        resolve({ go: 'run', run });
        return answer;
      };
      const ended = once<Kept>(this.#client, name, first, { ...this.#once, signal: gone }).then(
        // What this very call ran is resolved already.
        ({ value }) => resolve(replay(value, same)),
        (error: unknown) => {
          resolve(this.#refused(error));
          // Before the run it is answered; after it, only a repeat will notice.
          const expected = error instanceof NotKept || error instanceof TimeoutError || gone.aborted;
          if (!expected) this.#log.warn({ err: error }, 'an idempotent request: its lock or its answer was lost');
        },
      );
    });
  }

  #decides({ status, headers }: Answer): boolean {
    if (this.#options.keeps) return this.#options.keeps(status);
    return status < 500 && !UNDECIDED.has(status) && headers['retry-after'] === undefined;
  }

  #kept(same: Same, { status, headers, body }: Answer): Kept {
    const some: Kept['headers'] = {};
    for (const [name, value] of Object.entries(headers)) {
      if (value === undefined || !this.#headers.has(name.toLowerCase())) continue;
      some[name.toLowerCase()] = Array.isArray(value) ? value : String(value);
    }
    const bytes = typeof body === 'string' ? Buffer.from(body) : body;
    if (bytes === null || bytes.length > this.#answerBytesMax) return { ...same, status, headers: {}, body: null };
    if (isUtf8(bytes) && isShortAsText(bytes)) return { ...same, status, headers: some, body: bytes.toString() };
    return { ...same, status, headers: some, body: bytes.toString('base64'), base64: true };
  }

  #refused(error: unknown): Opening {
    if (error instanceof TimeoutError || error instanceof HeldError) {
      return problem('idempotency_in_flight', 'the answer to the first request is not there yet', 1);
    }
    // Only if the store cannot be reached: a repeat whose client has left must not run beside the first.
    if (error instanceof UnavailableError && this.#options.onOutage === 'pass') return PASS;
    const seconds = error instanceof RetryableError ? error.retryAfterSeconds : 1;
    return problem('unavailable', 'the store of the locks cannot be reached', seconds);
  }
}

/** As JSON one control character takes six. */
function isShortAsText(bytes: Buffer): boolean {
  return bytes.length * 6 < RESULT_CHARS_MAX || JSON.stringify(bytes.toString()).length < RESULT_CHARS_MAX;
}

function replay(kept: Kept, same: Same): Opening {
  const isSame = kept.asked === same.asked || (same.says !== undefined && kept.says === same.says);
  if (!isSame) {
    return problem('idempotency_key_reused', 'this key was sent before with another query or body');
  }
  if (kept.body === null) {
    return problem('idempotency_answer_not_kept', `its answer had status ${kept.status} and was streamed or too large`);
  }
  const headers = { ...kept.headers, 'idempotent-replayed': 'true' };
  return {
    go: 'reply',
    reply: { status: kept.status, headers, body: Buffer.from(kept.body, kept.base64 ? 'base64' : 'utf8') },
  };
}

/** RFC 9457. */
function problem(code: keyof typeof PROBLEMS, detail: string, retryAfterSeconds?: number): Opening {
  const [status, title] = PROBLEMS[code];
  const body = JSON.stringify({ type: `urn:doorbuster:problem:${code}`, title, status, detail, code });
  const headers: Reply['headers'] = { 'content-type': 'application/problem+json; charset=utf-8' };
  if (retryAfterSeconds !== undefined) headers['retry-after'] = String(retryAfterSeconds);
  return { go: 'reply', reply: { status, headers, body: Buffer.from(body) } };
}

/** Each part with its length before it: no two lists give the same. */
function digest(parts: readonly (string | Buffer)[]): string {
  const hash = createHash('sha256');
  for (const part of parts) {
    const bytes = typeof part === 'string' ? Buffer.from(part) : part;
    hash.update(`${bytes.length}:`).update(bytes);
  }
  return hash.digest('base64url');
}
