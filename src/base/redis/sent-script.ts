import type { Script } from './scripts.ts';

/** Is told what became of a script. */
export interface Asker {
  answered(reply: unknown): void;
  failed(error: unknown): void;
}

/** A reply that cannot be read fails the request. Thrown into ioredis, it would end the process, and the request never. */
export function answer(asker: Asker, reply: unknown): void {
  try {
    asker.answered(reply);
  } catch (error) {
    asker.failed(error);
  }
}

/** One key or argument as it is written on the wire. */
export function bulk(text: string): string {
  return `$${Buffer.byteLength(text)}\r\n${text}\r\n`;
}

/** The keys and arguments that `bulk` wrote one after the other. */
export function partsOf(wire: string): string[] {
  const parts: string[] = [];
  const bytes = Buffer.from(wire);
  for (let at = 0; at < bytes.length; ) {
    const end = bytes.indexOf('\r\n', at);
    const length = Number(bytes.toString('latin1', at + 1, end));
    parts.push(bytes.toString('utf8', end + 2, end + 2 + length));
    at = end + 2 + length + 2;
  }
  return parts;
}

const NOBODY: Asker = { answered: () => undefined, failed: () => undefined };
const NO_ARGS: readonly string[] = [];

/**
 * A script on its way to Redis, already encoded. ioredis' own commands make a promise and encode their arguments one by one,
 * which costs more than Redis takes to answer.
 *
 * `sendCommand` takes it for a command of its own. What ioredis reads of it, and nothing else, is the first block of members:
 * test/integration/ioredis-inside.test.ts fails when that changes.
 */
export class SentScript {
  readonly name = 'evalsha';
  readonly args: readonly string[] = NO_ARGS;
  readonly promise = undefined;
  /** Keeps ioredis from tracing it, which would wrap it in promises again. */
  readonly isTraced = true;

  asker: Asker;
  readonly script: Script;
  readonly keys: number;
  readonly parts: number;
  wire: string;
  readonly sentMs: number;
  /** What the spin-wait gave when it was sent. */
  spin = 0;
  open = true;
  readonly #finish: (sent: SentScript, error: Error | null, reply: unknown) => void;

  constructor(
    finish: (sent: SentScript, error: Error | null, reply: unknown) => void,
    asker: Asker,
    script: Script,
    keys: number,
    parts: number,
    wire: string,
    sentMs: number,
  ) {
    this.#finish = finish;
    this.asker = asker;
    this.script = script;
    this.keys = keys;
    this.parts = parts;
    this.wire = wire;
    this.sentMs = sentMs;
  }

  setReplyContext(): void {}

  toWritable(): string {
    const count = String(this.keys);
    return `*${3 + this.parts}\r\n$7\r\nEVALSHA\r\n$40\r\n${this.script.sha}\r\n$${count.length}\r\n${count}\r\n${this.wire}`;
  }

  resolve(reply: unknown): void {
    this.#close(null, asText(reply));
  }

  reject(error: Error): void {
    this.#close(error, null);
  }

  #close(error: Error | null, reply: unknown): void {
    if (!this.open) return;
    this.open = false;
    this.#finish(this, error, reply);
    // It stays in the list of those under way a while longer. What it refers to would grow old there and cost a full collection.
    this.asker = NOBODY;
    this.wire = '';
  }
}

/** Texts come as buffers, also inside arrays. */
function asText(reply: unknown): unknown {
  if (typeof reply === 'number') return reply;
  if (Buffer.isBuffer(reply)) return reply.toString();
  if (!Array.isArray(reply)) return reply;
  for (let i = 0; i < reply.length; i++) if (typeof reply[i] !== 'number') reply[i] = asText(reply[i]);
  return reply;
}
