import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { RetryableError } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { saleChannel } from '../../src/model/channel.ts';
import { ENTRY } from '../../src/model/formats.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { BrokerPipe, type BrokerPipeCounters, type BrokerPipeOptions } from '../../src/pipe/brokers/pipe.ts';
import type { Carrier } from '../../src/pipe/brokers/port.ts';
import { ORDERS } from '../../src/pipe/orders.ts';
import { partitionOf } from '../../src/pipe/parcel.ts';
import type { Pipe, SharedPipe } from '../../src/pipe/port.ts';
import { RedisStreamsPipe } from '../../src/pipe/redis-streams/pipe.ts';
import {
  BROKER_KINDS,
  type Broker,
  type BrokerKind,
  type BrokerServer,
  type BrokerTool,
  carrierAt,
  PARTITIONS,
  prepare,
} from '../support/broker-kinds.ts';
import { brokerPipe, brokerPipeOf } from '../support/broker-pipe.ts';
import { below, oneOf, seedOf } from '../support/crowd-record.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import { likeEvent, orderMessage, StreamFeeder, subjectIn, TEST_LIKES } from '../support/streams.ts';

/** One or more workers in this process, on a broker that loses, repeats, restarts and delivers messages that are not ours. */

type Options = Partial<BrokerPipeOptions<OrderMessage>>;
type Lead = BrokerPipeOptions<OrderMessage>['lead'];

const CUTS_MS = LONG ? 20_000 : 2_500;
const runtime = systemRuntime();
const servers = new Map<BrokerKind, Broker>();
let redis: RedisServer;
let client: Redis;
let prefix: string;
let feeder: StreamFeeder;
let lastId: number;
const ends: (() => Promise<unknown>)[] = [];

const idsOf = (batch: readonly OrderMessage[]): string[] => batch.map(({ orderId }) => orderId);
const sorted = (ids: Iterable<string>): string[] => [...ids].toSorted((one, other) => Number(one) - Number(other));
/** Without duplicates, in the order of the first occurrence. */
const firsts = (ids: readonly string[]): string[] => [...new Set(ids)];

function messages(count: number, over: Partial<OrderMessage> = {}): OrderMessage[] {
  return Array.from({ length: count }, () => orderMessage(String(++lastId), over));
}

function collect(pipe: Pipe<OrderMessage>): string[] {
  const seen: string[] = [];
  pipe.consume(async (batch) => void seen.push(...idsOf(batch)));
  return seen;
}

async function worker(kind: BrokerKind, options: Options = {}): Promise<BrokerPipe<OrderMessage>> {
  const carrier = options.carrier ?? (await carrierAt(kind, servers.get(kind)!, prefix));
  const { pipe, end } = brokerPipe(redis.url, prefix, () => carrier, options);
  ends.push(end);
  return pipe;
}

/** Leads when told to, even if somebody else does. */
function leadership(): { lead: Lead; begin(): void; end(): void } {
  const begun = Promise.withResolvers<void>();
  const over = new AbortController();
  return {
    begin: begun.resolve,
    end: () => over.abort(),
    lead: (_, work) => {
      const done = begun.promise.then(() => work(over.signal));
      return {
        stop: async () => {
          over.abort();
          begun.resolve();
          await done;
        },
      };
    },
  };
}

const always = (): Lead => {
  const { lead, begin } = leadership();
  begin();
  return lead;
};

/** Another sale that shares its partition. */
function neighbourOf(saleId: string): string {
  const partition = partitionOf(saleChannel(saleId), PARTITIONS);
  for (let other = 1; ; other++) {
    if (String(other) !== saleId && partitionOf(saleChannel(String(other)), PARTITIONS) === partition)
      return String(other);
  }
}

function sum(all: readonly BrokerPipeCounters[]): { relayed: number; resent: number; recovered: number } {
  const of = (name: 'relayed' | 'resent' | 'recovered') => all.reduce((total, one) => total + one[name], 0);
  return { relayed: of('relayed'), resent: of('resent'), recovered: of('recovered') };
}

/** The same carrier with another `send`. */
function withSend(carrier: Carrier, send: Carrier['send']): Carrier {
  return new Proxy(carrier, {
    get(target, name) {
      if (name === 'send') return send;
      const value = Reflect.get(target, name, target) as unknown;
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}

describeWithRedis('workers and a broker', () => {
  beforeAll(async () => {
    redis = await startRedis();
    client = new Redis(redis.url);
  });
  afterAll(async () => {
    client?.disconnect();
    await cleanUpServers();
  });
  beforeEach(() => {
    prefix = `b-${runtime.random.secret(6)}`.replaceAll('_', 'x');
    feeder = new StreamFeeder(client, prefix);
    lastId = 0;
  });
  afterEach(async () => {
    await Promise.all(ends.splice(0).map((end) => end()));
  });

  for (const kind of BROKER_KINDS) kind.describe(kind.name, () => suite(kind));

  const [rabbitmq, kafka] = BROKER_KINDS as [BrokerKind, BrokerKind];
  rabbitmq.describe('RabbitMQ beside Kafka', () =>
    kafka.describe('and Redis Streams', () => {
      beforeAll(async () => {
        for (const kind of [rabbitmq, kafka]) if (!servers.has(kind)) servers.set(kind, await kind.shared());
      });
      it('P3: a live shop moves from one pipe to another and back: nothing is lost', moves);
    }),
  );
});

function suite(kind: BrokerKind): void {
  let server: Broker;
  /** The same as a private broker, which the long run kills. */
  let own: BrokerServer;
  let proxy: FaultProxy;
  let tool: BrokerTool;
  let preparedMs: number;
  const lasting = `lasting-${kind.name.toLowerCase()}-${process.pid}`;
  beforeAll(async () => {
    proxy = await startProxy(0);
    if (LONG || !kind.proxied) {
      own = await kind.start(proxy);
      server = own;
    } else {
      server = await kind.shared();
      proxy.target(server.port);
    }
    servers.set(kind, server);
    if (!LONG) return;
    // For the test with the restart, which comes last.
    await prepare(kind, server, lasting);
    preparedMs = performance.now();
  });
  beforeEach(() => {
    tool = kind.tool(server, prefix);
    ends.push(() => tool.close());
  });

  it('P3: what the broker has lost is taken from the stream instead', async () => {
    const pipe = await worker(kind, { probeMs: 300 });
    await pipe.open();
    const lost = messages(50);
    await feeder.writeEach(lost);
    await until('they are sent', 5000, () => pipe.counters.relayed === 50);
    // On a slow machine the relay's first probe may follow them.
    expect(await tool.waiting()).toBeGreaterThanOrEqual(50);
    await tool.lose();
    expect(await tool.waiting()).toBeLessThan(50);
    const seen = collect(pipe);
    expect(await pipe.caughtUp('sale:1', 5000)).toBe(true);
    expect(seen).toEqual(idsOf(lost));
    expect(pipe.counters.recovered).toBe(50);
    // From here on everything is normal.
    const later = messages(20);
    await feeder.writeEach(later);
    expect(await pipe.caughtUp('sale:1', 5000)).toBe(true);
    expect(seen).toEqual(idsOf([...lost, ...later]));
    expect(pipe.counters.recovered).toBe(50);
  });

  it('P3: what a worker has in hand, and what lies behind it, is lost at the broker: each is handled', async () => {
    const pipe = await worker(kind, { probeMs: 300, batchMax: 10 });
    const held = Promise.withResolvers<void>();
    const seen: string[] = [];
    pipe.consume(async (batch) => {
      await held.promise;
      seen.push(...idsOf(batch));
    });
    const sent = messages(200);
    await feeder.writeEach(sent);
    await until('they are sent', 5000, () => pipe.counters.relayed === 200);
    await tool.lose();
    held.resolve();
    expect(await pipe.caughtUp('sale:1', 8000)).toBe(true);
    expect(firsts(seen)).toEqual(idsOf(sent));
    expect(await pipe.depthOf('sale:1')).toBe(0);
  });

  it('P3: queues or topic are deleted while it works: they are made anew, and nothing is lost', async () => {
    const pipe = await worker(kind, { probeMs: 300 });
    const seen = collect(pipe);
    const first = messages(20);
    await feeder.writeEach(first);
    expect(await pipe.caughtUp('sale:1', 5000)).toBe(true);
    await tool.remove();
    const second = messages(20);
    await feeder.writeEach(second);
    expect(await pipe.caughtUp('sale:1', 15_000)).toBe(true);
    expect(firsts(seen)).toEqual(idsOf([...first, ...second]));
    // Soon entries go through the broker again, and are not only found by the probe.
    await until('the broker carries again', 10_000, async () => {
      const { recovered } = pipe.counters;
      const more = messages(20);
      await feeder.writeEach(more);
      expect(await pipe.caughtUp('sale:1', 5000)).toBe(true);
      expect(firsts(seen).slice(-20)).toEqual(idsOf(more));
      return pipe.counters.recovered === recovered;
    });
  });

  it('P3: two relays at the same time make duplicates at most', async () => {
    const pipes = await Promise.all([worker(kind, { lead: always() }), worker(kind, { lead: always() })]);
    const seen = pipes.map((pipe) => collect(pipe));
    const sent = messages(600);
    for (let at = 0; at < sent.length; at += 50) {
      await feeder.writeEach(sent.slice(at, at + 50));
      await sleep(5);
    }
    expect(await pipes[0]!.caughtUp('sale:1', 8000)).toBe(true);
    expect(sorted(new Set(seen.flat()))).toEqual(idsOf(sent));
    expect(pipes[0]!.counters.relayed + pipes[1]!.counters.relayed).toBeGreaterThanOrEqual(600);
    for (const { counters } of pipes) expect(counters).toMatchObject({ recovered: 0, died: 0, retries: 0 });
  });

  it('P3: the relay dies in the middle: the next one sends unconfirmed entries again, and goes on', async () => {
    const real = await carrierAt(kind, server, prefix);
    let carried = 0;
    let unsure = 0;
    const frozen = Promise.withResolvers<void>();
    ends.push(async () => frozen.resolve());
    // The third send reaches the broker, but its confirmation is lost.
    const carrier = withSend(real, async (partition, parcels) => {
      await real.send(partition, parcels);
      if (++carried < 3) return;
      unsure += parcels.length;
      await frozen.promise;
      throw new Error('it was gone');
    });
    const [first, second] = [leadership(), leadership()];
    const gone = await worker(kind, { carrier, lead: first.lead });
    const next = await worker(kind, { lead: second.lead });
    await gone.open();
    await next.open();
    first.begin();
    const sent = messages(600);
    await feeder.writeEach(sent);
    await until('it is in the middle', 5000, () => unsure > 0);
    const { relayed } = gone.counters;
    expect(relayed).toBeGreaterThan(0);
    second.begin();
    // Before anybody receives, because decided entries need not be sent.
    await until('the next one has sent the rest', 5000, () => next.counters.relayed === 600 - relayed);
    expect(next.counters.resent).toBe(unsure);
    const seen = collect(next);
    expect(await next.caughtUp('sale:1', 8000)).toBe(true);
    expect(firsts(seen)).toEqual(idsOf(sent));
    expect(next.counters).toMatchObject({ resent: unsure, recovered: 0 });
  });

  it('P3: a poison message holds up no other, becomes a dead letter, is retried and dropped', async () => {
    const pipe = await worker(kind, { triesMax: 3, retryMs: 150 });
    const poison = new Set(['5', '6']);
    const seen: string[] = [];
    const tries: string[] = [];
    pipe.consume(async (batch) => {
      const bad = batch.filter(({ orderId }) => poison.has(orderId));
      tries.push(...idsOf(bad));
      seen.push(...idsOf(batch).filter((id) => !poison.has(id)));
      return bad.map((message) => ({ message, error: new Error('no such item') }));
    });
    // Other entries of its sale, and of another sale in the same partition.
    const neighbour = neighbourOf('1');
    await feeder.writeEach(messages(10));
    await until('the others are through', 2000, () => seen.length === 8);
    const sinceMs = performance.now();
    const slowest: number[] = [];
    while ((await pipe.letters.list(10, null)).length < 2) {
      expect(performance.now() - sinceMs, 'it takes two more tries').toBeLessThan(5000);
      const begunMs = performance.now();
      const sent = [...messages(1), ...messages(1, { saleId: neighbour })];
      for (const one of sent) await feeder.write([one]);
      await until('nobody waits for it', 1000, () => idsOf(sent).every((id) => seen.includes(id)));
      slowest.push(performance.now() - begunMs);
    }
    expect(slowest.length).toBeGreaterThan(1);
    expect(tries.toSorted()).toEqual(['5', '5', '5', '6', '6', '6']);
    const letters = await pipe.letters.list(10, null);
    expect(letters.map(({ message, attempts, error }) => [message.orderId, attempts, error])).toEqual([
      ['6', 3, 'no such item'],
      ['5', 3, 'no such item'],
    ]);
    poison.clear();
    expect(await pipe.letters.retry('5')).toBe(true);
    await until('it is stored', 3000, () => seen.includes('5'));
    expect(await pipe.letters.drop('6')).toBe(true);
    expect(await pipe.letters.list(10, null)).toEqual([]);
    expect(await pipe.depthOf('sale:1')).toBe(0);
    expect(pipe.counters).toMatchObject({ retries: 4, died: 2, recovered: 0 });
  });

  it('a message that is not ours is put aside, is retried and dropped, and blocks no other', async () => {
    const pipe = await worker(kind);
    const seen = collect(pipe);
    await pipe.open();
    const strange = [
      'what is this',
      '{"half',
      '[1,"1",1,"1-1",["odd"]]',
      '\u0000\u0001',
      `long ${'x'.repeat(100_000)}`,
    ];
    // Among our own messages, in every partition.
    for (let partition = 0; partition < PARTITIONS; partition++) {
      await tool.publish(partition, strange[partition % strange.length]!.replace('what', `what ${partition}`));
    }
    const sent = messages(40);
    for (const [at, one] of sent.entries()) await feeder.write([{ ...one, saleId: String(1 + (at % 10)) }]);
    for (let sale = 1; sale <= 10; sale++) expect(await pipe.caughtUp(saleChannel(String(sale)), 5000)).toBe(true);
    expect(sorted(seen)).toEqual(idsOf(sent));
    const letters = await until('all are letters', 5000, async () => {
      const all = await pipe.letters.list(100, null);
      return all.length === PARTITIONS ? all : null;
    });
    for (const { message, attempts, error } of letters) {
      expect(message.orderId).toMatch(/^foreign-/);
      expect([attempts, error]).toEqual([1, expect.stringMatching(/not written by a relay/)]);
    }
    const shown = letters.map(({ message }) => message.fingerprint);
    expect(shown).toContain('what 0 is this');
    expect(Math.max(...shown.map(({ length }) => length)), 'cut').toBeLessThan(5000);
    const id = letters[0]!.message.orderId;
    expect(await pipe.letters.retry(id)).toBe(true);
    await until('it died once more', 3000, async () => (await pipe.letters.get(id))?.attempts === 2);
    for (const { message } of letters) expect(await pipe.letters.drop(message.orderId)).toBe(true);
    expect(await pipe.letters.list(100, null)).toEqual([]);
    expect(await pipe.letters.retry(id)).toBe(false);
    expect(await pipe.letters.drop(id)).toBe(false);
    await sleep(300);
    expect(await pipe.letters.list(100, null), 'none comes again').toEqual([]);
  });

  it('P3: what a newer version wrote stays in the stream for a worker that can read it; it is no dead letter', async () => {
    const pipe = await worker(kind, { probeMs: 200 });
    const seen = collect(pipe);
    await pipe.open();
    await feeder.open('1', 1);
    const next = String(ENTRY.newest + 1);
    const entryId = (await client.xadd(feeder.stream(), '*', next, '1\n60\n', 's1', 'row 5, seat 12'))!;
    const sent = messages(20);
    for (const one of sent) await feeder.write([one]);
    // A relay of the newer version has carried one that this version could read.
    const inParcel = messages(1, { saleId: '9' });
    await feeder.write(inParcel, { wake: false });
    await tool.publish(partitionOf('sale:9', PARTITIONS), '[4,"9","whatever comes next"]');
    expect(await pipe.caughtUp('sale:9', 5000)).toBe(true);
    await until('all are handled', 5000, () => firsts(seen).length === 21);
    expect(sorted(firsts(seen))).toEqual(sorted(idsOf([...sent, ...inParcel])));
    await until('it was probed for', 5000, () => pipe.counters.probes > 1);
    expect((await client.xrange(feeder.stream(), '-', '+')).map(([id]) => id)).toEqual([entryId]);
    expect(await pipe.letters.list(10, null)).toEqual([]);
    expect(pipe.counters.recovered).toBe(0);
  });

  it('P10: likes have their own way through the broker: those that nobody can write delay no order', async () => {
    const orders = await worker(kind);
    const carrier = await carrierAt(kind, server, prefix, undefined, 'likes');
    const { pipe: likes, feeder: likesFeeder, end } = brokerPipeOf(TEST_LIKES, redis.url, prefix, () => carrier);
    ends.push(end);
    const held = Promise.withResolvers<void>();
    const liked: number[] = [];
    likes.consume(async (batch) => {
      await held.promise;
      liked.push(...batch.map(({ n }) => n));
    });
    const subject = subjectIn('likes:1');
    const storm = Array.from({ length: 700 }, (_, at) => likeEvent(at, { subject }));
    await likesFeeder.writeEach(storm);
    await until('they are sent', 5000, () => likes.counters.relayed === 700);
    const seen = collect(orders);
    const sent = messages(20);
    await feeder.writeEach(sent);
    expect(await orders.caughtUp('sale:1', 5000)).toBe(true);
    expect(seen).toEqual(idsOf(sent));
    expect(orders.counters).toMatchObject({ relayed: 20, letters: 0 });
    expect([liked, await likes.depthOf('likes:1')]).toEqual([[], 700]);
    held.resolve();
    expect(await likes.caughtUp('likes:1', 5000)).toBe(true);
    expect(liked).toEqual(storm.map(({ n }) => n));

    // In a queue of orders a like is a foreign message, and stays one when it is retried.
    await tool.publish(0, '[3,"likes:1",1,"7-0",["","1\\n1","l1","post:1\\n1\\n+a"]]');
    const [letter] = await until('it is put aside', 5000, async () => {
      const all = await orders.letters.list(10, null);
      return all.length > 0 ? all : null;
    });
    expect(letter!.id).toBe('foreign-likes.1-7-0');
    expect(await orders.letters.retry(letter!.id)).toBe(true);
    expect(await orders.letters.get(letter!.id)).toMatchObject({ attempts: 2, message: { saleId: '', quantity: 0 } });
    expect(await orders.letters.drop(letter!.id)).toBe(true);
    expect(await likes.letters.list(10, null)).toEqual([]);
  });

  it('P3: a worker that cannot write for long lets another have its messages, and comes back', async () => {
    const first = await worker(kind, { rejectedMsMax: 300 });
    let out = true;
    const seen: string[] = [];
    const ready = async (): Promise<void> => {
      if (out) throw new RetryableError('unavailable', 'no way to the ledger');
    };
    let handed = 0;
    first.consume(async (batch) => {
      handed++;
      await ready();
      seen.push(...idsOf(batch));
    }, ready);
    const sent = messages(100);
    await feeder.writeEach(sent);
    await until('it has them in hand', 5000, () => handed > 0);
    const second = await worker(kind);
    const others = collect(second);
    expect(await second.caughtUp('sale:1', 15_000)).toBe(true);
    expect(seen).toEqual([]);
    expect(firsts(others)).toEqual(idsOf(sent));
    expect(second.counters.recovered, 'the broker gave them to another').toBe(0);
    out = false;
    await second.stop();
    const later = messages(20);
    await feeder.writeEach(later);
    await until('it is back', 15_000, () => seen.length >= 20);
    expect(firsts(seen)).toEqual(idsOf(later));
  });

  it('P3: an undecided message is not acknowledged with its neighbours: the next worker gets it from the broker', async () => {
    const first = await worker(kind);
    const seen: string[] = [];
    let refused = 0;
    first.consume(async (batch) => {
      if (batch[0]!.saleId === '1') {
        refused++;
        throw new RetryableError('unavailable', 'its node is out');
      }
      seen.push(...idsOf(batch));
    });
    const stuck = messages(10);
    await feeder.writeEach(stuck);
    await until('they are in hand', 5000, () => refused > 0);
    // Behind them, in the same partition.
    const passed = messages(20, { saleId: neighbourOf('1') });
    await feeder.writeEach(passed);
    await until('those behind them are through', 5000, () => seen.length === 20);
    await first.stop();
    const second = await worker(kind);
    const others = collect(second);
    await until('the next worker has them', 15_000, () => others.length >= 10);
    expect(firsts(others).filter((id) => Number(id) <= 10)).toEqual(idsOf(stuck));
    expect(await second.caughtUp('sale:1', 5000)).toBe(true);
    expect(second.counters.recovered).toBe(0);
  });

  it('P3: a batch is decided when all that follows its commit is done; the next one is stored meanwhile, no more', async () => {
    const pipe = await worker(kind);
    const batches: string[][] = [];
    const follows: PromiseWithResolvers<void>[] = [];
    pipe.consume(async (batch) => {
      batches.push(idsOf(batch));
      const following = Promise.withResolvers<void>();
      follows.push(following);
      return { undeliverable: [], told: following.promise };
    });
    const sent: string[][] = [];
    for (let n = 1; n <= 3; n++) {
      const some = messages(2);
      sent.push(idsOf(some));
      await feeder.write(some);
      await until('it is handed over', 5000, () => batches.length >= Math.min(n, 2));
    }
    await sleep(200);
    expect(batches).toEqual(sent.slice(0, 2));
    expect(await pipe.depthOf('sale:1'), 'none is decided').toBe(6);
    // The gate could not be updated: the batch is delivered again, and is already stored.
    follows[0]!.reject(new Error('Redis is out'));
    await until('it comes again', 5000, () => batches.length >= 3);
    expect(batches[2]).toEqual(sent[0]);
    expect(await pipe.depthOf('sale:1')).toBe(6);
    follows[1]!.resolve();
    follows[2]!.resolve();
    await until('the third is handed over', 5000, () => batches.length === 4);
    expect(batches[3]).toEqual(sent[2]);
    await until('two are decided', 5000, async () => (await pipe.depthOf('sale:1')) === 2);
    follows[3]!.resolve();
    expect(await pipe.caughtUp('sale:1', 5000)).toBe(true);
    expect(batches.length).toBe(4);
  });

  it('many sales over all partitions: two workers share them, each in order', async () => {
    const pipes = await Promise.all([worker(kind), worker(kind)]);
    const seen = new Map<string, string[]>();
    for (const pipe of pipes) {
      pipe.consume(async (batch) => {
        const { saleId } = batch[0]!;
        expect(batch.every((one) => one.saleId === saleId)).toBe(true);
        seen.set(saleId, [...(seen.get(saleId) ?? []), ...idsOf(batch)]);
      });
    }
    await Promise.all(pipes.map((pipe) => pipe.open()));
    const sales = Array.from({ length: 200 }, (_, n) => String(n + 1));
    const sent = new Map<string, string[]>();
    for (let round = 0; round < 3; round++) {
      await Promise.all(
        sales.map(async (saleId) => {
          const some = messages(2, { saleId });
          sent.set(saleId, [...(sent.get(saleId) ?? []), ...idsOf(some)]);
          await feeder.writeEach(some);
        }),
      );
    }
    await until('all is handled', 10_000, async () => {
      return (await Promise.all(sales.map((saleId) => pipes[0]!.depthOf(saleChannel(saleId))))).every(
        (depth) => depth === 0,
      );
    });
    for (const saleId of sales) expect(firsts(seen.get(saleId)!), saleId).toEqual(sent.get(saleId));
  });

  it('P3: connections are cut at random: all sales go on, each in order, and nothing is lost', async () => {
    const { random, label } = seedOf(`${kind.name}, connections cut at random`);
    const carriers = await Promise.all([1, 2].map(() => carrierAt(kind, server, prefix, proxy.port)));
    const pipes = await Promise.all(carriers.map((carrier) => worker(kind, { carrier })));
    const seen = new Map<string, string[]>();
    for (const pipe of pipes) {
      pipe.consume(async (batch) => {
        const { saleId } = batch[0]!;
        seen.set(saleId, [...(seen.get(saleId) ?? []), ...idsOf(batch)]);
        await sleep(below(random, 20));
        if (random.fraction() < 0.1) throw new RetryableError('unavailable', 'not now');
      });
    }
    await Promise.all(pipes.map((pipe) => pipe.open()));
    const sent = new Map<string, string[]>();
    const sinceMs = performance.now();
    let cuts = 0;
    while (performance.now() - sinceMs < CUTS_MS) {
      for (let sale = 1; sale <= 10; sale++) {
        const some = messages(1 + below(random, 5), { saleId: String(sale) });
        sent.set(String(sale), [...(sent.get(String(sale)) ?? []), ...idsOf(some)]);
        await feeder.writeEach(some);
      }
      await sleep(below(random, 60));
      if (random.fraction() < 0.5) continue;
      const outMs = below(random, 3) * 100;
      await proxy.refuse(outMs > 0);
      proxy.cut();
      await sleep(outMs);
      await proxy.refuse(false);
      cuts++;
    }
    await until(`${label}: all is handled`, 15_000, async () => {
      return (await Promise.all([...sent.keys()].map((saleId) => pipes[0]!.depthOf(saleChannel(saleId))))).every(
        (n) => n === 0,
      );
    });
    for (const [saleId, ids] of sent) expect(firsts(seen.get(saleId)!), `${label}, sale ${saleId}`).toEqual(ids);
    const { relayed, resent, recovered } = sum(pipes.map(({ counters }) => counters));
    console.log(`${label}: ${lastId} orders, ${cuts} cuts, relayed ${relayed}, of these again ${resent}`);
    expect(recovered, label).toBe(0);
    expect(await pipes[0]!.letters.list(10, null), label).toEqual([]);
  });

  it.runIf(LONG)('P3: two thousand entries of one sale come in order, across a restart of the broker', async () => {
    await sleep(Math.max(preparedMs + kind.lastsAfterMs - performance.now(), 0));
    prefix = lasting;
    feeder = new StreamFeeder(client, prefix);
    const pipe = await worker(kind);
    const seen = collect(pipe);
    const sent = messages(2000);
    let restarting: Promise<void> | null = null;
    for (let at = 0; at < sent.length; at += 50) {
      await feeder.writeEach(sent.slice(at, at + 50));
      if (seen.length > 200) restarting ??= own.restart();
      await sleep(10);
    }
    expect(restarting).not.toBeNull();
    await restarting;
    expect(await pipe.caughtUp('sale:1', 15_000)).toBe(true);
    expect(firsts(seen)).toEqual(idsOf(sent));
    expect(pipe.counters.recovered, 'it came through the broker').toBe(0);
  });
}

/** Orders come in all the time. The new pipe is started before the old one is stopped, or after. */
async function moves(): Promise<void> {
  const { random, label } = seedOf('moving');
  const [rabbitmq, kafka] = BROKER_KINDS as [BrokerKind, BrokerKind];
  const streams = async (): Promise<SharedPipe<OrderMessage>> => {
    const pipe = new RedisStreamsPipe(
      { channels: ORDERS, redis: redis.url, prefix, sweepMs: 50, claimIdleMs: 1000 },
      runtime,
    );
    ends.push(() => pipe.close());
    return pipe;
  };
  const kinds = {
    streams,
    rabbitmq: () => worker(rabbitmq),
    kafka: () => worker(kafka),
  };
  const brokers: BrokerPipe<OrderMessage>[] = [];
  const way = ['streams', 'rabbitmq', 'kafka', 'streams', 'kafka', 'rabbitmq', 'streams'] as const;
  const seen: string[] = [];
  const open = (pipe: SharedPipe<OrderMessage>): void =>
    pipe.consume(async (batch) => {
      // There are always entries in the pipe.
      await sleep(40);
      seen.push(...idsOf(batch));
    });
  const sent: string[] = [];
  let over = false;
  const writing = (async () => {
    while (!over) {
      const some = messages(5, { saleId: String(1 + (lastId % 7)) });
      await feeder.writeEach(some);
      sent.push(...idsOf(some));
      await sleep(5);
    }
  })();
  ends.push(() => {
    over = true;
    return writing;
  });
  let now = await kinds[way[0]]();
  open(now);
  for (const name of way.slice(1)) {
    await sleep(100);
    const next = await kinds[name]();
    if (next instanceof BrokerPipe) brokers.push(next);
    if (oneOf(random, [true, false])) {
      open(next);
      await sleep(50);
      await now.stop();
    } else {
      await now.stop();
      await sleep(50);
      open(next);
    }
    now = next;
    // Everything that was in the old pipe when it stopped soon comes through the new one.
    const before = [...sent];
    await until(`${label}: ${name} has taken it over`, 5000, () => {
      const handled = new Set(seen);
      return before.every((id) => handled.has(id));
    });
  }
  over = true;
  await writing;
  for (let sale = 1; sale <= 7; sale++) expect(await now.caughtUp(saleChannel(String(sale)), 10_000), label).toBe(true);
  expect(sorted(new Set(seen)), label).toEqual(sorted(sent));
  expect(await now.letters.list(10, null), label).toEqual([]);
  // Each pipe gets every undecided entry, whichever pipe had it before: no probe has to find it.
  expect(
    brokers.map(({ counters }) => counters.recovered),
    label,
  ).toEqual([0, 0, 0, 0]);
  console.log(`${label}: ${sent.length} orders, ${seen.length - sent.length} handled twice`);
}
