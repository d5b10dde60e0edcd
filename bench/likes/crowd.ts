// Our side as an API process has it: likes and pages through the shop's own functions. The worker is a process of its own.
import { RetryableError } from '../../src/base/errors.ts';
import { createLog } from '../../src/base/log.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { shardOf, subjectOf } from '../../src/model/like.ts';
import { LikeStore } from '../../src/social/likes/redis/store.ts';
import { forgetSettled } from '../../test/support/like-world.ts';
import { Bare } from '../baselines/likes/bare.ts';
import { jobOf, nowMs, serve } from '../pipe/child.ts';
import { fanName, userName } from './names.ts';

export interface CrowdJob {
  readonly redis: string;
  readonly prefix: string;
  readonly database: string;
}

export interface Flood {
  readonly posts: readonly string[];
  readonly count: number;
  readonly parallel: number;
}

export interface Flooded {
  readonly startedMs: number;
  readonly perSecond: number;
  /** Refusals because too much was on its way to the ledger; each was tried again. */
  readonly overloaded: number;
}

export interface Span {
  readonly p50: number;
  readonly p99: number;
}

const FILL_PAGE = 1000;
const WARM_UP = 30;
const { redis, prefix, database } = jobOf<CrowdJob>();
const runtime = systemRuntime(createLog('warn'));
const ledger = await openSqlLedger(database, runtime, { migrate: false, exclusive: false });
const shop = await DistributedShop.open(
  ledger,
  {
    ...{ redis, prefix, answerWithinMs: 2000, pipeMax: 100_000, commandMs: 10_000 },
    ...{ worker: false, carrier: null, writerLock: 'off' },
  },
  runtime,
);
const bare = new Bare(database);
/** Takes a subject out of Redis at once, where the shop waits for ten minutes. */
const store = new LikeStore({ target: redis, prefix, rules: { keepMs: 0 }, commandMs: 10_000 }, runtime);

async function like(postId: string, user: string): Promise<boolean> {
  const answer = await shop.social.setLike('post', postId, user, true);
  if (answer.outcome !== 'ok') throw new Error(answer.outcome);
  return answer.changed;
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function isExact(postId: string): Promise<boolean> {
  return (await shop.social.reader.posts.get(postId, null))!.shown.exact;
}

function spanOf(times: readonly number[]): Span {
  const sorted = times.slice(WARM_UP).sort((a, b) => a - b);
  const at = (part: number): number => Number(sorted[Math.floor((sorted.length - 1) * part)]!.toFixed(3));
  return { p50: at(0.5), p99: at(0.99) };
}

/** One at a time. */
async function timed(count: number, one: (n: number) => Promise<unknown>, between = async () => {}): Promise<Span> {
  const times: number[] = [];
  for (let n = 0; n < count + WARM_UP; n++) {
    const startedMs = performance.now();
    await one(n);
    times.push(performance.now() - startedMs);
    await between();
  }
  return spanOf(times);
}

serve({
  async flood({ posts, count, parallel }: Flood): Promise<Flooded> {
    let [next, overloaded] = [0, 0];
    const caller = async (): Promise<void> => {
      while (next < count) {
        const postId = posts[next++ % posts.length]!;
        const user = userName();
        for (let done = false; !done; ) {
          try {
            if (!(await like(postId, user))) throw new Error('nobody has liked twice');
            done = true;
          } catch (error) {
            if (!(error instanceof RetryableError) || error.code !== 'overloaded') throw error;
            overloaded++;
            await pause(20);
          }
        }
      }
    };
    const startedMs = nowMs();
    await Promise.all(Array.from({ length: parallel }, caller));
    return { startedMs, perSecond: (count * 1000) / (nowMs() - startedMs), overloaded };
  },

  /** A page of posts, newest first, with what the reader likes; and the same posts by one bare query. They take turns. */
  async page({ before, reader, times }: { before: string | null; reader: string; times: number }) {
    const list = () => shop.social.reader.posts.list({}, { limit: 50, before }, reader);
    const ids = (await list()).map(({ id }) => id);
    if (ids.length !== 50) throw new Error(`${ids.length} posts`);
    const [ours, theirs]: number[][] = [[], []];
    const clocked = async (into: number[], one: () => Promise<unknown[]>): Promise<void> => {
      const startedMs = performance.now();
      if ((await one()).length !== 50) throw new Error('a page of fewer posts');
      into.push(performance.now() - startedMs);
    };
    for (let n = 0; n < times + WARM_UP; n++) {
      await clocked(ours!, list);
      await clocked(theirs!, () => bare.page(ids));
    }
    return { ours: spanOf(ours!), bare: spanOf(theirs!) };
  },

  /** Users who never liked it. */
  hot: ({ postId, count }: { postId: string; count: number }) => timed(count, () => like(postId, userName())),

  /** Users who like it, of whom Redis has no record: it asks the ledger, and nothing changes. */
  fans: ({ postId, count, size }: { postId: string; count: number; size: number }) =>
    timed(count, async () => {
      if (await like(postId, fanName(1 + Math.floor(Math.random() * size)))) throw new Error('a fan was forgotten');
    }),

  /** The post is not in Redis: before each like it is taken out. */
  async cold({ postId, count }: { postId: string; count: number }) {
    const shard = shardOf(subjectOf('post', postId));
    const evict = async (): Promise<void> => {
      await store.epochOf(shard);
      for (;;) {
        if (await isExact(postId)) {
          await forgetSettled(store, shard);
          let cursor = '0';
          do {
            const slice = await store.evict(shard, cursor, 0);
            if (slice.left === 0) return;
            cursor = slice.cursor;
          } while (cursor !== '0');
        }
        await pause(3);
      }
    };
    return timed(count, () => like(postId, userName()), evict);
  },

  /** Whether a fan likes it: one post, as it is shown to them. */
  liked: ({ postId, count, size }: { postId: string; count: number; size: number }) =>
    timed(count, async () => {
      const post = await shop.social.reader.posts.get(postId, fanName(1 + Math.floor(Math.random() * size)));
      if (post?.liked !== true) throw new Error('a fan was forgotten');
    }),

  /** Fills the filter with all fans, as src/social/likes/filler.ts does, without reading them from the ledger. */
  async fill({ postId, size }: { postId: string; size: number }) {
    const subject = subjectOf('post', postId);
    await store.epochOf(shardOf(subject));
    await like(postId, fanName(1));
    const begun = await store.beginFilter(subject, 'bench', size);
    if (begun !== 'filling') throw new Error(begun);
    const startedMs = performance.now();
    for (let from = 0; from < size; from += FILL_PAGE) {
      const fans = Array.from({ length: Math.min(FILL_PAGE, size - from) }, (_, at) => fanName(from + at + 1));
      if (!(await store.fillFilter(subject, 'bench', fans, from + FILL_PAGE >= size))) throw new Error('refused');
    }
    return (performance.now() - startedMs) / 1000;
  },

  async settled({ postId }: { postId: string }) {
    const shard = shardOf(subjectOf('post', postId));
    while (!(await isExact(postId))) await pause(10);
    await forgetSettled(store, shard);
  },

  async end() {
    store.close();
    await bare.end();
    await shop.close();
  },
});
