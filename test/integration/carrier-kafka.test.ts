import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { Writable } from 'node:stream';
import { Admin, ConfigResourceTypes, fetchV11, ProduceAcks, Producer } from '@platformatic/kafka';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { TerminalError } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { saleChannel } from '../../src/model/channel.ts';
import type { Delivery } from '../../src/pipe/brokers/port.ts';
import { KafkaCarrier, type KafkaOptions } from '../../src/pipe/kafka/carrier.ts';
import { type Parcel, writeParcel } from '../../src/pipe/parcel.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithOwnKafka } from '../support/servers/describe.ts';
import { type KafkaServer, startKafka } from '../support/servers/kafka.ts';

const WITHIN_MS = 8000;
/** Longer than the delay of an offset commit. */
const COMMITTED_MS = 300;
const SESSION_MS = 1500;
const ANSWER_MS = 1500;
/** Kafka refuses sessions as short as SESSION_MS by default. */
const SHORT_SESSIONS = { 'group.min.session.timeout.ms': 500 };

describeWithOwnKafka('carried by Kafka', () => {
  let server: KafkaServer;
  let prefix = '';
  let tests = 0;
  let carriers: KafkaCarrier[] = [];
  let agents: ChildProcess[] = [];
  let said: { msg: string; topic?: string }[] = [];

  beforeAll(async () => {
    server = await startKafka({ settings: SHORT_SESSIONS });
  });
  afterEach(async () => {
    for (const agent of agents) agent.kill('SIGKILL');
    await Promise.all(carriers.map((carrier) => carrier.close()));
    agents = [];
    carriers = [];
    said = [];
    prefix = '';
  });
  afterAll(cleanUpServers);

  /** The first carrier of a test uses new names. */
  function carrier(options: Partial<KafkaOptions> = {}): KafkaCarrier {
    if (prefix === '') prefix = `shop${++tests}`;
    const sink = new Writable({
      write(line, _, next) {
        said.push(JSON.parse(String(line)));
        next();
      },
    });
    const settings = { url: server.url, prefix, answerMs: ANSWER_MS, sessionMs: SESSION_MS, ...options };
    const made = new KafkaCarrier(settings, systemRuntime(pino({ level: 'info' }, sink)));
    carriers.push(made);
    return made;
  }

  async function opened(options: Partial<KafkaOptions> = {}): Promise<KafkaCarrier> {
    const made = carrier(options);
    await made.open();
    return made;
  }

  const topic = (): string => `${prefix}.orders`;

  function parcel(number: number, saleId = '7'): Parcel {
    return { channel: saleChannel(saleId), epoch: 0, entryId: `${number}-0`, fields: ['1', `order ${number}`] };
  }

  function parcels(from: number, to: number, saleId?: string): Parcel[] {
    return inOrder(from, to).map((number) => parcel(number, saleId));
  }

  function inOrder(from: number, to: number): number[] {
    return Array.from({ length: to - from + 1 }, (_, at) => from + at);
  }

  function numberOf({ parcel }: Delivery): number {
    return Number(parcel?.entryId.split('-')[0]);
  }

  function partitionOf({ id }: Delivery): number {
    return Number(id.split('-').at(-2));
  }

  function received(by: KafkaCarrier): Delivery[] {
    const deliveries: Delivery[] = [];
    by.receive((delivery) => deliveries.push(delivery));
    return deliveries;
  }

  function arrive(deliveries: readonly unknown[], count: number): Promise<boolean> {
    return until(`${count} arrive`, WITHIN_MS, () => deliveries.length >= count);
  }

  /** What a new member of the group gets when there are no others. */
  async function leftOver(count: number): Promise<number[]> {
    const next = received(await opened());
    await arrive(next, count);
    await sleep(COMMITTED_MS);
    return next.map(numberOf);
  }

  async function rejects(promise: Promise<unknown>, withinMs: number): Promise<Error> {
    const sinceMs = performance.now();
    const error = await promise.then(
      () => null,
      (error: Error) => error,
    );
    expect(error).toBeInstanceOf(Error);
    expect(performance.now() - sinceMs).toBeLessThan(withinMs);
    return error!;
  }

  async function sendsAgain(by: KafkaCarrier, partition: number, what: Parcel[]): Promise<void> {
    await until('it sends again', WITHIN_MS, () =>
      by.send(partition, what).then(
        () => true,
        () => false,
      ),
    );
  }

  /** Another client of the same broker. */
  async function other<T>(act: (admin: Admin) => Promise<T>): Promise<T> {
    const admin = new Admin({ clientId: 'other', bootstrapBrokers: [`${server.host}:${server.port}`] });
    try {
      return await act(admin);
    } finally {
      await admin.close();
    }
  }

  /** Retries, because a busy broker may refuse to create a topic, and may have created it all the same. */
  async function makeTopic(name: string, partitions: number, settings: Record<string, string> = {}): Promise<void> {
    const configs = Object.entries(settings).map(([name, value]) => ({ name, value }));
    await until('the topic is there', WITHIN_MS, () =>
      other(async (admin) => {
        await admin.createTopics({ topics: [name], partitions, replicas: 1, configs }).catch(() => {});
        return (await admin.listTopics()).includes(name);
      }),
    );
  }

  async function write(partition: number, values: readonly (string | null)[]): Promise<void> {
    const producer = new Producer({ clientId: 'other', bootstrapBrokers: [`${server.host}:${server.port}`] });
    const buffers = values.map((value) => (value === null ? undefined : Buffer.from(value)));
    const messages = buffers.map((value) => ({ topic: topic(), partition, ...(value && { value }) }));
    await producer.send({ messages, acks: ProduceAcks.ALL });
    await producer.close();
  }

  /** A worker in its own process: it prints what it gets, and marks everything as done when told to. */
  async function agent(): Promise<{ child: ChildProcess; lines: string[] }> {
    const src = new URL('../../src/', import.meta.url);
    const options = { url: server.url, prefix, answerMs: ANSWER_MS, sessionMs: SESSION_MS };
    const script = `
      import { KafkaCarrier } from '${new URL('pipe/kafka/carrier.ts', src)}';
      import { systemRuntime } from '${new URL('base/runtime.ts', src)}';
      const carrier = new KafkaCarrier(${JSON.stringify(options)}, systemRuntime());
      const had = [];
      await carrier.open();
      carrier.receive((delivery) => { had.push(delivery); console.log('got', delivery.id); });
      process.stdin.on('data', () => { for (const delivery of had) delivery.done(); console.log('done', had.length); });
    `;
    const child = spawn(process.execPath, ['--input-type=module-typescript', '--eval', script], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    agents.push(child);
    const lines: string[] = [];
    child.stdout!.on('data', (chunk: Buffer) => lines.push(...String(chunk).trim().split('\n')));
    return { child, lines };
  }

  // The way

  it('makes a topic that keeps what it has confirmed', async () => {
    const made = carrier();
    expect(made.reason).toBe('Kafka is not connected yet');
    expect(await made.open()).toBe(8);
    expect(made.reason).toBeNull();
    expect(made.name).toBe(`kafka:${topic()}`);
    const resource = { resourceType: ConfigResourceTypes.TOPIC, resourceName: topic() };
    const [described] = await other((admin) => admin.describeConfigs({ resources: [resource] }));
    const settings = new Map(described!.configs.map(({ name, value }) => [name, value]));
    expect(settings.get('cleanup.policy')).toBe('delete');
    expect(settings.get('retention.ms')).toBe('604800000');
    expect(settings.get('min.insync.replicas')).toBe('1');
    expect(settings.get('unclean.leader.election.enable')).toBe('false');
  });

  it('uses an existing topic, with as many partitions as it has', async () => {
    const made = carrier({ url: `${server.url}/theirs` });
    await makeTopic('theirs', 3);
    expect(await made.open()).toBe(3);
    expect(made.name).toBe('kafka:theirs');
  });

  it.each(['compact', 'compact,delete'])('refuses a topic with cleanup.policy=%s, in one line', async (policy) => {
    const name = `theirs-${policy.length}`;
    await makeTopic(name, 1, { 'cleanup.policy': policy });
    const error = await rejects(carrier({ url: `${server.url}/${name}` }).open(), 3000);
    expect(error).toBeInstanceOf(TerminalError);
    expect(error).toMatchObject({ code: 'bad_config' });
    expect(error.message).toMatch(/^the topic theirs-\d+ has cleanup\.policy=compact.*$/);
  });

  it('keeps the order of each partition, and does not redeliver what is done', async () => {
    const all = await opened({ answerMs: 10_000 });
    const partitions = [0, 1, 2, 3];
    const big = 'ü'.repeat(30_000);
    await Promise.all(
      partitions.map(async (partition) => {
        // About 3 MB: more than a topic accepts in one request.
        const own = parcels(1, 200, String(partition));
        const bulky = own.map((each, at) => (at % 4 === 0 ? { ...each, fields: ['1', big] } : each));
        await Promise.all([all.send(partition, bulky.slice(0, 120)), all.send(partition, bulky.slice(120))]);
      }),
    );
    const deliveries: Delivery[] = [];
    all.receive((delivery) => {
      deliveries.push(delivery);
      setTimeout(() => delivery.done(), numberOf(delivery) % 7);
    });
    await arrive(deliveries, 800);
    for (const partition of partitions) {
      const own = deliveries.filter((each) => partitionOf(each) === partition);
      expect(own.map(numberOf)).toEqual(inOrder(1, 200));
      expect(new Set(own.map(({ parcel }) => parcel!.channel))).toEqual(new Set([`sale:${partition}`]));
    }
    await sleep(COMMITTED_MS);
    await all.giveBack();
    await all.send(3, parcels(201, 201));
    expect(await leftOver(1)).toEqual([201]);
  });

  it('writes the sale as the key, and all parcels of a call at once', async () => {
    const all = await opened();
    await all.send(5, [...parcels(1, 3, '12'), ...parcels(4, 5, '13')]);
    const batches = await other(async (admin) => {
      await admin.metadata({ topics: [topic()] });
      const [connection] = (await admin.connectToBrokers()).values();
      const asked = {
        partition: 5,
        fetchOffset: 0n,
        partitionMaxBytes: 1e6,
        currentLeaderEpoch: -1,
        lastFetchedEpoch: -1,
      };
      const topics = [{ topicId: topic(), partitions: [asked] }];
      const answer = await fetchV11.api.async(connection!, 100, 1, 1e6, 0, 0, -1, topics, [], '');
      return answer.responses[0]!.partitions[0]!.records!;
    });
    expect(batches.map(({ records }) => records.map(({ key }) => String(key)))).toEqual([
      ['12', '12', '12', '13', '13'],
    ]);
    expect(String(batches[0]!.records[0]!.value)).toBe(writeParcel(parcel(1, '12')));
    // Only an idempotent producer has an id.
    expect(batches[0]!.producerId).toBeGreaterThanOrEqual(0n);
  });

  it('delivers an unreadable record unchanged, with an id of its own', async () => {
    const all = await opened();
    await write(2, ['rubbish', null, '[1,"7",0,"x",null]']);
    await all.send(2, parcels(1, 1));
    const deliveries = received(all);
    await arrive(deliveries, 4);
    expect(deliveries.map(({ parcel, body, id }) => [parcel?.entryId ?? null, body, id])).toEqual([
      [null, 'rubbish', `${topic()}-2-0`],
      [null, '', `${topic()}-2-1`],
      [null, '[1,"7",0,"x",null]', `${topic()}-2-2`],
      ['1-0', writeParcel(parcel(1)), `${topic()}-2-3`],
    ]);
  });

  it('hands over no more than may be in hand, and from one partition half of it if there are others', async () => {
    const all = await opened({ inHandMax: 10 });
    await all.send(0, parcels(1, 20, '1'));
    const deliveries = received(all);
    await arrive(deliveries, 5);
    await sleep(200);
    expect(deliveries.map(numberOf)).toEqual(inOrder(1, 5));
    await all.send(1, parcels(1, 20, '2'));
    await arrive(deliveries, 10);
    await all.send(2, parcels(1, 20, '3'));
    await sleep(200);
    expect(deliveries.map(partitionOf)).toEqual([0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    deliveries[2]!.done();
    await arrive(deliveries, 11);
    await sleep(100);
    expect(deliveries).toHaveLength(11);
    for (let at = 0; deliveries.length < 60; at++) {
      await arrive(deliveries, at + 1);
      deliveries[at]!.done();
    }
  });

  // What is done

  it('commits what is done up to the first that is not', async () => {
    const all = await opened();
    await all.send(0, parcels(1, 10));
    const deliveries = received(all);
    await arrive(deliveries, 10);
    for (const at of [0, 1, 2, 4, 6]) deliveries[at]!.done();
    // At once: done messages are committed before it leaves.
    await all.giveBack();
    // Too late: the partition belongs to another worker by now.
    for (const delivery of deliveries) delivery.done();
    expect(await leftOver(7)).toEqual(inOrder(4, 10));
  });

  it('gives undone messages to others at once, and may receive again', async () => {
    const [one, two] = [await opened({ sessionMs: 10_000 }), await opened({ sessionMs: 10_000 })];
    await Promise.all(inOrder(0, 7).map((partition) => one.send(partition, parcels(1, 5, String(partition)))));
    const first = received(one);
    await arrive(first, 40);
    const second = received(two);
    await sleep(200);
    await one.giveBack();
    const sinceMs = performance.now();
    await arrive(second, 40);
    expect(performance.now() - sinceMs).toBeLessThan(4000);
    for (const delivery of second) delivery.done();
    await two.giveBack();
    await one.send(1, parcels(6, 6));
    const third = received(one);
    await arrive(third, 1);
    expect(third.map(numberOf)).toEqual([6]);
  });

  it('shares the partitions, and a worker that keeps one goes on with it', async () => {
    const one = await opened();
    await Promise.all(inOrder(0, 7).map((partition) => one.send(partition, parcels(1, 3, String(partition)))));
    const first = received(one);
    await arrive(first, 24);
    for (const delivery of first) if (numberOf(delivery) === 1) delivery.done();
    const two = await opened();
    const second = received(two);
    // The undone messages were redelivered to the new worker only.
    await arrive(second, 8);
    await sleep(COMMITTED_MS);
    expect(first).toHaveLength(24);
    const moved = new Set(second.map(partitionOf));
    expect(moved.size).toBe(4);
    for (const partition of moved) {
      expect(second.filter((each) => partitionOf(each) === partition).map(numberOf)).toEqual([2, 3]);
    }
    for (const delivery of [...first, ...second]) delivery.done();
    await Promise.all(inOrder(0, 7).map((partition) => one.send(partition, parcels(4, 4, String(partition)))));
    await until('all arrive', WITHIN_MS, () => first.length + second.length === 24 + 8 + 8);
    expect(new Set(first.slice(24).map(partitionOf))).toEqual(
      new Set(inOrder(0, 7).filter((each) => !moved.has(each))),
    );
    await two.close();
    await arrive(first, 24 + 4 + 4);
    expect(first.slice(28).map(numberOf)).toEqual([4, 4, 4, 4]);
  });

  it('gives the messages of a killed or stopped worker to others; its late decisions do not count', async () => {
    const all = await opened();
    await all.send(0, parcels(1, 5));
    const [killed, stopped] = [await agent(), await agent()];
    const lines = () => [...killed.lines, ...stopped.lines];
    await until('they share', WITHIN_MS, () => lines().length >= 5);
    const [holder, idle] = killed.lines.length > 0 ? [killed, stopped] : [stopped, killed];
    await sleep((2 * SESSION_MS) / 10);
    holder.child.kill('SIGSTOP');
    idle.child.kill('SIGKILL');
    const deliveries = received(all);
    await arrive(deliveries, 5);
    expect(deliveries.map(numberOf)).toEqual(inOrder(1, 5));
    deliveries[0]!.done();
    await sleep(COMMITTED_MS);
    // It wakes up and marks everything as done, before it can know that it has lost the partitions.
    holder.child.stdin!.write('\n');
    holder.child.kill('SIGCONT');
    await until('it says so', WITHIN_MS, () => holder.lines.some((line) => line.startsWith('done')));
    await sleep(COMMITTED_MS);
    holder.child.kill('SIGKILL');
    await once(holder.child, 'exit');
    await all.giveBack();
    expect((await leftOver(4)).slice(0, 4)).toEqual(inOrder(2, 5));
  });

  // Outages

  it('redelivers what was not done when the broker died, and nothing that was', async () => {
    const all = await opened();
    await all.send(0, parcels(1, 20));
    const deliveries = received(all);
    await arrive(deliveries, 20);
    for (const delivery of deliveries.slice(0, 8)) delivery.done();
    await sleep(COMMITTED_MS);
    await all.send(1, parcels(1, 30, '8'));
    await server.kill();
    await rejects(all.send(1, parcels(31, 31, '8')), ANSWER_MS + 500);
    await rejects(all.send(2, parcels(1, 1, '9')), ANSWER_MS + 500);
    await until('it is known', WITHIN_MS, () => all.reason !== null);
    // A carrier that is opened now waits until it is closed or the broker is back.
    const late = carrier({ url: `${server.url}/late` });
    const opening = late.open();
    await until('it says why', WITHIN_MS, () => late.reason?.includes('ECONNREFUSED'));
    const closed = carrier();
    const never = rejects(closed.open(), 3000);
    await closed.close();
    expect((await never).message).toBe('the carrier is closed');
    await server.restart();
    expect(await opening).toBe(8);
    expect(late.reason).toBeNull();
    await sendsAgain(all, 1, parcels(31, 40, '8'));
    const again = () => deliveries.slice(20).filter((each) => partitionOf(each) === 0);
    await until('all that was not done comes again', WITHIN_MS, () => again().length >= 12);
    expect(again().map(numberOf)).toEqual(inOrder(9, 20));
    const confirmed = () => deliveries.filter((each) => partitionOf(each) === 1);
    await until('all that was confirmed comes', WITHIN_MS, () => new Set(confirmed().map(numberOf)).size === 40);
    await until('it is known', WITHIN_MS, () => all.reason === null);
    // The first copies came on a connection that is gone.
    for (const delivery of deliveries.slice(0, 20)) delivery.done();
    again()[0]!.done();
    await sleep(COMMITTED_MS);
    await all.giveBack();
    const ours = said.filter(({ msg, topic: of }) => msg.startsWith('Kafka is') && of === topic());
    // A broker that has just started may be out for a moment again, on a busy machine; each time is told once.
    const told = ours.map(({ msg }) => msg);
    expect(told).toEqual(told.map((_, at) => (at % 2 === 0 ? 'Kafka is out' : 'Kafka is back')));
    expect([told.length > 0, told.length % 2]).toEqual([true, 0]);
    const next = received(await opened());
    const left = () => next.filter((each) => partitionOf(each) === 0);
    await until('what is left comes', WITHIN_MS, () => left().length >= 11);
    expect(left().map(numberOf)).toEqual(inOrder(10, 20));
  });

  it('does not wait for ever for a broker that hangs', async () => {
    const all = await opened();
    await all.send(0, parcels(1, 3));
    const deliveries = received(all);
    await arrive(deliveries, 3);
    await server.pause();
    try {
      const sending = [0, 1, 2].map((partition) => rejects(all.send(partition, parcels(4, 4)), ANSWER_MS + 500));
      const other = carrier();
      void other.open().catch(() => {});
      received(other);
      await Promise.all(sending);
      const sinceMs = performance.now();
      await Promise.all([all.giveBack(), other.close()]);
      expect(performance.now() - sinceMs).toBeLessThan(3000);
    } finally {
      await server.resume();
    }
    await sendsAgain(all, 0, parcels(5, 5));
    const next = received(all);
    await until('all come again', WITHIN_MS, () => next.some((each) => numberOf(each) === 5));
    expect(next.slice(0, 3).map(numberOf)).toEqual([1, 2, 3]);
  });

  // It needs another broker; brokers-operator.test.ts has one that refuses a password.
  it.runIf(LONG)('says in one line that it is refused, and does not say the password', async () => {
    const login = 'org.apache.kafka.common.security.plain.PlainLoginModule required';
    const users = 'username="ledger" password="s3:cr@t" user_ledger="s3:cr@t"';
    const guarded = await startKafka({
      settings: {
        ...SHORT_SESSIONS,
        'listener.security.protocol.map': 'PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT',
        'sasl.enabled.mechanisms': 'PLAIN',
        'sasl.mechanism.inter.broker.protocol': 'PLAIN',
        'listener.name.plaintext.plain.sasl.jaas.config': `${login} ${users};`,
      },
    });
    const at = `${guarded.host}:${guarded.port}`;
    const welcome = carrier({ url: `kafka://ledger:${encodeURIComponent('s3:cr@t')}@${at}`, partitions: 1 });
    expect(await welcome.open()).toBe(1);
    await welcome.send(0, parcels(1, 1));
    await arrive(received(welcome), 1);
    for (const [url, why] of [
      [`kafka://ledger:wr0ng@${at}`, /^Kafka refuses the user or password of PIPE_URL \(SASL_AUTHENTICATION_FAILED\)$/],
      [`kafka://ledger:wr0ng@${at}?sasl=scram-sha-256`, /^Kafka has no login of that kind: [^\n]+$/],
    ] as const) {
      const error = await rejects(carrier({ url }).open(), 3000);
      expect(error).toBeInstanceOf(TerminalError);
      expect(error.message).toMatch(why);
      expect(error.message).not.toContain('wr0ng');
    }
  });

  // The topic

  it('goes on with the stored records if the committed offset no longer exists', async () => {
    const all = await opened();
    await all.send(0, parcels(1, 5));
    const deliveries = received(all);
    await arrive(deliveries, 5);
    for (const delivery of deliveries) delivery.done();
    await all.giveBack();
    await all.send(0, parcels(6, 15));
    const partitions = [{ partition: 0, offset: 8n }];
    await other((admin) => admin.deleteRecords({ topics: [{ name: topic(), partitions }] }));
    expect(await leftOver(7)).toEqual(inOrder(9, 15));
  });

  it('creates its topic again if it is deleted', async () => {
    const all = await opened();
    await all.send(0, parcels(1, 5));
    const deliveries = received(all);
    await arrive(deliveries, 5);
    deliveries[4]!.done();
    await other((admin) => admin.deleteTopics({ topics: [topic()] }));
    await until('nothing can be sent', WITHIN_MS, () =>
      all.send(0, parcels(6, 6)).then(
        () => false,
        () => true,
      ),
    );
    // More than before: by their offsets the first ones would look old.
    await sendsAgain(all, 0, parcels(7, 20));
    const since = () => deliveries.slice(5).map(numberOf);
    await until('all that is there comes', WITHIN_MS, () => since().includes(20));
    expect(since().slice(-14)).toEqual(inOrder(7, 20));
  });

  it('reads partitions that are added', async () => {
    const all = await opened({ partitions: 2 });
    const deliveries = received(all);
    await all.send(1, parcels(1, 1));
    await arrive(deliveries, 1);
    const topics = [{ name: topic(), count: 3 }];
    await other((admin) => admin.createPartitions({ topics }));
    // The broker itself may not know the new partition yet.
    await until('it can be written to', WITHIN_MS, () =>
      write(2, [writeParcel(parcel(2))]).then(
        () => true,
        () => false,
      ),
    );
    await arrive(deliveries, 2);
    expect(deliveries.map(partitionOf)).toEqual([1, 2]);
    expect(said.some(({ msg }) => msg.includes('another number of partitions'))).toBe(true);
  });
});
