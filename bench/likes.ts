// Compares likes with the document's two ways and with bare batches, on one Redis and one MariaDB, in one run.
import { Redis } from 'ioredis';
import { createConnection } from 'mysql2/promise';
import { systemRuntime } from '../src/base/runtime.ts';
import { openSqlLedger } from '../src/ledger/drivers/open.ts';
import { cleanUpServers } from '../test/support/servers/clean-up.ts';
import { kafkaAvailable, startKafka } from '../test/support/servers/kafka.ts';
import { startMariadb } from '../test/support/servers/mariadb.ts';
import { startRedis } from '../test/support/servers/redis.ts';
import { CpuTimes } from './likes/cpu.ts';
import { scripts } from './likes/memory.ts';
import { Ours } from './likes/ours.ts';
import { atSize } from './likes/sizes.ts';
import type { Done, SourcesJob } from './likes/sources.ts';
import { Child } from './pipe/child.ts';
import { median, report } from './support.ts';

const PARALLEL = 1024;
const TRANSACTIONS_TRIED = [4, 16, 64];
const waysOf = (batched: boolean, tried: readonly number[]) =>
  [true, false].flatMap((autoPipelining) => tried.map((parallel) => ({ parallel, autoPipelining, batched })));
/** A request to Kafka for each event, as the document's line reads in our client; and events in batches, as Java's client sends them. */
const EACH_TRIED = waysOf(false, [16, 64]);
const BATCHED_TRIED = waysOf(true, [256, 1024]);
type EventsWay = (typeof EACH_TRIED)[number];
const BARE_TRIED = [512, 2048].flatMap((size) => [1, 2].map((writers) => ({ size, writers })));
type BareWay = (typeof BARE_TRIED)[number];
const CROWDS = [1, 1000] as const;

const TARGETS = { accepted: 3, ofBare: 0.5, overTransactions: { 1: 20, 1000: 10 }, page: 3, bytes: 16 } as const;

/** Likes a second, one figure a round. */
interface Figures {
  /** §2, settled. */
  transactions: number[];
  /** §3, accepted: Redis has the like, Kafka has confirmed the event. Empty without a Kafka. */
  each: number[];
  batched: number[];
  /** Ours, accepted, without and with a worker beside. */
  accepted: number[];
  acceptedBeside: number[];
  bare: number[];
  /** Ours, from the first like to the last commit; and out of a backlog. */
  settled: number[];
  drained: number[];
}

interface Ways {
  readonly transactions: number;
  readonly each: EventsWay | null;
  readonly batched: EventsWay | null;
  readonly bare: BareWay;
}

const rounded = (value: number, digits = 0): number => Number(value.toFixed(digits));

/** The median of the rounds' ratios. */
function ratio(ours: readonly number[], theirs: readonly number[]): number {
  return median(theirs.map((figure, round) => ours[round]! / figure));
}

async function best<T>(what: string, tried: readonly T[], measure: (one: T) => Promise<number>): Promise<T> {
  const figures: [T, number][] = [];
  for (const one of tried) {
    figures.push([one, await measure(one)]);
    console.error(`  ${what} ${JSON.stringify(one)}: ${rounded(figures.at(-1)![1])}/s`);
  }
  return figures.reduce((a, b) => (b[1] > a[1] ? b : a))[0];
}

export async function run(args: string[]): Promise<void> {
  const quick = args.includes('--quick');
  const option = (name: string): string | undefined =>
    args.find((arg) => arg.startsWith(`--${name}=`))?.slice(name.length + 3);
  const sizes = (option('sizes') ?? (quick ? '10000,1000000' : '10000,1000000,10000000')).split(',').map(Number);
  const rounds = Number(option('rounds') ?? (quick ? 2 : 5));
  const profile = option('profile') ?? null;
  const [tryMs, roundMs] = quick ? [400, 1000] : [600, 2000];
  /** Below the bound of likes that may wait in one shard. */
  const [accepted, settled] = quick ? [30_000, 30_000] : [40_000, 50_000];

  const broker = kafkaAvailable ? await startKafka() : null;
  const kafka = broker?.url ?? null;
  // As durable as in production. Rewriting the file of the log would disturb one measurement and not another.
  const everySecond = ['--appendfsync', 'everysec', '--auto-aof-rewrite-percentage', '0'];
  const redis = await startRedis({ persistence: 'aof', args: everySecond });
  const mariadb = await startMariadb({ args: ['--innodb-buffer-pool-size=3G', '--innodb-log-file-size=1G'] });
  const database = async (): Promise<string> => {
    const url = await mariadb.createDatabase();
    await (await openSqlLedger(url, systemRuntime(), { migrate: true, exclusive: false })).close();
    return url;
  };
  const cpu = new CpuTimes({ redis: redis.pid, database: mariadb.pid, kafka: broker?.pid });
  const ours = await Ours.start({ cpu, redis: redis.url, database: await database(), profile });
  const theirs = await mariadb.createDatabase();
  const job: SourcesJob = { redis: redis.url, kafka, theirs, ours: ours.database };
  const sources = await Child.start('../likes/sources.ts', job);
  const ids = async (posts: number): Promise<string[]> => await ours.createPosts(posts);

  const alone = async (what: string, posts: number, ask: string, about: object): Promise<number> => {
    const fresh = await ids(posts);
    const measure = async () => {
      const { perSecond, count } = await sources.ask<Done>(ask, { posts: fresh, ...about });
      return { value: perSecond, count };
    };
    return cpu.of(what, posts, { 'load or writer': sources.pid }, measure);
  };
  const transactions = async (posts: number, parallel: number, durationMs: number): Promise<number> =>
    alone('§2', posts, 'transactions', { parallel, durationMs });
  const events = async (posts: number, way: EventsWay, count: number): Promise<number> =>
    alone(way.batched ? '§3, batched' : '§3', posts, 'events', { ...way, count });
  const bare = async (posts: number, way: BareWay, durationMs: number): Promise<number> =>
    alone('bare upserts', posts, 'bare', { ...way, durationMs });

  console.error('trying settings…');
  const crowds: { posts: 1 | 1000; ways: Ways; figures: Figures }[] = [];
  for (const posts of CROWDS) {
    const tryEvents = async (tried: readonly EventsWay[], count: number): Promise<EventsWay | null> =>
      kafka === null ? null : best(`§3, ${posts} posts`, tried, (way) => events(posts, way, count));
    const ways: Ways = {
      transactions: await best(`§2, ${posts} posts`, TRANSACTIONS_TRIED, (one) => transactions(posts, one, tryMs)),
      each: await tryEvents(EACH_TRIED, accepted / 10),
      batched: await tryEvents(BATCHED_TRIED, accepted),
      bare: await best(`bare, ${posts} posts`, BARE_TRIED, (way) => bare(posts, way, tryMs)),
    };
    const none = { transactions: [], each: [], batched: [], accepted: [], acceptedBeside: [] };
    crowds.push({ posts, ways, figures: { ...none, bare: [], settled: [], drained: [] } });
  }

  // What trying has cost does not count.
  cpu.clear();
  const pages: { hot: boolean; ours: number; bare: number; ours99: number; bare99: number }[] = [];
  for (let round = 1; round <= rounds; round++) {
    console.error(`round ${round} of ${rounds}`);
    for (const { posts, ways, figures } of crowds) {
      const turns = [
        async () => figures.transactions.push(await transactions(posts, ways.transactions, roundMs)),
        async () => figures.bare.push(await bare(posts, ways.bare, roundMs)),
        async () => ways.each && figures.each.push(await events(posts, ways.each, accepted / 5)),
        async () => {
          const seen = await ours.settle({ posts: await ids(posts), count: settled, parallel: PARALLEL });
          figures.acceptedBeside.push(seen.accepted);
          figures.settled.push(seen.settled);
        },
        async () => ways.batched && figures.batched.push(await events(posts, ways.batched, accepted)),
        async () => {
          const seen = await ours.acceptThenDrain({ posts: await ids(posts), count: accepted, parallel: PARALLEL });
          figures.accepted.push(seen.accepted);
          figures.drained.push(seen.drained);
        },
      ];
      // Rotated, so that growing tables and the machine's mood affect all sides alike.
      for (let at = 0; at < turns.length; at++) await turns[(at + round) % turns.length]!();
      const last = Object.entries(figures).map(([name, all]: [string, number[]]) => [name, Math.round(all.at(-1)!)]);
      console.error(posts, JSON.stringify(Object.fromEntries(last)));
    }
    for (const hot of [true, false]) pages.push({ hot, ...(await ours.page(hot, quick ? 200 : 500)) });
  }
  await sources.end();
  await ours.end();

  const latencies: Record<string, unknown>[] = [];
  const memory: Record<string, unknown>[] = [];
  const eye = new Redis(redis.url);
  await eye.flushall();
  const place = { redis: redis.url, database: await database() };
  const connection = await createConnection(place.database);
  for (const size of sizes) {
    const seen = await atSize({ ...place, eye, connection }, size, quick ? 200 : 500);
    latencies.push(...seen.latencies);
    memory.push(seen.memory);
  }
  await connection.end();
  eye.disconnect();
  const beside = await scripts(Number(option('likes') ?? 1_000_000), quick ? 50_000 : 100_000);
  memory.push(
    ...beside.memory.map(({ what, likes, 'bytes a like': bytes }) => ({ what, likes, 'bytes a like': bytes })),
  );

  const rows = crowds.flatMap(({ posts, ways, figures }) => {
    const row = (what: string, all: readonly number[]) => ({
      posts,
      what,
      'likes/s': rounded(median([...all])),
      '× §2': rounded(ratio(all, figures.transactions), 2),
      '× §3': kafka && rounded(ratio(all, figures.each), 2),
      '× §3, batched': kafka && rounded(ratio(all, figures.batched), 2),
      'of bare': rounded(ratio(all, figures.bare), 2),
    });
    return [
      row(`§2: a transaction each, ${ways.transactions} at a time`, figures.transactions),
      ...(ways.each ? [row(`§3: ${wordsOf(ways.each)}`, figures.each)] : []),
      ...(ways.batched ? [row(`§3, batched: ${wordsOf(ways.batched)}`, figures.batched)] : []),
      row('ours: accepted, no worker (as in §3)', figures.accepted),
      row('ours: accepted, with a worker beside', figures.acceptedBeside),
      row(`bare upserts, ${ways.bare.size} a batch, ${ways.bare.writers} at a time`, figures.bare),
      row('ours: settled, first like to last commit', figures.settled),
      row('ours: settled, out of a backlog', figures.drained),
    ];
  });
  const pageOf = (hot: boolean) => {
    const seen = pages.filter((page) => page.hot === hot);
    const per = (pick: (page: (typeof pages)[number]) => number): number => rounded(median(seen.map(pick)), 3);
    return {
      what: hot ? '50 posts that are in Redis' : '50 posts that are not',
      'ours p50 ms': per((page) => page.ours),
      'p99 ms': per((page) => page.ours99),
      'bare p50 ms': per((page) => page.bare),
      'bare p99 ms': per((page) => page.bare99),
      '× bare': rounded(median(seen.map((page) => page.ours / page.bare)), 2),
    };
  };
  const page = [pageOf(true), pageOf(false)];
  const targets: Record<string, unknown>[] = [];
  const judge = (target: string, figure: number, atLeast: number | null, atMost: number | null): void => {
    const judged = atLeast !== null || atMost !== null;
    const holds = (atLeast === null || figure >= atLeast) && (atMost === null || figure <= atMost);
    targets.push({ target, figure: rounded(figure, 2), verdict: judged ? (holds ? 'holds' : 'missed') : 'no target' });
  };
  for (const { posts, figures } of crowds) {
    const { accepted, settled, each, batched, bare, transactions } = figures;
    const name = posts === 1 ? 'one post' : `${posts} posts`;
    const over = TARGETS.overTransactions[posts];
    if (kafka !== null) {
      const least = TARGETS.accepted;
      judge(`${name}: accepted, × §3 with a request an event`, ratio(accepted, each), null, null);
      judge(`${name}: accepted ≥ ${least} × §3 at its best, events in batches`, ratio(accepted, batched), least, null);
    }
    judge(`${name}: settled ≥ ${TARGETS.ofBare} of the bare batch`, ratio(settled, bare), TARGETS.ofBare, null);
    judge(`${name}: settled ≥ ${over} × §2`, ratio(settled, transactions), over, null);
  }
  for (const each of page)
    judge(`${each.what}: ≤ ${TARGETS.page} × one bare IN (50)`, each['× bare'], null, TARGETS.page);
  const largest = memory[sizes.length - 1]!;
  judge(
    `Redis' bytes a settled like ≤ ${TARGETS.bytes} at ${largest.likes}`,
    largest['bytes a like'] as number,
    null,
    TARGETS.bytes,
  );

  report(
    'likes',
    {
      'likes a second': rows,
      'CPU µs a like, by process': cpu.rows(),
      'a page of 50 posts, one at a time': page,
      'ms of one like and of `liked`, one at a time, by likes of the post': latencies,
      'Redis’ memory': memory,
      'Redis’ time, rows answered from memory': beside.times,
      targets,
    },
    [
      'machines of their own: load, worker, Redis, Kafka and MariaDB share the cores here; the bare batches have them with MariaDB alone',
      'the consumer of §3, which the document does not show: its likes are accepted and never stored',
      'HTTP, a network, several workers or API processes, likes through RabbitMQ or Kafka',
      'likes that are taken back, comments; rows larger than the memory of MariaDB',
      'latency under load: the callers of those tables come one at a time',
      ...(kafka === null ? ['§3: no Kafka on this machine'] : []),
    ],
    { rounds, sizes, crowds, pages },
  );
  await cleanUpServers();
  process.exit(0);
}

function wordsOf({ parallel, autoPipelining, batched }: EventsWay): string {
  return `${parallel} at a time${autoPipelining ? ', auto-pipelined' : ''}, ${batched ? 'events in batches' : 'a request an event'}`;
}
