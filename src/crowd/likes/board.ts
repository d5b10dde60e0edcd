import { TerminalError } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { sleep } from '../../base/timers.ts';
import {
  type Caller,
  type CallOptions,
  type Client,
  detailOf,
  type Reply,
  retryAfterMs,
  unansweredWords,
} from '../client.ts';
import type { Fleet } from '../fleet.ts';
import { cannotStart } from '../remote-shop.ts';
import type { PostView, SeenLike } from './evidence.ts';

const PAGE_SIZE = 200;
const READ_TRIES_MAX = 10;
const READ_RETRY_MS = 500;
const DRAIN_EVERY_MS = 200;

/** The posts of a shop over HTTP. An admin's reads are not those that the public shares: they are read now. */
export class RemoteBoard {
  readonly #fleet: Fleet;
  readonly #shop: Caller;
  readonly #adminKey: string;
  readonly #runtime: Runtime;

  constructor(fleet: Fleet, adminKey: string, runtime: Runtime) {
    this.#fleet = fleet;
    this.#shop = fleet.door();
    this.#adminKey = adminKey;
    this.#runtime = runtime;
  }

  /** Every address must answer and accept the admin key: one that never answered is a wrong address. */
  async enter(): Promise<void> {
    for (const client of this.#fleet.clients as readonly Client[]) {
      const reply = await client.call('GET', '/v1/posts?limit=1', { bearer: this.#adminKey });
      if (!reply.ok) throw cannotStart(unansweredWords(client.url, reply.reason));
      if (reply.status === 401 || reply.status === 403)
        throw cannotStart(`the server does not accept this admin key (${detailOf(reply)})`);
      if (reply.status !== 200)
        throw cannotStart(`${client.url} does not answer like a Doorbuster server with posts (${detailOf(reply)})`);
    }
  }

  async write(bearer: string, count: number, seed: number): Promise<string[]> {
    const ids: string[] = [];
    for (let at = 1; at <= count; at++) {
      const key = `crowd-${this.#runtime.random.uuid()}`;
      const body = {
        title: `Crowd ${seed}, post ${at} of ${count}`,
        content: 'Written by `doorbuster crowd --likes`.',
      };
      const reply = await this.#shop.call('POST', '/v1/posts', { bearer, key, body });
      const id = reply.ok && reply.status === 201 ? (reply.body as { id?: unknown } | null)?.id : null;
      if (typeof id === 'string') ids.push(id);
      else if (reply.ok && reply.status === 429) {
        await sleep(this.#runtime.timers, retryAfterMs(reply));
        at--;
      } else throw cannotStart(`no post can be written (${detailOf(reply)})`);
    }
    return ids;
  }

  /** Reads the posts until their counts are exact and equal the rows, or `waitMs` are over: likes may be on their way to the ledger. */
  async settled(postIds: readonly string[], waitMs: number, interrupt: AbortSignal): Promise<PostView[]> {
    const { clock, timers } = this.#runtime;
    const untilMs = clock.monotonic() + waitMs;
    for (;;) {
      const posts: PostView[] = [];
      for (const id of postIds) posts.push(await this.#post(id));
      const isOver = clock.monotonic() >= untilMs || interrupt.aborted;
      if (isOver || posts.every(({ exact, count, likers }) => exact && count === likers.length)) return posts;
      await sleep(timers, DRAIN_EVERY_MS);
    }
  }

  async #post(id: string): Promise<PostView> {
    const path = `/v1/posts/${id}`;
    const { likes } = await this.#read(path, (body) => likesOf(body));
    const likers: string[] = [];
    for (let cursor: string | null = ''; cursor !== null; ) {
      const query = new URLSearchParams({ limit: String(PAGE_SIZE), ...(cursor !== '' && { cursor }) });
      const page: Page = await this.#read(`${path}/likes?${query}`, pageOf);
      likers.push(...page.users);
      cursor = page.nextCursor;
    }
    return { id, ...likes, likers };
  }

  /** What a liker sees with their own token. */
  async seen(user: string, bearer: string, postIds: readonly string[]): Promise<SeenLike[]> {
    const seen: SeenLike[] = [];
    for (const postId of postIds) {
      const liked = await this.#read(`/v1/posts/${postId}`, likedOf, { bearer });
      seen.push({ user, postId, liked: liked.liked });
    }
    return seen;
  }

  async #read<T>(path: string, parse: (body: unknown) => T | null, as?: CallOptions): Promise<T> {
    for (let tries = 1; ; tries++) {
      const reply: Reply = await this.#shop.call('GET', path, as ?? { bearer: this.#adminKey });
      const value = reply.ok && reply.status === 200 ? parse(reply.body) : null;
      if (value !== null) return value;
      const again = !reply.ok || reply.status === 429 || reply.status === 503;
      if (!again || tries === READ_TRIES_MAX)
        throw new TerminalError('no_verdict', `${path} cannot be read (${detailOf(reply)})`);
      await sleep(this.#runtime.timers, reply.ok ? retryAfterMs(reply) : READ_RETRY_MS);
    }
  }
}

interface Page {
  users: string[];
  nextCursor: string | null;
}

function likesOf(body: unknown): { likes: { count: number; exact: boolean } } | null {
  const { count, exact } = ((body as { likes?: unknown } | null)?.likes ?? {}) as { count?: unknown; exact?: unknown };
  return Number.isInteger(count) && typeof exact === 'boolean' ? { likes: { count: count as number, exact } } : null;
}

function likedOf(body: unknown): { liked: boolean } | null {
  const { liked } = (body ?? {}) as { liked?: unknown };
  return typeof liked === 'boolean' ? { liked } : null;
}

function pageOf(body: unknown): Page | null {
  const { data, nextCursor } = (body ?? {}) as { data?: unknown; nextCursor?: unknown };
  if (!Array.isArray(data) || !(nextCursor === null || typeof nextCursor === 'string')) return null;
  const users = data.map((row) => (row as { user?: { id?: unknown } } | null)?.user?.id);
  return users.every((user) => typeof user === 'string') ? { users: users as string[], nextCursor } : null;
}
