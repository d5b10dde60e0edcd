// Latency and memory of a post with many likes: its rows are in MariaDB, and Redis has its filter.
import type { Redis } from 'ioredis';
import type { Connection } from 'mysql2/promise';
import { Child } from '../pipe/child.ts';
import type { WorkerJob } from '../pipe/worker.ts';
import type { CrowdJob, Span } from './crowd.ts';
import { insertPosts, postId } from './ours.ts';

export interface Place {
  readonly redis: string;
  readonly database: string;
  readonly eye: Redis;
  readonly connection: Connection;
}

type Row = Record<string, unknown>;

/** Rows of one INSERT … SELECT. */
const LOAD = 1_000_000;

export async function atSize(place: Place, size: number, count: number): Promise<{ latencies: Row[]; memory: Row }> {
  const { redis, database, eye, connection } = place;
  const id = postId(size);
  console.error(`a post with ${size} likes: loading…`);
  await insertPosts(connection, [id]);
  const startedMs = performance.now();
  for (let from = 1; from <= size; from += LOAD) {
    const to = Math.min(from + LOAD - 1, size);
    // MariaDB makes the rows itself, in the order of its indexes. The name is that of `fanName`.
    await connection.query(
      `INSERT INTO post_likes (post_id, liker, liked, number, changed_at)
       SELECT ${id}, CONCAT('fan-', LPAD(seq, 9, '0')), 1, seq, 1700000000000 + seq FROM seq_${from}_to_${to}`,
    );
  }
  await connection.query('UPDATE posts SET likes_count = ?, likes_rev = 1 WHERE id = ?', [size, id]);
  const loadSeconds = (performance.now() - startedMs) / 1000;

  const prefix = `size-${size}`;
  const crowd = await Child.start('../likes/crowd.ts', { redis, prefix, database } satisfies CrowdJob);
  const worker = await Child.start('worker.ts', { redis, prefix, database, pipeUrl: null } satisfies WorkerJob);
  const latencies: Row[] = [];
  const took = (what: string, { p50, p99 }: Span): void => {
    latencies.push({ likes: size, what, 'p50 ms': p50, 'p99 ms': p99 });
    console.error(`  ${what}: ${p50}, ${p99} ms`);
  };
  took('like, cold: the post is not in Redis', await crowd.ask('cold', { postId: id, count: Math.min(count, 300) }));
  took('liked, cold: the post is not in Redis', await crowd.ask('liked', { postId: id, count, size }));
  const before = await usedMemory(eye);
  const fillSeconds = await crowd.ask<number>('fill', { postId: id, size });
  await crowd.ask('settled', { postId: id });
  const bytes = ((await usedMemory(eye)) - before) / size;
  console.error(`  filled in ${fillSeconds.toFixed(0)} s: ${bytes.toFixed(2)} bytes a like`);
  took('like, hot: a new user', await crowd.ask('hot', { postId: id, count }));
  took('like, hot: somebody who likes it already, asked about', await crowd.ask('fans', { postId: id, count, size }));
  took('liked, hot', await crowd.ask('liked', { postId: id, count, size }));
  await crowd.end();
  await worker.end();
  const memory = {
    what: 'settled: the filter, and the subject',
    likes: size,
    'bytes a like': Number(bytes.toFixed(2)),
    'filled in s': Number(fillSeconds.toFixed(0)),
    'rows loaded in s': Number(loadSeconds.toFixed(0)),
  };
  return { latencies, memory };
}

async function usedMemory(eye: Redis): Promise<number> {
  return Number(/used_memory:(\d+)/.exec(await eye.info('memory'))![1]);
}
