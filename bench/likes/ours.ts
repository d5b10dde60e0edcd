// Our side of the rounds: an API process that stays, and a worker for each measurement.
import { type Connection, createConnection } from 'mysql2/promise';
import { Child, nowMs } from '../pipe/child.ts';
import type { WorkerJob } from '../pipe/worker.ts';
import type { CpuTimes } from './cpu.ts';
import type { CrowdJob, Flood, Flooded, Span } from './crowd.ts';

export interface OursJob {
  readonly cpu: CpuTimes;
  readonly redis: string;
  readonly database: string;
  /** The folder for CPU profiles of API process and worker; null: none. */
  readonly profile: string | null;
}

const PREFIX = 'bench';
const LOOK_MS = 5;
const WITHIN_MS = 60_000;
/** Every post is in Redis and every process is warm before the clock starts. */
const WARM_UP = 2000;
const FIRST_ID = 7_000_000_000_000_000_000n;

export async function insertPosts(connection: Connection, ids: readonly string[]): Promise<void> {
  const now = Date.now();
  const text = 'Some text that a post has. '.repeat(8);
  await connection.query('INSERT INTO posts (id, author, title, content, created_at, updated_at) VALUES ?', [
    ids.map((id) => [id, 'author', `Post ${id}`, text, now, now]),
  ]);
}

export function postId(n: number): string {
  return String(FIRST_ID + BigInt(n));
}

export class Ours {
  readonly database: string;
  readonly #job: OursJob;
  readonly #crowd: Child;
  readonly #eye: Connection;
  #posts = 0;

  static async start(job: OursJob): Promise<Ours> {
    const crowdJob: CrowdJob = { redis: job.redis, prefix: PREFIX, database: job.database };
    const crowd = await Child.start('../likes/crowd.ts', crowdJob, profiled(job));
    return new Ours(job, crowd, await createConnection(job.database));
  }

  private constructor(job: OursJob, crowd: Child, eye: Connection) {
    this.database = job.database;
    this.#job = job;
    this.#crowd = crowd;
    this.#eye = eye;
  }

  /** Fresh ones, with consecutive ids. */
  async createPosts(count: number): Promise<string[]> {
    const ids = Array.from({ length: count }, (_, at) => postId(this.#posts + at));
    this.#posts += count;
    await insertPosts(this.#eye, ids);
    return ids;
  }

  #worker(): Promise<Child> {
    const { redis, database } = this.#job;
    return Child.start(
      'worker.ts',
      { redis, prefix: PREFIX, database, pipeUrl: null } satisfies WorkerJob,
      profiled(this.#job),
    );
  }

  /** Likes while no worker runs; then a worker stores them. */
  async acceptThenDrain({ posts, count, parallel }: Flood): Promise<{ accepted: number; drained: number }> {
    await this.#crowd.ask<Flooded>('flood', { posts, count: WARM_UP, parallel });
    const { cpu } = this.#job;
    const accept = async () => ({ value: await this.#crowd.ask<Flooded>('flood', { posts, count, parallel }), count });
    const processes = { 'load or writer': this.#crowd.pid };
    const { perSecond, overloaded } = await cpu.of('ours: accepted', posts.length, processes, accept);
    if (overloaded > 0) throw new Error('refused although there was room');
    const worker = await this.#worker();
    const first = await this.#committed(posts, 1);
    const last = await this.#committed(posts, WARM_UP + count);
    await worker.end();
    await this.#check(posts, WARM_UP + count);
    return { accepted: perSecond, drained: ((last.count - first.count) * 1000) / (last.atMs - first.atMs) };
  }

  /** From the first like to the commit of the last, with everything running. */
  async settle({ posts, count, parallel }: Flood): Promise<{ accepted: number; settled: number }> {
    const worker = await this.#worker();
    await this.#crowd.ask<Flooded>('flood', { posts, count: WARM_UP, parallel });
    await this.#committed(posts, WARM_UP);
    const settle = async () => {
      const flooded = this.#crowd.ask<Flooded>('flood', { posts, count, parallel });
      return { value: await Promise.all([flooded, this.#committed(posts, WARM_UP + count)]), count };
    };
    const processes = { 'load or writer': this.#crowd.pid, worker: worker.pid };
    const [{ startedMs, perSecond }, last] = await this.#job.cpu.of('ours: settled', posts.length, processes, settle);
    await worker.end();
    await this.#check(posts, WARM_UP + count);
    return { accepted: perSecond, settled: (count * 1000) / (last.atMs - startedMs) };
  }

  async #committed(posts: readonly string[], wanted: number): Promise<{ count: number; atMs: number }> {
    const untilMs = nowMs() + WITHIN_MS;
    const sql = `SELECT sum(likes_count) AS n FROM posts WHERE id BETWEEN ${posts[0]} AND ${posts.at(-1)}`;
    for (;;) {
      const [rows] = await this.#eye.query(sql);
      const count = Number((rows as { n: string }[])[0]!.n);
      const atMs = nowMs();
      if (count >= wanted) return { count, atMs };
      if (atMs > untilMs) throw new Error(`void: ${count} of ${wanted} likes were stored in time`);
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }

  /** Every like has its row, and is counted once. Otherwise the measurement is void. */
  async #check(posts: readonly string[], total: number): Promise<void> {
    const range = `BETWEEN ${posts[0]} AND ${posts.at(-1)}`;
    const [rows] = await this.#eye.query(
      `SELECT count(*) AS found, (SELECT sum(likes_count) FROM posts WHERE id ${range}) AS counted
       FROM post_likes WHERE post_id ${range} AND liked = 1`,
    );
    const [{ found, counted }] = rows as [{ found: number; counted: string }];
    if (found !== total || Number(counted) !== total)
      throw new Error(`void: ${total} likes, ${found} rows, count ${counted}`);
  }

  /** Of one reader who has liked some of them. `hot`: the newest 50 posts, all of which are in Redis. */
  async page(hot: boolean, times: number): Promise<{ ours: number; ours99: number; bare: number; bare99: number }> {
    await this.createPosts(50);
    const warm = await this.createPosts(50);
    await this.#crowd.ask<Flooded>('flood', { posts: warm, count: 500, parallel: 50 });
    // Those with an id below that of the first.
    const before = hot ? null : warm[0]!;
    const seen = await this.#crowd.ask<{ ours: Span; bare: Span }>('page', { before, reader: 'reader', times });
    return { ours: seen.ours.p50, ours99: seen.ours.p99, bare: seen.bare.p50, bare99: seen.bare.p99 };
  }

  async end(): Promise<void> {
    await this.#crowd.end();
    await this.#eye.end();
  }
}

function profiled({ profile }: OursJob): string[] {
  return profile === null ? [] : ['--cpu-prof', '--cpu-prof-dir', profile];
}
