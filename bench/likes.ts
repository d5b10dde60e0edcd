// Compares likes with the document's two ways and with bare batches, on one Redis and one MariaDB, in one run.
import { Redis } from 'ioredis';
import { createConnection } from 'mysql2/promise';
import { systemRuntime } from '../src/base/runtime.ts';
import { openSqlLedger } from '../src/ledger/drivers/open.ts';
import { cleanUpServers } from '../test/support/servers/clean-up.ts';
import { kafkaAvailable, startKafka } from '../test/support/servers/kafka.ts';
import { startMariadb } from '../test/support/servers/mariadb.ts';
import { startRedis } from '../test/support/servers/redis.ts';
import { scripts } from './likes/memory.ts';
import { Ours } from './likes/ours.ts';
import { atSize } from './likes/sizes.ts';
import type { SourcesJob } from './likes/sources.ts';
import { Child } from './pipe/child.ts';
import { median, report } from './support.ts';

const PARALLEL = 1024;
const TRANSACTIONS_TRIED = [1, 4, 16, 64];
const EVENTS_TRIED = [true, false].flatMap((batched) =>
  [true, false].flatMap((autoPipelining) =>
    [16, 64, 256, 1024].map((parallel) => ({ parallel, autoPipelining, batched })),
  ),
);
const BARE_TRIED = [512, 1024, 2048].flatMap((size) => [1, 2, 3].map((writers) => ({ size, writers })));
const CROWDS = [1, 1000];

const TARGETS = { accepted: 3, ofBare: 0.5, overTransactions: { 1: 20, 1000: 10 }, page: 3, bytes: 16 } as const;

interface Figures {
  readonly posts: number;
  /** §2, settled a second. */
  transactions: number[];
  /** §3, accepted a second: Redis has it and Kafka has confirmed the event. */
  events: number[];
  /** Accepted a second, without and with a worker beside. */
  accepted: number[];
  acceptedBeside: number[];
  bare: number[];
  settled: number[];
  drained: number[];
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
  const [tryMs, roundMs] = quick ? [400, 1000] : [800, 2500];
  /** Below the bound of likes that may wait in one shard. */
  const [accepted, settled] = quick ? [30_000, 30_000] : [40_000, 100_000];

  const kafka = kafkaAvailable ? (await startKafka()).url : null;
  // As durable as in production. Rewriting the file of the log would disturb one measurement and not another.
  const everySecond = ['--appendfsync', 'everysec', '--auto-aof-rewrite-percentage', '0'];
  const redis = await startRedis({ persistence: 'aof', args: everySecond });
  const mariadb = await startMariadb({ args: ['--innodb-buffer-pool-size=3G', '--innodb-log-file-size=1G'] });
  const database = async (): Promise<string> => {
    const url = await mariadb.createDatabase();
    await (await openSqlLedger(url, systemRuntime(), { migrate: true, exclusive: false })).close();
    return url;
  };
  const ours = await Ours.start({ redis: redis.url, database: await database(), profile });
  const theirs = await mariadb.createDatabase();
  const job: SourcesJob = { redis: redis.url, kafka, theirs, ours: ours.database };
  const sources = await Child.start('../likes/sources.ts', job);
  const ids = async (posts: number): Promise<string[]> => await ours.createPosts(posts);

  console.error('trying settings…');
  const ways = new Map<
    number,
    { transactions: number; bare: (typeof BARE_TRIED)[number]; events: (typeof EVENTS_TRIED)[number] | null }
  >();
  for (const posts of CROWDS) {
    ways.set(posts, {
      transactions: await best(`§2, ${posts} posts`, TRANSACTIONS_TRIED, async (parallel) =>
        sources.ask('transactions', { posts: await ids(posts), parallel, durationMs: tryMs }),
      ),
      events:
        kafka === null
          ? null
          : await best(`§3, ${posts} posts`, EVENTS_TRIED, async (way) =>
              sources.ask('events', {
                posts: await ids(posts),
                ...way,
                count: way.batched ? accepted / 2 : accepted / 5,
              }),
            ),
      bare: await best(`bare, ${posts} posts`, BARE_TRIED, async (way) =>
        sources.ask('bare', { posts: await ids(posts), ...way, durationMs: tryMs }),
      ),
    });
  }

  const figures = CROWDS.map(
    (posts): Figures => ({
      ...{ posts, transactions: [], events: [], accepted: [], acceptedBeside: [] },
      ...{ bare: [], settled: [], drained: [] },
    }),
  );
  const pages: { hot: boolean; ours: number; bare: number; ours99: number; bare99: number }[] = [];
  for (let round = 1; round <= rounds; round++) {
    console.error(`round ${round} of ${rounds}`);
    for (const figure of figures) {
      const { posts } = figure;
      const way = ways.get(posts)!;
      const turns: [string, () => Promise<void>][] = [
        [
          'transactions',
          async () => {
            const ask = { posts: await ids(posts), parallel: way.transactions, durationMs: roundMs };
            figure.transactions.push(await sources.ask('transactions', ask));
          },
        ],
        [
          'bare',
          async () => {
            figure.bare.push(await sources.ask('bare', { posts: await ids(posts), ...way.bare, durationMs: roundMs }));
          },
        ],
        [
          'events',
          async () => {
            if (way.events === null) return;
            figure.events.push(
              await sources.ask('events', { posts: await ids(posts), ...way.events, count: accepted }),
            );
          },
        ],
        [
          'accepted',
          async () => {
            const seen = await ours.acceptThenDrain({ posts: await ids(posts), count: accepted, parallel: PARALLEL });
            figure.accepted.push(seen.accepted);
            figure.drained.push(seen.drained);
          },
        ],
        [
          'settled',
          async () => {
            const seen = await ours.settle({ posts: await ids(posts), count: settled, parallel: PARALLEL });
            figure.acceptedBeside.push(seen.accepted);
            figure.settled.push(seen.settled);
          },
        ],
      ];
      // Rotated, so that growing tables and the machine's mood affect all sides alike.
      for (let at = 0; at < turns.length; at++) await turns[(at + round) % turns.length]![1]();
      const last = Object.entries(figure).map(([name, all]) => [name, Array.isArray(all) ? rounded(all.at(-1)) : all]);
      console.error(JSON.stringify(Object.fromEntries(last)));
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
  const beside = await scripts(Number(option('likes') ?? 1_000_000), quick ? 50_000 : 200_000);
  memory.push(
    ...beside.memory.map(({ what, likes, 'bytes a like': bytes }) => ({ what, likes, 'bytes a like': bytes })),
  );

  const rows = figures.flatMap((figure) => {
    const { posts, transactions, events, bare } = figure;
    const way = ways.get(posts)!;
    const row = (what: string, all: readonly number[]) => ({
      posts,
      what,
      'likes/s': rounded(median([...all])),
      '× §2': rounded(ratio(all, transactions), 2),
      '× §3': way.events && rounded(ratio(all, events), 2),
      'of bare': rounded(ratio(all, bare), 2),
    });
    return [
      row(`§2: a transaction each, ${way.transactions} at a time`, transactions),
      ...(way.events ? [row(`§3: SADD, INCR, Kafka event; ${wordsOf(way.events)}`, events)] : []),
      row('ours: accepted, no worker (as in §3)', figure.accepted),
      row('ours: accepted, with a worker beside', figure.acceptedBeside),
      row(`bare upserts, ${way.bare.size} a batch, ${way.bare.writers} at a time`, bare),
      row('ours: settled, from the first like to the last commit', figure.settled),
      row('ours: settled, out of a backlog', figure.drained),
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
  const judge = (target: string, figure: number | null, atLeast: number | null, atMost: number | null): void => {
    if (figure === null) return;
    const holds = (atLeast === null || figure >= atLeast) && (atMost === null || figure <= atMost);
    targets.push({ target, figure: rounded(figure, 2), verdict: holds ? 'holds' : 'missed' });
  };
  for (const { posts, ...all } of figures) {
    const name = posts === 1 ? 'one post' : `${posts} posts`;
    const over = TARGETS.overTransactions[posts as 1 | 1000];
    if (kafka !== null) {
      judge(`${name}: accepted ≥ ${TARGETS.accepted} × §3`, ratio(all.accepted, all.events), TARGETS.accepted, null);
    }
    judge(`${name}: settled ≥ ${TARGETS.ofBare} of the bare batch`, ratio(all.settled, all.bare), TARGETS.ofBare, null);
    judge(`${name}: settled ≥ ${over} × §2`, ratio(all.settled, all.transactions), over, null);
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
    { rounds, sizes, figures, pages },
  );
  await cleanUpServers();
  process.exit(0);
}

function wordsOf({ parallel, autoPipelining, batched }: (typeof EVENTS_TRIED)[number]): string {
  return `${parallel} at a time${autoPipelining ? ', auto-pipelined' : ''}, ${batched ? 'events in batches' : 'a request an event'}`;
}
