import { Writable } from 'node:stream';
import { pino } from 'pino';
import { Connection } from 'rabbitmq-client';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { TerminalError } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import type { Delivery } from '../../src/pipe/brokers/port.ts';
import { type Parcel, writeParcel } from '../../src/pipe/parcel.ts';
import { RabbitCarrier, type RabbitOptions } from '../../src/pipe/rabbitmq/carrier.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithOwnRabbitmq } from '../support/servers/describe.ts';
import { freePort } from '../support/servers/process.ts';
import { startProxy } from '../support/servers/proxy.ts';
import { type RabbitmqServer, startRabbitmq } from '../support/servers/rabbitmq.ts';

const WITHIN_MS = 8000;
/** If RabbitMQ 3.10 is killed, a younger quorum queue comes back without a leader, for good. */
const SETTLED_MS = 1200;

describeWithOwnRabbitmq('carried by RabbitMQ', () => {
  let server: RabbitmqServer;
  /** A broker whose memory alarm is always on. */
  let poor: RabbitmqServer;
  let prefix = '';
  let tests = 0;
  let carriers: RabbitCarrier[] = [];
  let said: { level: number; msg: string; reason?: string }[] = [];

  beforeAll(async () => {
    const config = ['vm_memory_high_watermark.absolute = 1MB'];
    [server, poor] = await Promise.all([startRabbitmq(), startRabbitmq({ config })]);
  });
  afterEach(async () => {
    await Promise.all(carriers.map((carrier) => carrier.close()));
    carriers = [];
    said = [];
  });
  afterAll(cleanUpServers);

  /** The first carrier of a test uses new names. */
  function carrier(options: Partial<RabbitOptions> = {}): RabbitCarrier {
    if (carriers.length === 0) prefix = `shop${++tests}`;
    const sink = new Writable({
      write(line, _, next) {
        said.push(JSON.parse(String(line)));
        next();
      },
    });
    const runtime = systemRuntime(pino({ level: 'info' }, sink));
    const made = new RabbitCarrier({ url: server.url, prefix, answerMs: 1500, queues: 2, ...options }, runtime);
    carriers.push(made);
    return made;
  }

  async function opened(options: Partial<RabbitOptions> = {}): Promise<RabbitCarrier> {
    const made = carrier(options);
    await made.open();
    return made;
  }

  function parcel(number: number): Parcel {
    return { channel: 'sale:7', epoch: 0, entryId: `${number}-0`, fields: ['1', `order ${number}`] };
  }

  function parcels(from: number, to: number): Parcel[] {
    return Array.from({ length: to - from + 1 }, (_, at) => parcel(from + at));
  }

  function numbers(deliveries: readonly Delivery[]): number[] {
    return deliveries.map(({ parcel }) => Number(parcel?.entryId.split('-')[0]));
  }

  function inOrder(from: number, to: number): number[] {
    return Array.from({ length: to - from + 1 }, (_, at) => from + at);
  }

  function received(by: RabbitCarrier): Delivery[] {
    const deliveries: Delivery[] = [];
    by.receive((delivery) => deliveries.push(delivery));
    return deliveries;
  }

  function arrive(deliveries: readonly Delivery[], count: number): Promise<boolean> {
    return until(`${count} arrive`, WITHIN_MS, () => deliveries.length >= count);
  }

  /** Another client of the same broker. */
  async function other<T>(act: (connection: Connection) => Promise<T>): Promise<T> {
    const connection = new Connection(server.url);
    connection.on('error', () => undefined);
    try {
      return await act(connection);
    } finally {
      await connection.close();
    }
  }

  /** Messages that are not delivered to any worker. */
  async function left(queue: string): Promise<number> {
    return (await other((connection) => connection.queueDeclare({ queue, passive: true }))).messageCount;
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

  async function sendsAgain(by: RabbitCarrier, partition: number, what: Parcel[]): Promise<void> {
    await until('it sends again', WITHIN_MS, () =>
      by.send(partition, what).then(
        () => true,
        () => false,
      ),
    );
  }

  // The way

  it('keeps the order of each partition, and removes what is done from the queue', async () => {
    const all = carrier({ queues: 4 });
    expect(all.reason).toContain('not connected yet');
    expect(await all.open()).toBe(4);
    expect(all.reason).toBeNull();
    expect(all.name).toBe(`amqp:${prefix}.orders`);

    // More than fits into one frame, or into one queue's share of the messages in hand.
    const big = { ...parcel(1), fields: ['1', 'ü'.repeat(30_000)] };
    const partitions = [0, 1, 2, 3];
    await Promise.all(
      partitions.map(async (partition) => {
        const own = parcels(2, 400).map((each) => ({ ...each, channel: `sale:${partition}` }));
        await all.send(partition, [{ ...big, channel: `sale:${partition}` }, ...own.slice(0, 199)]);
        await all.send(partition, own.slice(199));
      }),
    );
    const deliveries: Delivery[] = [];
    all.receive((delivery) => {
      deliveries.push(delivery);
      delivery.done();
    });
    await arrive(deliveries, 4 * 400);
    for (const partition of partitions) {
      const own = deliveries.filter(({ parcel }) => parcel?.channel === `sale:${partition}`);
      expect(numbers(own)).toEqual(inOrder(1, 400));
    }
    expect(deliveries.find(({ parcel }) => parcel?.entryId === '1-0')?.parcel?.fields).toEqual(big.fields);
    await all.giveBack();
    for (const partition of partitions) expect(await left(`${prefix}.orders.${partition}`)).toBe(0);
    expect(said).toEqual([]);
  });

  it('does not report a parcel as sent before the broker has confirmed it', async () => {
    const proxy = await startProxy(server.port);
    const far = await opened({ url: `amqp://guest:guest@127.0.0.1:${proxy.port}` });
    proxy.delay(200, 'toClient');
    const sinceMs = performance.now();
    await far.send(0, parcels(1, 5));
    expect(performance.now() - sinceMs).toBeGreaterThan(190);
    proxy.delay(0);
    await far.close();
    await proxy.close();
  });

  it('has no more in hand than allowed, and gets more when some is done, in any order', async () => {
    const small = await opened({ inHandMax: 33 });
    await small.send(0, parcels(1, 100));
    const deliveries = received(small);
    await arrive(deliveries, 15);
    await sleep(100);
    // Two queues and a few dead letters share 33.
    expect(deliveries.length).toBe(15);
    for (const at of [3, 1, 7]) deliveries[at]!.done();
    await arrive(deliveries, 18);
    deliveries[0]!.done();
    deliveries[0]!.done();
    await arrive(deliveries, 19);
    await sleep(100);
    expect(numbers(deliveries)).toEqual(inOrder(1, 19));
  });

  it('gives a queue to one of two workers, and to the other when the first is gone, without a gap', async () => {
    const proxy = await startProxy(server.port);
    const first = await opened({ url: `amqp://guest:guest@127.0.0.1:${proxy.port}`, inHandMax: 33 });
    const byFirst = received(first);
    await first.send(0, parcels(1, 3));
    await arrive(byFirst, 3);
    const second = await opened();
    const bySecond = received(second);
    await second.send(0, parcels(4, 20));
    await arrive(byFirst, 15);
    for (const { done } of byFirst.slice(0, 5)) done();
    // The broker has received five acknowledgements.
    await arrive(byFirst, 20);
    expect(bySecond).toEqual([]);

    await proxy.refuse(true);
    proxy.cut();
    await arrive(bySecond, 15);
    expect(numbers(bySecond)).toEqual(inOrder(6, 20));
    await proxy.close();
  });

  it('takes the queues from a worker that hangs', async () => {
    const proxy = await startProxy(server.port);
    const hung = await opened({ url: `amqp://guest:guest@127.0.0.1:${proxy.port}?heartbeat=1` });
    await hung.send(0, parcels(1, 3));
    await arrive(received(hung), 3);
    const next = received(await opened());
    proxy.freeze();
    await arrive(next, 3);
    expect(numbers(next)).toEqual([1, 2, 3]);
    await proxy.close();
  });

  it('gives what it returns to others at once; a late acknowledgement does no harm', async () => {
    const first = await opened();
    const second = await opened();
    const byFirst = received(first);
    await first.send(0, parcels(1, 20));
    await arrive(byFirst, 20);
    const bySecond = received(second);
    for (const { done } of byFirst.slice(0, 4)) done();
    await first.giveBack();
    await arrive(bySecond, 16);
    expect(numbers(bySecond)).toEqual(inOrder(5, 20));

    // Now the first has it again, on a channel whose delivery tags start again.
    const again = received(first);
    await second.giveBack();
    await arrive(again, 16);
    for (const { done } of [...byFirst, ...bySecond]) done();
    await first.send(0, [parcel(21)]);
    await arrive(again, 17);
    for (const { done } of again.slice(0, 3)) done();
    await first.giveBack();
    expect(await left(`${prefix}.orders.0`)).toBe(14);
    expect(said).toEqual([]);
  });

  // What is not ours

  it('puts unreadable messages with the dead letters, and delivers them from there', async () => {
    const all = await opened();
    const deliveries = received(all);
    const exchange = `${prefix}.orders`;
    const deep = Buffer.from('['.repeat(200_000) + ']'.repeat(200_000));
    await other(async (connection) => {
      const channel = await connection.acquire();
      await channel.confirmSelect();
      await channel.basicPublish({ exchange, routingKey: '0' }, 'not a parcel');
      await channel.basicPublish({ exchange, routingKey: '1' }, { a: 1 });
      await channel.basicPublish({ exchange, routingKey: '1' }, Buffer.alloc(0));
      await channel.basicPublish({ exchange, routingKey: '0', contentType: 'application/json' }, deep);
      // A message that a policy or limit dropped is still ours.
      await channel.basicPublish({ exchange: `${prefix}.dead`, routingKey: '0' }, writeParcel(parcel(5)));
      await channel.close();
    });
    await arrive(deliveries, 5);
    const foreign = deliveries.filter(({ parcel }) => parcel === null);
    const bodies = foreign.map(({ body }) => body);
    expect(bodies).toHaveLength(4);
    expect(bodies).toEqual(expect.arrayContaining(['not a parcel', '{"a":1}', '']));
    expect(numbers(deliveries.filter(({ parcel }) => parcel !== null))).toEqual([5]);
    expect(new Set(foreign.map(({ id }) => id)).size).toBe(4);

    await all.giveBack();
    const again = received(all);
    await arrive(again, 5);
    expect(again.map(({ id }) => id).sort()).toEqual(deliveries.map(({ id }) => id).sort());
    for (const { done } of again) done();
    await all.giveBack();
    for (const queue of ['orders.0', 'orders.1', 'dead']) expect(await left(`${prefix}.${queue}`)).toBe(0);
  });

  // What is wrong at the broker

  it('says in one line what is wrong with an existing queue or exchange', async () => {
    const own = carrier();
    const declared = (queue: string, args: Record<string, unknown>): Promise<unknown> =>
      other((connection) => connection.queueDeclare({ queue, durable: true, arguments: args }));
    await declared(`${prefix}.orders.1`, {
      'x-single-active-consumer': true,
      'x-dead-letter-exchange': `${prefix}.dead`,
    });
    const classic = await rejects(own.open(), 2000);
    expect(classic).toBeInstanceOf(TerminalError);
    expect((classic as TerminalError).code).toBe('bad_config');
    expect(classic.message).toMatch(
      /^the queue shop\d+\.orders\.1 .*'x-queue-type'.*'quorum'.*but current is.*delete it/,
    );
    expect(classic.message).not.toContain('\n');
    expect(own.reason).toBe(classic.message);

    await declared(`${prefix}b.orders.0`, { 'x-queue-type': 'quorum', 'x-max-length': 5 });
    const length = await rejects(carrier({ prefix: `${prefix}b` }).open(), 2000);
    expect(length.message).toMatch(/^the queue shop\d+b\.orders\.0 .*inequivalent arg/);

    await other((connection) =>
      connection.exchangeDeclare({ exchange: `${prefix}c.orders`, type: 'topic', durable: true }),
    );
    const exchange = await rejects(carrier({ prefix: `${prefix}c` }).open(), 2000);
    expect(exchange).toBeInstanceOf(TerminalError);
    expect(exchange.message).toMatch(/^the exchange shop\d+c\.orders .*'direct' but current is 'topic'/);
  });

  it('says in one line that it is refused, and never with the password', async () => {
    const { host, port } = server;
    const login = await rejects(carrier({ url: `amqp://guest:geheim@${host}:${port}` }).open(), 3000);
    expect(login).toBeInstanceOf(TerminalError);
    expect(login.message).toContain('ACCESS_REFUSED');
    const vhost = await rejects(carrier({ url: `${server.url}/nowhere` }).open(), 2000);
    expect(vhost).toBeInstanceOf(TerminalError);
    expect(vhost.message).toContain('nowhere');
    for (const text of [login.message, vhost.message, JSON.stringify(said)]) {
      expect(text).not.toMatch(/geheim|\n/);
    }
  });

  it('creates a deleted queue again, whether it sends or receives', async () => {
    const sender = await opened();
    await sender.send(0, [parcel(1)]);
    await other((connection) => connection.queueDelete(`${prefix}.orders.0`));
    // The broker also confirms a message for which it has no queue.
    const error = await rejects(sender.send(0, [parcel(1)]), 1000);
    expect(error.message).toContain('no queue');
    await sendsAgain(sender, 0, [parcel(2)]);

    const deliveries = received(sender);
    await arrive(deliveries, 1);
    await other(async (connection) => {
      await connection.queueDelete(`${prefix}.orders.0`);
      await connection.queueDelete(`${prefix}.orders.1`);
      await connection.queueDelete(`${prefix}.dead`);
      await connection.exchangeDelete({ exchange: `${prefix}.orders` });
    });
    await sendsAgain(sender, 1, [parcel(3)]);
    await sendsAgain(sender, 0, [parcel(4)]);
    await until('both arrive', WITHIN_MS, () => [3, 4].every((number) => numbers(deliveries).includes(number)));
    await until('nothing is wrong', WITHIN_MS, () => sender.reason === null);
  });

  it('sends nothing while the broker is short of memory, and says so', async () => {
    const blocked = await opened({ url: poor.url, answerMs: 500 });
    await rejects(blocked.send(0, parcels(1, 64)), 1500);
    expect(blocked.reason).toContain('low on memory');
    await rejects(blocked.send(0, parcels(1, 64)), 100);
    expect(said.filter(({ level }) => level === 50)).toHaveLength(1);
    const sinceMs = performance.now();
    await blocked.close();
    expect(performance.now() - sinceMs).toBeLessThan(1500);
  });

  // The broker is out

  it('retries while no host answers; another host of the list will do', async () => {
    const nobody = await freePort();
    const alone = carrier({ url: `amqp://127.0.0.1:${nobody}` });
    const opening = rejects(alone.open(), 3000);
    await until('it says why', WITHIN_MS, () => alone.reason?.includes('ECONNREFUSED'));
    await sleep(300);
    expect(said.filter(({ level }) => level === 50)).toHaveLength(1);
    await rejects(alone.send(0, [parcel(1)]), 100);
    await alone.close();
    expect(await opening).not.toBeInstanceOf(TerminalError);

    const listed = await opened({ url: `amqp://guest:guest@127.0.0.1:${nobody},127.0.0.1:${server.port}/%2F` });
    expect(listed.reason).toBeNull();
    await listed.send(0, [parcel(1)]);
  });

  it('does not wait for a broker that hangs, and comes back when it does', async () => {
    const sender = await opened({ answerMs: 500 });
    const leaver = await opened({ answerMs: 500 });
    const deliveries = received(leaver);
    await sender.send(0, [parcel(1)]);
    await arrive(deliveries, 1);
    await server.pause();
    try {
      const big = { ...parcel(2), fields: ['1', 'x'.repeat(1_000_000)] };
      await Promise.all([0, 1].map((partition) => rejects(sender.send(partition, Array(20).fill(big)), 1500)));
      await rejects(sender.send(0, parcels(2, 100)), 1500);
      const sinceMs = performance.now();
      await leaver.close();
      expect(performance.now() - sinceMs).toBeLessThan(1500);
    } finally {
      await server.resume();
    }
    await sendsAgain(sender, 0, parcels(3, 5));
    const again = received(sender);
    await until('they arrive', WITHIN_MS, () => [3, 4, 5].every((number) => numbers(again).includes(number)));
    expect(said.filter(({ msg }) => msg === 'RabbitMQ is out').length).toBeLessThan(4);
  });

  it('loses nothing that was confirmed when the broker is killed; a queue that does not come back holds up no other', async () => {
    const sender = await opened();
    const worker = await opened();
    await sleep(SETTLED_MS);
    const deliveries = received(worker);
    await sender.send(0, parcels(1, 60));
    await sender.send(1, parcels(101, 120));
    await arrive(deliveries, 80);
    const before = deliveries.splice(0);
    for (const { parcel, done } of before) if (Number.parseInt(parcel!.entryId, 10) <= 10) done();
    await worker.giveBack();
    await sender.send(0, parcels(61, 80));
    worker.receive((delivery) => deliveries.push(delivery));
    await arrive(deliveries, 90);
    // Its third queue is too young to survive.
    const wide = await opened({ queues: 3, answerMs: 700 });
    // Confirmed, and then the broker is killed at once.
    await sender.send(1, parcels(121, 140));
    const between = deliveries.splice(0);

    await server.kill();
    await until('the sender sees it', WITHIN_MS, () => sender.reason !== null);
    for (const partition of [0, 1]) await rejects(sender.send(partition, [parcel(999)]), 500);
    deliveries.length = 0;
    await server.restart();
    await arrive(deliveries, 110);
    const own = (from: number, to: number): number[] =>
      numbers(deliveries).filter((number) => from <= number && number <= to);
    expect(own(1, 99)).toEqual(inOrder(11, 80));
    expect(own(101, 199)).toEqual(inOrder(101, 140));

    for (const { done } of [...before, ...between]) done();
    await sendsAgain(sender, 0, [parcel(81)]);
    await arrive(deliveries, 111);
    for (const { done } of deliveries) done();
    await until('all is well', WITHIN_MS, () => [sender, worker, wide].every(({ reason }) => reason === null));
    await worker.giveBack();
    for (const partition of [0, 1]) expect(await left(`${prefix}.orders.${partition}`)).toBe(0);
    // Once per outage and process, not per attempt.
    for (const what of ['out', 'back']) expect(said.filter(({ msg }) => msg === `RabbitMQ is ${what}`)).toHaveLength(3);

    const widely = received(wide);
    const isLost = wide.send(2, [parcel(3)]).then(
      () => false,
      () => true,
    );
    const sinceMs = performance.now();
    for (let number = 201; performance.now() - sinceMs < 1500; number++) {
      await wide.send(number % 2, [parcel(number)]);
      await until('it arrives', WITHIN_MS, () => numbers(widely).includes(number));
      for (const { done } of widely) done();
    }
    // A newer broker keeps the queue, which is fine, too.
    const found = !(await isLost)
      ? 'kept'
      : await until('the queue is named as lost, or answers late', WITHIN_MS, async () => {
          if (wide.reason?.includes(`${prefix}.orders.2`)) return 'lost';
          return await wide.send(2, [parcel(3)]).then(
            () => 'kept',
            () => false,
          );
        });
    if (found === 'lost') {
      await rejects(wide.send(2, [parcel(3)]), 1500);
      await wide.send(0, [parcel(4)]);
    }
  });
});
