// Compares orders from admission to commit through each pipe with publishing and consuming them one by one, as the sources do.
import { cleanUpServers } from '../test/support/servers/clean-up.ts';
import { kafkaAvailable, startKafka } from '../test/support/servers/kafka.ts';
import { startMariadb } from '../test/support/servers/mariadb.ts';
import { rabbitmqAvailable, startRabbitmq } from '../test/support/servers/rabbitmq.ts';
import { startRedis } from '../test/support/servers/redis.ts';
import type { FloorAsk } from './pipe/floor.ts';
import { type Figure, floor, MODERATE, measure, type Size } from './pipe/measure.ts';
import { alone, type Broker, oneByOne, ours, type Target, type World } from './pipe/targets.ts';
import { median, report } from './support.ts';

/**
 * Measured from sending the first admission to the commit of the last order, by the counts in the items' rows. Load, worker,
 * Redis, broker and MariaDB are separate processes. If the ledger does not contain every order exactly once after a
 * measurement, the run fails.
 */
const TARGET = 20;
const SALES = 8;

const FLOORS: { readonly name: string; readonly ask: Omit<FloorAsk, 'durationMs'> }[] = [
  { name: 'bare inserts, batches of 1024, 2 at a time', ask: { bare: true, size: 1024, writers: 2 } },
  { name: 'commitOrders, batches of 512, 2 at a time', ask: { bare: false, size: 512, writers: 2 } },
  { name: 'commitOrders, batches of 512, 1 at a time', ask: { bare: false, size: 512, writers: 1 } },
];

const SOURCES = 'RabbitMQ one by one, as in the sources: no confirms, 1 listener, prefetch 250';

const KAFKA_EACH = 'Kafka one by one, acks=all, 1 listener, a commit for each';

function targetsOf(rabbitmq: Broker | null, kafka: Broker | null): Target[] {
  const targets = [alone(), ours('Redis Streams', null)];
  if (rabbitmq) targets.push(ours('RabbitMQ', rabbitmq));
  if (kafka) targets.push(ours('Kafka', kafka));
  targets.push(ours(`Redis Streams, ${SALES} sales`, null, SALES));
  if (rabbitmq) targets.push(ours(`RabbitMQ, ${SALES} sales`, rabbitmq, SALES));
  if (kafka) targets.push(ours(`Kafka, ${SALES} sales`, kafka, SALES));
  if (rabbitmq) {
    targets.push(
      oneByOne(SOURCES, rabbitmq),
      oneByOne('RabbitMQ one by one, the same with the sources’ count before each insert', rabbitmq, { counted: true }),
      oneByOne('RabbitMQ one by one, a confirm for each, 1 listener, prefetch 250', rabbitmq, { confirm: true }),
      oneByOne('RabbitMQ one by one, a confirm for each, 1 listener, prefetch 1', rabbitmq, {
        confirm: true,
        prefetch: 1,
      }),
      oneByOne('RabbitMQ one by one, no confirms, no acknowledgements, 1 listener', rabbitmq, { autoAck: true }),
      oneByOne('RabbitMQ one by one, no confirms, 4 listeners', rabbitmq, { consumers: 4 }),
      oneByOne('RabbitMQ one by one, no confirms, 16 listeners', rabbitmq, { consumers: 16 }),
    );
  }
  if (kafka) {
    targets.push(
      // A single commit takes Kafka 5 ms, because its coordinator waits for others to write with it.
      oneByOne(KAFKA_EACH, kafka, { confirm: true }, 0.3),
      oneByOne('Kafka one by one, acks=all, 1 listener, commits in the background', kafka, {
        confirm: true,
        autoAck: true,
      }),
      oneByOne('Kafka one by one, acks=all, 4 partitions and listeners, commits in the background', kafka, {
        confirm: true,
        autoAck: true,
        consumers: 4,
      }),
    );
  }
  return targets;
}

interface Taken {
  readonly target: Target;
  readonly figures: Figure[];
}

const rounded = (value: number, digits = 0): number => Number(value.toFixed(digits));

function rateOf({ figures }: Taken): number[] {
  return figures.map(({ perSecond }) => perSecond);
}

/** The median ratio over the rounds that contain both. */
function ratio(figures: readonly number[], to: readonly number[]): number {
  return median(figures.slice(0, to.length).map((figure, round) => figure / to[round]!));
}

export async function run(args: string[]): Promise<void> {
  const quick = args.includes('--quick');
  const option = (name: string): string | undefined =>
    args.find((arg) => arg.startsWith(`--${name}=`))?.slice(name.length + 3);
  const only = option('only');
  const profiles = option('profile') ?? null;
  const rounds = Number(option('rounds') ?? (quick ? 1 : 3));
  const durationMs = quick ? 700 : 2000;
  const [batched, single]: Size[] = quick
    ? [
        { warmUp: 10_000, orders: 30_000, latencyMs: 1200 },
        { warmUp: 200, orders: 1000, latencyMs: 1200 },
      ]
    : [
        { warmUp: 20_000, orders: 60_000, latencyMs: 3000 },
        { warmUp: 300, orders: 2500, latencyMs: 3000 },
      ];

  const skipped: string[] = [];
  const brokerOf = async (
    name: Broker['name'],
    available: boolean,
    start: () => Promise<{ url: string; pid: number }>,
  ) => {
    if (!available) {
      skipped.push(`${name}: not on this machine`);
      return null;
    }
    const { url, pid } = await start();
    return { name, url, pid };
  };
  const world: World = {
    redis: await startRedis({ persistence: 'aof', args: ['--appendfsync', 'everysec'] }),
    mariadb: await startMariadb({ args: ['--innodb-buffer-pool-size=1G', '--innodb-log-file-size=512M'] }),
    profiles,
  };
  const rabbitmq = await brokerOf('rabbitmq', rabbitmqAvailable, startRabbitmq);
  const kafka = await brokerOf('kafka', kafkaAvailable, startKafka);
  for (const line of skipped) console.error(`skipped: ${line}`);

  const taken: Taken[] = targetsOf(rabbitmq, kafka)
    .filter(({ name }) => only === undefined || new RegExp(only, 'i').test(name))
    .map((target) => ({ target, figures: [] }));
  const bestOneByOne = (broker: string): Taken | undefined =>
    taken
      .filter(({ target, figures }) => target.oneByOne && target.broker?.name === broker && figures.length > 0)
      .reduce<Taken | undefined>((a, b) => (!a || median(rateOf(b)) > median(rateOf(a)) ? b : a), undefined);
  const floors = FLOORS.map(({ name, ask }) => ({ name: `ledger alone: ${name}`, ask, perSecond: [] as number[] }));
  const say = (name: string, perSecond: number): void => console.error(`  ${name}: ${rounded(perSecond)}/s`);
  for (let round = 1; round <= rounds; round++) {
    console.error(`round ${round} of ${rounds}`);
    for (const { name, ask, perSecond } of floors) {
      perSecond.push(await floor(world, { ...ask, durationMs }));
      say(name, perSecond.at(-1)!);
    }
    const others = new Set([SOURCES, bestOneByOne('rabbitmq')?.target.name, bestOneByOne('kafka')?.target.name]);
    // Every other round runs backwards, so that the place in a round affects all alike.
    for (const { target, figures } of round % 2 === 1 ? taken : taken.toReversed()) {
      const { name, part } = target;
      // Settings that were far from the best in the first round are skipped, and so is their latency.
      if (round > 1 && target.oneByOne && !others.has(name)) continue;
      const size = target.oneByOne ? single! : batched!;
      const latencyToo =
        round === 1 && profiles === null && (!target.oneByOne || name === SOURCES || name === KAFKA_EACH);
      const orders = size.orders * part;
      const figure = await measure(world, target, { ...size, orders, latencyMs: latencyToo ? size.latencyMs : null });
      figures.push(figure);
      say(name, figure.perSecond);
    }
  }

  const limit = floors.reduce((a, b) => (median(b.perSecond) > median(a.perSecond) ? b : a)).perSecond;
  const sources = taken.find(({ target }) => target.name === SOURCES);
  const row = (what: string, perSecond: number[], figures: readonly Figure[] = []) => ({
    what,
    'orders/s': rounded(median(perSecond)),
    '× the sources': sources ? rounded(ratio(perSecond, rateOf(sources)), 2) : null,
    'of the ledger': rounded(ratio(perSecond, limit), 3),
    'orders per transaction': figures.length > 0 ? (figures.at(-1)!.batch ?? 1) : null,
    'per parcel': figures.at(-1)?.parcel ?? null,
    'commits at a time': figures.at(-1)?.commits ? rounded(median(figures.map(({ commits }) => commits!)), 2) : null,
  });
  const rates = [
    ...floors.map(({ name, perSecond }) => row(name, perSecond)),
    ...taken.map((each) => row(each.target.name, rateOf(each), each.figures)),
  ];
  const cpu = taken.map(({ target, figures }) => {
    const parts = Object.keys(figures[0]!.cpuUs).map((part): [string, number] => {
      return [part, rounded(median(figures.map(({ cpuUs }) => cpuUs[part]!)), 1)];
    });
    return {
      what: target.name,
      ...Object.fromEntries(parts),
      all: rounded(
        parts.reduce((sum, [, us]) => sum + us, 0),
        1,
      ),
    };
  });
  const latencies = taken.flatMap(({ target, figures }) => {
    const { latency } = figures[0]!;
    return latency === null ? [] : [{ what: target.name, ...latency }];
  });
  const targets = taken
    .filter(({ target }) => !target.oneByOne && target.broker)
    .flatMap((each) => {
      const others: [string, Taken | undefined, number | null][] = [
        [
          'as in the sources, on RabbitMQ',
          sources,
          each.target.broker!.name === 'rabbitmq' && each.target.gates === 1 ? TARGET : null,
        ],
        [`one by one at its best, on ${each.target.broker!.name}`, bestOneByOne(each.target.broker!.name), null],
      ];
      return others.flatMap(([words, other, atLeast]) => {
        if (!other) return [];
        const figure = ratio(rateOf(each), rateOf(other));
        const verdict = atLeast === null ? 'no target' : figure >= atLeast ? 'reached' : 'missed';
        const target = `${each.target.name}: ${atLeast === null ? '' : `at least ${atLeast} `}× ${words}`;
        return [{ target, figure: figure.toFixed(1), verdict }];
      });
    });
  report(
    'pipe',
    {
      'admission to commit': rates,
      'CPU µs for one order': cpu,
      [`latency from admission to commit at ${MODERATE * 100} % of what each can take`]: latencies,
      targets,
    },
    [
      'machines of their own: load, worker, Redis, broker and MariaDB share two cores here, and so does the ledger alone with its writer',
      'a network, and brokers of several nodes: a confirm is that of one disk',
      'Kafka as in production: its Java compiles for a life of seconds here, and it does not sync to disk for each record, as is its default',
      'several workers: one sale is one partition, and one worker has it',
      'HTTP (see shop), outages and restarts (see the tests)',
      'the sources’ lock for each order and, but for one row, their count before each insert: left out in their favour',
      ...skipped.map((line) => `skipped: ${line}`),
    ],
    {
      ...{ rounds, sizes: { batched, single } },
      figures: taken.map(({ target, figures }) => ({ what: target.name, figures })),
      floors: floors.map(({ name, perSecond }) => ({ what: name, perSecond })),
    },
  );
  await cleanUpServers();
  process.exit(0);
}
