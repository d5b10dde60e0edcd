// What likes cost Redis, with rows answered from memory: bytes a like, processor time of a decision beside the document's SADD and INCR,
// and how long one call holds Redis.
import { Redis } from 'ioredis';
import { systemRuntime } from '../../src/base/runtime.ts';
import type { LikeRow } from '../../src/ledger/port.ts';
import { type Subject, shardOf } from '../../src/model/like.ts';
import { CountedLikes } from '../../src/social/likes/counted.ts';
import { LikeStore } from '../../src/social/likes/redis/store.ts';
import { MemoryLikeLedger } from '../../test/support/like-ledger.ts';
import { Server } from '../locks/server.ts';

const POST: Subject = 'post:7000000000000000001';
const PARALLEL = 1024;
const RULES = { unsettledMax: 1e9, filterUsersMax: 1e12, checkMs: 1e9, checkMsMax: 1e9 };

const userOf = (n: number): string => `user-${(n * 7919) % 99_999_989}-${n}`;

/** Users as pages of the ledger, without keeping ten million of them in memory. */
class ManyUsers extends MemoryLikeLedger {
  likedBefore: (user: string) => boolean = () => false;

  override async likeRows(pairs: readonly { subject: Subject; user: string }[]): Promise<(LikeRow | null)[]> {
    return pairs.map(({ user }) => (this.likedBefore(user) ? { liked: true, changedMs: 0 } : null));
  }
}

type Rows = Record<string, unknown>[];

/** `many` likes in each measurement, beside a post with `users` likes. On a Redis of its own without persistence. */
export async function scripts(users: number, many: number): Promise<{ memory: Rows; times: Rows }> {
  const server = await Server.start();
  const eye = new Redis(server.url);
  const info = async (name: string): Promise<number> =>
    Number(new RegExp(`${name}:(\\d+)`).exec(await eye.info('memory'))![1]);
  /** Of all scripts since it was last asked. By the wall clock: other programs on this machine lengthen it. */
  const callMs = async (): Promise<number> => {
    const [, us] = /cmdstat_evalsha:.*?usec_per_call=([\d.]+)/.exec(await eye.info('commandstats')) ?? [];
    await eye.config('RESETSTAT');
    return Number(us ?? 0) / 1000;
  };

  let ledger = new ManyUsers();
  let likes: CountedLikes;
  let store: LikeStore;
  const fresh = async (): Promise<void> => {
    likes?.close();
    store?.close();
    await server.clear();
    ledger = new ManyUsers();
    ledger.add(POST);
    const lock = async () => ({ release: async () => undefined });
    const runtime = systemRuntime();
    const options = { target: server.url, rules: RULES, commandMs: 10_000 };
    const none = { probe: async () => undefined, lock, drained: async () => true };
    likes = new CountedLikes(options, { runtime, ledger, ...none });
    await likes.start();
    store = new LikeStore(options, runtime);
    await store.epochOf(shardOf(POST));
  };

  /** Likes by `PARALLEL` callers, each of whom waits for the answer. */
  const like = async (from: number, count: number, liked = true): Promise<{ perSecond: number; serverUs: number }> => {
    let next = from;
    const before = await server.counters();
    const startMs = performance.now();
    const loop = async (): Promise<void> => {
      while (next < from + count) await likes.set(POST, userOf(next++), liked);
    };
    await Promise.all(Array.from({ length: PARALLEL }, loop));
    const seconds = (performance.now() - startMs) / 1000;
    return { perSecond: count / seconds, serverUs: (((await server.counters()).cpuS - before.cpuS) / count) * 1e6 };
  };

  const memory: Rows = [];
  const times: Rows = [];
  const time = (what: string, { perSecond, serverUs }: { perSecond: number; serverUs: number }, ms: number): void => {
    times.push({
      what,
      'per second': Math.round(perSecond),
      'µs of Redis': Number(serverUs.toFixed(2)),
      'ms a call': Number(ms.toFixed(2)),
    });
    console.error(what, Math.round(perSecond), serverUs.toFixed(2), ms);
  };

  // The document's way, one round trip for each command, as many callers.
  const naive = async (count: number): Promise<{ perSecond: number; serverUs: number }> => {
    let next = 0;
    const before = await server.counters();
    const startMs = performance.now();
    const loop = async (): Promise<void> => {
      while (next < count) if ((await eye.sadd('likes_users', userOf(next++))) === 1) await eye.incr('likes_count');
    };
    await Promise.all(Array.from({ length: PARALLEL }, loop));
    const seconds = (performance.now() - startMs) / 1000;
    return { perSecond: count / seconds, serverUs: (((await server.counters()).cpuS - before.cpuS) / count) * 1e6 };
  };
  await server.clear();
  const empty = await info('used_memory');
  time('SADD, INCR: no message, nothing stored', await naive(many), await callMs());
  memory.push({
    what: 'a set of users (SADD)',
    likes: many,
    'bytes a like': ((await info('used_memory')) - empty) / many,
  });

  // A post that grows from nothing.
  await fresh();
  const start = await info('used_memory');
  await likes!.set(POST, 'first', true);
  await like(-20_000, 20_000);
  time('a new user, small post', await like(0, many), await callMs());
  memory.push({
    what: 'unsettled, and for 10 s after: record and stream',
    likes: many + 20_000,
    'bytes a like': ((await info('used_memory')) - start) / (many + 20_000),
  });

  // Filled as src/social/likes/filler.ts does; a filter that grows with its likes is the same.
  await fresh();
  const before = await info('used_memory');
  ledger.stored(POST, ['first']);
  await likes!.set(POST, 'first', true);
  await store!.beginFilter(POST, 'token', users);
  const startMs = performance.now();
  let worst = 0;
  for (let from = 0; from < users; from += 1000) {
    const some = Array.from({ length: Math.min(1000, users - from) }, (_, at) => userOf(from + at));
    if (!(await store!.fillFilter(POST, 'token', some, from + 1000 >= users))) throw new Error('the filter was lost');
    if ((from + 1000) % (users / 50) > 0) continue;
    const bytes = ((await info('used_memory')) - before) / (from + 1000);
    if (from + 1000 >= users / 10) worst = Math.max(worst, bytes);
  }
  const seconds = (performance.now() - startMs) / 1000;
  const bytes = ((await info('used_memory')) - before) / users;
  memory.push({ what: 'settled: the filter, and the subject', likes: users, 'bytes a like': bytes });
  memory.push({ what: 'the same, at worst on the way from a tenth of them', likes: users, 'bytes a like': worst });
  times.push({
    what: 'filling the filter',
    'per second': Math.round(users / seconds),
    'ms a call': Number((await callMs()).toFixed(2)),
  });
  time(`a new user, beside ${users} others`, await like(users, many), await callMs());
  ledger.likedBefore = () => true;
  time('somebody who liked it: asked about, and decided', await like(0, many), await callMs());
  time('the same again: there is a record', await like(0, many), await callMs());

  likes!.close();
  store!.close();
  eye.disconnect();
  return { memory, times };
}
