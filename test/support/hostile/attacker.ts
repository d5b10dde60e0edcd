import { Agent, request } from 'node:http';
import { connect, type Socket } from 'node:net';
import { token } from '../server.ts';

/** The attackers' address. The honest crowd has another one, so that a bound per address affects only the attackers. */
export const ATTACKERS_ADDRESS = '127.0.0.1';
export const HONEST_ADDRESS = '127.0.0.2';

/** The target: the shop, or a bare server that answers 503 to everything, with the same paths. */
export interface Target {
  port: number;
  /** The sale in which honest buyers order. */
  saleId: string;
  soldOutId: string;
  /** A sale with plenty of stock and three seconds to pay. */
  quickSaleId: string;
  /** Unpaid orders and their buyers. */
  owed: { orderId: string; buyer: string }[];
}

/** One kind of attack, repeated at a fixed rate whatever the answers. */
export interface Attacker {
  readonly name: string;
  readonly perSecond: number;
  /** Connections for requests that wait for their answers. Default: a few. */
  readonly connections?: number;
  act(attack: Attack, n: number): void;
}

export interface AttackerCounts {
  acts: number;
  /** Acts that were skipped because too many earlier ones were unanswered. */
  skipped: number;
  /** By status; 0: the connection ended without an answer. */
  answers: Record<string, number>;
}

/** Unanswered requests of one attacker: bounded, whatever the server does. */
const UNANSWERED_MAX = 400;
/** Open sockets of one attacker; beyond it the oldest is closed. */
const HELD_MAX = 6000;
const CONNECTIONS = 16;

/** An attacker's connections: bounded, counted, and closed when the attack ends. */
export class Attack {
  readonly target: Target;
  readonly counts: AttackerCounts = { acts: 0, skipped: 0, answers: {} };
  readonly #agent: Agent;
  readonly #held = new Set<Socket>();
  readonly #timers = new Set<NodeJS.Timeout>();
  #unanswered = 0;
  #ended = false;

  constructor(target: Target, connections = CONNECTIONS) {
    this.target = target;
    this.#agent = new Agent({ keepAlive: true, maxSockets: connections });
  }

  act(attacker: Attacker): void {
    if (this.#unanswered >= UNANSWERED_MAX) {
      this.counts.skipped++;
      return;
    }
    attacker.act(this, this.counts.acts++);
  }

  /** Sends a complete request on a kept connection. Resolves to the answer's text, or '' without one. */
  ask(
    method: string,
    path: string,
    { buyer, bearer, body, headers }: { buyer?: string; bearer?: string; body?: string; headers?: object } = {},
  ): Promise<string> {
    this.#unanswered++;
    const authorization = bearer ?? (buyer === undefined ? undefined : tokenOf(buyer));
    return new Promise((resolve) => {
      let settled = false;
      const answered = (status: number, text: string): void => {
        // A connection that breaks in the middle of an answer is reported twice.
        if (settled) return;
        settled = true;
        this.#unanswered--;
        this.#count(status);
        resolve(text);
      };
      const asked = request(
        {
          ...{ host: '127.0.0.1', port: this.target.port, method, path, agent: this.#agent },
          localAddress: ATTACKERS_ADDRESS,
          headers: {
            ...(authorization !== undefined && { authorization: `Bearer ${authorization}` }),
            ...(body !== undefined && {
              'content-type': 'application/json',
              'content-length': Buffer.byteLength(body),
            }),
            ...headers,
          },
        },
        (response) => {
          let text = '';
          response.setEncoding('utf8');
          response.on('data', (chunk: string) => {
            // Enough to contain an id.
            if (text.length < 2000) text += chunk;
          });
          response.on('error', () => undefined);
          response.on('close', () => answered(response.statusCode!, text));
        },
      );
      asked.on('error', () => answered(0, ''));
      asked.end(body);
    });
  }

  /** Opens a new socket, writes at once, and closes it after `holdMs` unless the server does so earlier. */
  open(text: string | Buffer, holdMs: number): Socket {
    const socket = connect({ port: this.target.port, host: '127.0.0.1', localAddress: ATTACKERS_ADDRESS });
    this.#held.add(socket);
    if (this.#held.size > HELD_MAX) this.#held.values().next().value!.destroy();
    socket.on('connect', () => socket.write(text));
    socket.once('data', (chunk: Buffer) =>
      this.#count(Number(/^HTTP\/1\.1 (\d+)/.exec(chunk.toString('latin1'))?.[1] ?? 0)),
    );
    socket.on('data', () => undefined);
    socket.on('error', () => undefined);
    const timer = this.later(holdMs, () => socket.destroy());
    socket.on('close', () => {
      clearTimeout(timer);
      this.#timers.delete(timer);
      this.#held.delete(socket);
    });
    return socket;
  }

  later(ms: number, run: () => void): NodeJS.Timeout {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      if (!this.#ended) run();
    }, ms);
    this.#timers.add(timer);
    return timer;
  }

  end(): void {
    this.#ended = true;
    for (const timer of this.#timers) clearTimeout(timer);
    for (const socket of this.#held) socket.destroy();
    this.#agent.destroy();
  }

  #count(status: number): void {
    this.counts.answers[status] = (this.counts.answers[status] ?? 0) + 1;
  }
}

const tokens = new Map<string, string>();
const TOKENS_MAX = 2000;

/** Caches tokens, because signing costs as much as sending. */
function tokenOf(buyer: string): string {
  const known = tokens.get(buyer);
  if (known !== undefined) return known;
  const signed = token(buyer);
  if (tokens.size < TOKENS_MAX) tokens.set(buyer, signed);
  return signed;
}

export function get(path: string): string {
  return `GET ${path} HTTP/1.1\r\nhost: shop\r\n\r\n`;
}

export const ORDER = JSON.stringify({ item: 'voucher', quantity: 1 });
