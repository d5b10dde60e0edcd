// The document's ways and the bare batches, in a process of their own.
import { Bare } from '../baselines/likes/bare.ts';
import { OneTransaction } from '../baselines/likes/one-transaction.ts';
import { type EventWay, SaddIncrKafka } from '../baselines/likes/sadd-incr-kafka.ts';
import { jobOf, serve } from '../pipe/child.ts';
import { userId, userName } from './names.ts';

export interface SourcesJob {
  readonly redis: string;
  readonly kafka: string | null;
  /** Empty, for the document's tables. */
  readonly theirs: string;
  readonly ours: string;
}

/** `count`: all likes, those of a warm-up too. */
export interface Done {
  readonly perSecond: number;
  readonly count: number;
}

export interface Transactions {
  readonly posts: readonly string[];
  readonly parallel: number;
  readonly durationMs: number;
}

export interface Events extends EventWay {
  readonly posts: readonly string[];
  readonly parallel: number;
  readonly count: number;
}

export interface BareBatches {
  readonly posts: readonly string[];
  readonly size: number;
  readonly writers: number;
  readonly durationMs: number;
}

const WARM_UP = 2000;
const job = jobOf<SourcesJob>();
const transactions = await OneTransaction.open(job.theirs);
const bare = new Bare(job.ours);
if (job.kafka !== null) await SaddIncrKafka.createTopic(job.kafka);

/** Likes a second of several callers, each with one like at a time. */
async function loops(parallel: number, more: () => boolean, one: (n: number) => Promise<number>): Promise<Done> {
  let [next, done] = [0, 0];
  const startedMs = performance.now();
  const loop = async (): Promise<void> => {
    while (more()) {
      // Not `done += await …`, which would forget what the others have added meanwhile.
      const likes = await one(next++);
      done += likes;
    }
  };
  await Promise.all(Array.from({ length: parallel }, loop));
  return { perSecond: (done * 1000) / (performance.now() - startedMs), count: done };
}

serve({
  /** §2 */
  async transactions({ posts, parallel, durationMs }: Transactions) {
    await transactions.createPosts(posts);
    const untilMs = performance.now() + durationMs;
    const one = async (n: number): Promise<number> => {
      await transactions.like(posts[n % posts.length]!, userId());
      return 1;
    };
    const measured = await loops(parallel, () => performance.now() < untilMs, one);
    const { counts, rows } = await transactions.counted(posts);
    const { count } = measured;
    if (counts !== count || rows !== count) throw new Error(`void: ${count} likes, counted ${counts}, rows ${rows}`);
    return measured;
  },
  /** §3 */
  async events({ posts, parallel, count, ...way }: Events) {
    const events = await SaddIncrKafka.open(job.redis, job.kafka!, way);
    await Promise.all(Array.from({ length: WARM_UP }, (_, n) => events.like(posts[n % posts.length]!, userId())));
    await events.flushed();
    const startedMs = performance.now();
    let left = count;
    await loops(
      parallel,
      () => left-- > 0,
      async (n) => {
        await events.like(posts[n % posts.length]!, userId());
        return 1;
      },
    );
    await events.flushed();
    const perSecond = (count * 1000) / (performance.now() - startedMs);
    await events.clear(posts);
    await events.end();
    return { perSecond, count: count + WARM_UP };
  },
  bare({ posts, size, writers, durationMs }: BareBatches) {
    const untilMs = performance.now() + durationMs;
    return loops(
      writers,
      () => performance.now() < untilMs,
      async (n) => {
        const from = n * size;
        const likeOf = (at: number) => ({ postId: posts[(from + at) % posts.length]!, user: userName() });
        await bare.upsert(Array.from({ length: size }, (_, at) => likeOf(at)));
        return size;
      },
    );
  },
  async end() {
    await transactions.end();
    await bare.end();
  },
});
