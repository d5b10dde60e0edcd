import { TerminalError } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import { type Caller, type CallOptions, type Client, detailOf, retryAfterMs, unansweredWords } from './client.ts';

/** The crowd cannot start: an option or an address is wrong. */
export function cannotStart(message: string): TerminalError {
  return new TerminalError('cannot_start', message);
}

/** Attempts to read from a server that restarts or answers 503, before there is no verdict. */
const TRIES_MAX = 10;
const RETRY_MS = 500;
const PAGE_SIZE = 200;

/** What a crowd reads from a shop as an admin, to judge it. An admin's reads are not those that the public shares: they are read now. */
export class Reads {
  readonly #shop: Caller;
  readonly #adminKey: string;
  readonly #runtime: Runtime;

  constructor(shop: Caller, adminKey: string, runtime: Runtime) {
    this.#shop = shop;
    this.#adminKey = adminKey;
    this.#runtime = runtime;
  }

  /** `parse` returns null if it is not what was asked for. `as`: whom to read as; unset: as the admin. */
  async one<T>(path: string, parse: (body: unknown) => T | null, as?: CallOptions): Promise<T> {
    for (let tries = 1; ; tries++) {
      const reply = await this.#shop.call('GET', path, as ?? { bearer: this.#adminKey });
      const value = reply.ok && reply.status === 200 ? parse(reply.body) : null;
      if (value !== null) return value;
      const again = !reply.ok || reply.status === 429 || reply.status === 503;
      if (!again || tries === TRIES_MAX)
        throw new TerminalError('no_verdict', `${path} cannot be read (${detailOf(reply)})`);
      await sleep(this.#runtime.timers, reply.ok ? retryAfterMs(reply) : RETRY_MS);
    }
  }

  /** Every row of a list. */
  async all<T>(path: string, query: Record<string, string>, parse: (row: unknown) => T | null): Promise<T[]> {
    const rows: T[] = [];
    for (let cursor: string | null = null; ; ) {
      const page: Page<T> = await this.one(listPath(path, query, PAGE_SIZE, cursor), (body) => pageOf(body, parse));
      rows.push(...page.rows);
      if (page.nextCursor === null) return rows;
      cursor = page.nextCursor;
    }
  }

  /** Before a crowd starts: this address must answer and take the admin key. `what` completes the message if it does neither. */
  async mustAccept(client: Client, path: string, what: string): Promise<void> {
    const reply = await client.call('GET', path, { bearer: this.#adminKey });
    if (!reply.ok) throw cannotStart(unansweredWords(client.url, reply.reason));
    if (reply.status === 401 || reply.status === 403)
      throw cannotStart(`the server does not accept this admin key (${detailOf(reply)})`);
    if (reply.status !== 200) throw cannotStart(`${what} (${detailOf(reply)})`);
  }
}

export function listPath(path: string, query: Record<string, string>, limit: number, cursor: string | null): string {
  return `${path}?${new URLSearchParams({ ...query, limit: String(limit), ...(cursor && { cursor }) })}`;
}

interface Page<T> {
  rows: T[];
  nextCursor: string | null;
}

function pageOf<T>(body: unknown, parse: (row: unknown) => T | null): Page<T> | null {
  const { data, nextCursor } = (body ?? {}) as { data?: unknown; nextCursor?: unknown };
  if (!Array.isArray(data) || !(nextCursor === null || typeof nextCursor === 'string')) return null;
  const rows = data.map(parse);
  return rows.some((row) => row === null) ? null : { rows: rows as T[], nextCursor };
}
