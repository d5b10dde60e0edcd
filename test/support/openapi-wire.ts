import { createHmac } from 'node:crypto';
import { get, type IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import { expect } from 'vitest';
import { type Answer, AUTH_SECRET } from './server.ts';

/** The contract on the wire: members of every error, forged tokens, raw requests, event streams. */

/** For tests that are not about overload: there a late event loop is caused by the busy machine. */
export const CALM = { EVENT_LOOP_DELAY_MAX_MS: '60000' };

export const SECURE_HEADERS = ['x-content-type-options', 'content-security-policy', 'referrer-policy'] as const;

const STACK_TRACE = /\bat .+:\d+:\d+|node:internal|node_modules|\/src\/|Error:/;

/** Expects a problem of the contract: status, code, the five members of problem+json, and no stack trace. */
export function expectProblem(answer: Answer, status: number, code: string): void {
  const got = { status: answer.status, code: answer.body?.code };
  expect(got, JSON.stringify(answer.body)).toEqual({ status, code });
  expect(answer.headers.get('content-type')).toMatch(/^application\/problem\+json(;|$)/);
  const { type, title, detail } = answer.body;
  for (const text of [type, title, detail]) expect(text).toEqual(expect.stringMatching(/./));
  expect(answer.body.status).toBe(status);
  expect(JSON.stringify(answer.body)).not.toMatch(STACK_TRACE);
  if (code === 'invalid_request') {
    expect(answer.body.errors.length).toBeGreaterThan(0);
    for (const fault of answer.body.errors) {
      expect(fault).toEqual({ path: expect.any(String), message: expect.stringMatching(/./) });
    }
  }
}

/** Builds a JWT from any header and payload, including those that a library would refuse to sign. */
export function forge(
  payload: object | string,
  { alg = 'HS256', secret = AUTH_SECRET, hash = 'sha256', signature }: ForgeOptions = {},
): string {
  const encode = (part: object | string): string =>
    Buffer.from(typeof part === 'string' ? part : JSON.stringify(part)).toString('base64url');
  const signed = `${encode({ alg, typ: 'JWT' })}.${encode(payload)}`;
  return `${signed}.${signature ?? createHmac(hash, secret).update(signed).digest('base64url')}`;
}

export interface ForgeOptions {
  alg?: string;
  secret?: string;
  hash?: string;
  signature?: string;
}

/** Sends these bytes and reads one answer, for requests that no HTTP client would send. */
export function sendRaw(url: string, bytes: string | Buffer): Promise<Answer> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname, () => socket.write(bytes));
  return new Promise((resolve, reject) => {
    let received = Buffer.alloc(0);
    const look = (ended: boolean): void => {
      const head = received.indexOf('\r\n\r\n');
      if (head < 0) {
        if (ended) reject(new Error(`no answer: ${received}`));
        return;
      }
      const [statusLine, ...lines] = received.subarray(0, head).toString('latin1').split('\r\n');
      const headers = new Headers();
      for (const line of lines) headers.append(line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1));
      const body = received.subarray(head + 4);
      const length = headers.get('content-length');
      if (!ended && (length === null || body.length < Number(length))) return;
      socket.destroy();
      const text = body.toString();
      const json = (headers.get('content-type') ?? '').includes('json') && text !== '';
      resolve({ status: Number(statusLine!.split(' ')[1]), headers, body: json ? JSON.parse(text) : text });
    };
    socket.on('data', (chunk) => {
      received = Buffer.concat([received, chunk]);
      look(false);
    });
    socket.on('end', () => look(true));
    socket.on('error', reject);
  });
}

export interface StreamEvent {
  event: string;
  id: string;
  // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever came
  data: any;
}

export interface OpenStream {
  status: number;
  headers: Headers;
  /** Everything received so far, in order. */
  events: StreamEvent[];
  comments: string[];
  /** Waits for the first matching event after the one returned last; fails after a while. */
  until(fits: (event: StreamEvent) => boolean, withinMs?: number): Promise<StreamEvent>;
  /** Resolves when the server has ended it. */
  ended: Promise<void>;
  close(): void;
}

/** Reads server-sent events on its own connection. */
export async function openStream(url: string, headers: Record<string, string> = {}): Promise<OpenStream> {
  const request = get(url, { agent: false, headers: { accept: 'text/event-stream', ...headers } });
  const response = await new Promise<IncomingMessage>((resolve, reject) => {
    request.on('response', resolve).on('error', reject);
  });
  const events: StreamEvent[] = [];
  const comments: string[] = [];
  let asked = 0;
  let heard = (): void => {};
  const take = (block: string): void => {
    const event: Partial<StreamEvent> = {};
    for (const line of block.split('\n')) {
      if (line.startsWith(':')) comments.push(line);
      const field = /^(event|id|data): (.*)$/.exec(line);
      if (field) event[field[1] as 'event'] = field[2]!;
    }
    if (event.event !== undefined) events.push({ ...event, data: JSON.parse(event.data) } as StreamEvent);
    heard();
  };
  let text = '';
  response.setEncoding('utf8');
  response.on('data', (chunk: string) => {
    text += chunk;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      take(text.slice(0, end));
      text = text.slice(end + 2);
    }
  });
  response.on('error', () => {});
  const ended = new Promise<void>((resolve) => response.on('close', () => resolve()));
  const until: OpenStream['until'] = (fits, withinMs = 5000) =>
    new Promise((resolve, reject) => {
      const late = setTimeout(
        () => reject(new Error(`no such event; heard ${JSON.stringify(events)} (looked up to ${asked})`)),
        withinMs,
      );
      heard = () => {
        while (asked < events.length) {
          const event = events[asked++]!;
          if (!fits(event)) continue;
          clearTimeout(late);
          heard = () => {};
          resolve(event);
          return;
        }
      };
      heard();
    });
  return {
    status: response.statusCode!,
    headers: new Headers(response.headers as Record<string, string>),
    events,
    comments,
    until,
    ended,
    close: () => request.destroy(),
  };
}

export function sleepMs(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
