import type { LookupAddress } from 'node:dns';
import { type ClientRequest, Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import type { LookupFunction } from 'node:net';
import { messageOf } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { SIGNATURE_HEADER, sign } from '../base/signature.ts';
import { within } from '../base/timers.ts';
import { VERSION } from '../base/version.ts';
import { type Resolve, type Target, targetOf } from './target.ts';

export interface SenderOptions {
  readonly resolve: Resolve;
  readonly allowPrivate: boolean;
  /** From resolving the host to the head of the answer. */
  readonly timeoutMs: number;
}

export interface Sent {
  /** Null: no answer. */
  readonly status: number | null;
  /** What went wrong, beyond the status. */
  readonly error: string | null;
}

/** An endpoint's body is not used. This much of it is read, for this long, so that the connection can be kept. */
const BODY_BYTES_MAX = 16 * 1024;
const BODY_MS_MAX = 1000;
/** Deliveries that start within this time share one resolution of their host. */
const TARGET_MS = 1000;
const TARGETS_MAX = 100;
/** Idle connections are kept for less than the usual 5 s of servers, so that servers rarely close one that we reuse. */
const KEPT = { keepAlive: true, maxFreeSockets: 8, timeout: 4000 };

/**
 * Posts to endpoints. It connects to exactly the addresses that were checked, without resolving the host again. It does not
 * follow redirects, and uses only the status of an answer.
 */
export class Sender {
  readonly #runtime: Runtime;
  readonly #options: SenderOptions;
  readonly #http = new HttpAgent(KEPT);
  readonly #https = new HttpsAgent(KEPT);
  readonly #targets = new Map<string, { readonly atMs: number; readonly target: Promise<Target> }>();

  constructor(runtime: Runtime, options: SenderOptions) {
    this.#runtime = runtime;
    this.#options = options;
  }

  /** Never rejects: a failure is part of the result. */
  async send(url: string, secret: string, body: string, signal: AbortSignal): Promise<Sent> {
    const { clock, timers } = this.#runtime;
    const { timeoutMs } = this.#options;
    const untilMs = clock.monotonic() + timeoutMs;
    const target = await within(timers, this.#target(url), timeoutMs);
    if (target === null) return { status: null, error: `its host was not resolved within ${timeoutMs} ms` };
    if (!target.ok) return { status: null, error: target.reason };
    const headers = {
      'content-type': 'application/json; charset=utf-8',
      'content-length': Buffer.byteLength(body),
      'user-agent': `doorbuster/${VERSION}`,
      [SIGNATURE_HEADER]: sign(secret, body, clock.now()),
    };
    const open = (): ClientRequest => {
      const lookup = lookupAmong(target.addresses);
      const options = { method: 'POST', headers, lookup, signal };
      return url.startsWith('https:')
        ? httpsRequest(url, { ...options, agent: this.#https })
        : httpRequest(url, { ...options, agent: this.#http });
    };
    const first = await this.#exchange(open, body, untilMs);
    // The server closed a kept connection while we reused it: that says nothing about the endpoint, so try once more.
    return first === 'stale' ? ((await this.#exchange(open, body, untilMs)) as Sent) : first;
  }

  close(): void {
    this.#http.destroy();
    this.#https.destroy();
  }

  #target(url: string): Promise<Target> {
    const { resolve, allowPrivate } = this.#options;
    const nowMs = this.#runtime.clock.monotonic();
    const known = this.#targets.get(url);
    if (known !== undefined && nowMs - known.atMs < TARGET_MS) return known.target;
    if (this.#targets.size >= TARGETS_MAX) this.#targets.clear();
    const target = targetOf(url, resolve, allowPrivate);
    this.#targets.set(url, { atMs: nowMs, target });
    return target;
  }

  #exchange(open: () => ClientRequest, body: string, untilMs: number): Promise<Sent | 'stale'> {
    const { clock, timers } = this.#runtime;
    return new Promise((resolve) => {
      let status: number | null = null;
      const end = (error: string | null): void => {
        cancel();
        resolve(status === null ? { status, error } : { status, error: errorOf(status) });
      };
      const call = open();
      const cancel = timers.after(untilMs - clock.monotonic(), () => {
        end(`no answer within ${this.#options.timeoutMs} ms`);
        call.destroy();
      });
      call.on('error', (error) => {
        if (call.reusedSocket && status === null && isClosed(error)) {
          cancel();
          resolve('stale');
        } else {
          end(reasonOf(error));
        }
      });
      // Also reached after an answer that Node does not report (101).
      call.on('close', () => end('the connection was closed without an answer'));
      call.on('response', (response) => {
        status = response.statusCode!;
        this.#discard(response, () => end(null));
      });
      call.end(body);
    });
  }

  #discard(response: IncomingMessage, done: () => void): void {
    let bytes = 0;
    const cancel = this.#runtime.timers.after(BODY_MS_MAX, () => response.destroy());
    response.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes > BODY_BYTES_MAX) response.destroy();
    });
    response.on('error', () => undefined);
    response.on('close', () => {
      cancel();
      done();
    });
  }
}

/** Resolves to the checked addresses, whatever the name resolves to by now. */
function lookupAmong(addresses: LookupAddress[]): LookupFunction {
  return (_hostname, options, done) => {
    if (options.all) done(null, addresses);
    else done(null, addresses[0]!.address, addresses[0]!.family);
  };
}

export function isDelivered({ status }: Sent): boolean {
  return status !== null && status >= 200 && status < 300;
}

function errorOf(status: number): string | null {
  return status >= 300 && status < 400 ? 'a redirect, which is not followed' : null;
}

function isClosed(error: Error): boolean {
  return ['ECONNRESET', 'EPIPE'].includes((error as { code?: string }).code ?? '');
}

/** If several addresses failed, Node's error has no message, only the codes. */
function reasonOf(error: Error): string {
  return messageOf(error) || ((error as { code?: string }).code ?? error.name);
}
