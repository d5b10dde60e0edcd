import type { Runtime } from '../../base/runtime.ts';
import { sleep } from '../../base/timers.ts';
import { type Caller, detailOf, retryAfterMs } from '../client.ts';
import type { Fleet } from '../fleet.ts';
import { cannotStart, Reads } from '../reads.ts';
import type { PostView, SeenLike } from './evidence.ts';

const DRAIN_EVERY_MS = 200;

/** The posts of a shop over HTTP. */
export class RemoteBoard {
  readonly #fleet: Fleet;
  readonly #shop: Caller;
  readonly #reads: Reads;
  readonly #runtime: Runtime;

  constructor(fleet: Fleet, adminKey: string, runtime: Runtime) {
    this.#fleet = fleet;
    this.#shop = fleet.door();
    this.#reads = new Reads(this.#shop, adminKey, runtime);
    this.#runtime = runtime;
  }

  /** Every address must answer and accept the admin key: one that never answered is a wrong address. */
  async enter(): Promise<void> {
    for (const client of this.#fleet.clients) {
      const what = `${client.url} does not answer like a Doorbuster server with posts`;
      await this.#reads.mustAccept(client, '/v1/posts?limit=1', what);
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
    const { likes } = await this.#reads.one(path, likesOf);
    const likers = await this.#reads.all(`${path}/likes`, {}, likerOf);
    return { id, ...likes, likers };
  }

  /** What a liker sees with their own token. */
  async seen(user: string, bearer: string, postIds: readonly string[]): Promise<SeenLike[]> {
    const seen: SeenLike[] = [];
    for (const postId of postIds) {
      const { liked } = await this.#reads.one(`/v1/posts/${postId}`, likedOf, { bearer });
      seen.push({ user, postId, liked });
    }
    return seen;
  }
}

function likesOf(body: unknown): { likes: { count: number; exact: boolean } } | null {
  const { count, exact } = ((body as { likes?: unknown } | null)?.likes ?? {}) as { count?: unknown; exact?: unknown };
  return Number.isInteger(count) && typeof exact === 'boolean' ? { likes: { count: count as number, exact } } : null;
}

function likedOf(body: unknown): { liked: boolean } | null {
  const { liked } = (body ?? {}) as { liked?: unknown };
  return typeof liked === 'boolean' ? { liked } : null;
}

function likerOf(row: unknown): string | null {
  const id = (row as { user?: { id?: unknown } } | null)?.user?.id;
  return typeof id === 'string' ? id : null;
}
