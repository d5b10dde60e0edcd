import { spawn } from 'node:child_process';
import { chmodSync, existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { connect } from 'node:net';
import { Admin, Producer, stringSerializers } from '@platformatic/kafka';
import { Connection } from 'rabbitmq-client';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, ROOT, temporaryFolder } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithOwnKafka, describeWithOwnRabbitmq } from '../support/servers/describe.ts';
import { childrenOf, isGone } from '../support/servers/family.ts';
import { startKafka } from '../support/servers/kafka.ts';
import type { ServerProcess } from '../support/servers/process.ts';
import { startProxy } from '../support/servers/proxy.ts';
import { type RabbitmqServer, startRabbitmq } from '../support/servers/rabbitmq.ts';

/** The brokers that other tests break on purpose: they must really break, keep their data, and be gone afterwards. */

/** These tests start seven brokers. The short run leaves them out, because tests that break brokers would notice faults, too. */
const inTheLongRun = (suite: typeof describeWithOwnKafka): typeof describeWithOwnKafka =>
  LONG ? suite : describe.skip;

afterAll(async () => {
  await cleanUpServers();
  await cleanUp();
});

/** A minimal client, to see what the broker keeps. */
interface Client {
  /** Resolves when the broker has confirmed it. */
  write(text: string): Promise<void>;
  /** The number of stored messages. */
  count(): Promise<number>;
  close(): Promise<void>;
}

const NAME = 'doorbuster-test';

async function rabbitmqClient(url: string): Promise<Client> {
  const connection = new Connection({ url, retryLow: 50 });
  connection.on('error', () => {});
  const declared = { queue: NAME, durable: true, arguments: { 'x-queue-type': 'quorum' as const } };
  await connection.queueDeclare(declared);
  const publisher = connection.createPublisher({ confirm: true });
  return {
    write: (text) => publisher.send({ routingKey: NAME, durable: true }, text),
    count: async () => (await connection.queueDeclare(declared)).messageCount,
    close: async () => {
      // The connection would wait for it.
      await publisher.close();
      await connection.close();
    },
  };
}

async function kafkaClient(url: string): Promise<Client> {
  const options = { clientId: NAME, bootstrapBrokers: [new URL(url).host], retries: 100, retryDelay: 50 };
  const admin = new Admin(options);
  const producer = new Producer({ ...options, serializers: stringSerializers });
  if (!(await admin.listTopics()).includes(NAME)) {
    await admin.createTopics({ topics: [NAME], partitions: 1, replicas: 1 });
  }
  return {
    write: async (value) => void (await producer.send({ acks: -1, messages: [{ topic: NAME, value }] })),
    count: async () => {
      const partition = { partitionIndex: 0, timestamp: -1n };
      const [topic] = await admin.listOffsets({ topics: [{ name: NAME, partitions: [partition] }] });
      return Number(topic!.partitions[0]!.offset);
    },
    close: async () => void (await Promise.all([admin.close(), producer.close()])),
  };
}

/** The process and all its descendants. */
function familyOf(pid: number): number[] {
  return [pid, ...childrenOf(pid).flatMap(familyOf)];
}

/** The addresses that a process listens on, as the kernel writes them. */
function listeningOf(pid: number): string[] {
  const folder = `/proc/${pid}/fd`;
  const links = readdirSync(folder).map((fd) => {
    try {
      return readlinkSync(`${folder}/${fd}`);
    } catch {
      return '';
    }
  });
  const lines = ['tcp', 'tcp6'].flatMap((kind) =>
    readFileSync(`/proc/net/${kind}`, 'utf8').trim().split('\n').slice(1),
  );
  const sockets = lines.map((line) => line.trim().split(/\s+/));
  const listening = sockets.filter(
    ([, , , state, , , , , , inode]) => state === '0A' && links.includes(`socket:[${inode}]`),
  );
  return listening.map(([, local]) => local!);
}

/** A port of 127.0.0.1 as the kernel writes it: hexadecimal, with the last byte of the address first. */
function loopback(port: number): string {
  return `0100007F:${port.toString(16).toUpperCase().padStart(4, '0')}`;
}

function isRefused(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => {
      socket.destroy();
      resolve(false);
    });
    socket.once('error', (error: NodeJS.ErrnoException) => resolve(error.code === 'ECONNREFUSED'));
  });
}

/** What differs between the two. */
const BROKERS = [
  {
    name: 'RabbitMQ',
    describeWithOwn: describeWithOwnRabbitmq,
    start: startRabbitmq,
    startNonsense: () => startRabbitmq({ config: ['no_such_setting = 1'] }),
    nonsense: /no_such_setting/,
    module: "import { startRabbitmq as start } from './test/support/servers/rabbitmq.ts'",
    protocol: 'amqp:',
    client: rabbitmqClient,
    settled: (server: ServerProcess) => (server as RabbitmqServer).keepsQueue(NAME),
  },
  {
    name: 'Kafka',
    describeWithOwn: describeWithOwnKafka,
    start: startKafka,
    startNonsense: () => startKafka({ settings: { 'num.io.threads': 'many' } }),
    nonsense: /num\.io\.threads/,
    module: "import { startKafka as start } from './test/support/servers/kafka.ts'",
    protocol: 'kafka:',
    client: kafkaClient,
    settled: async () => {},
  },
];

for (const broker of BROKERS) {
  const { name, describeWithOwn, start, client } = broker;

  inTheLongRun(describeWithOwn)(`servers: a ${name} of a test`, () => {
    afterEach(cleanUpServers);

    // One test for all of it, because RabbitMQ takes two seconds to start.
    it('is one of several, keeps what it has confirmed, and is gone after the clean-up', async () => {
      const [one, other] = await Promise.all([start(), start()]);
      const { port } = one;
      const { protocol, host } = new URL(one.url);
      expect([protocol, host]).toEqual([broker.protocol, `127.0.0.1:${port}`]);
      if (process.platform === 'linux') {
        for (const server of [one, other]) {
          // The second port is for other nodes or the controller.
          const addresses = [server.port, server.port + 10_000].map(loopback);
          expect(familyOf(server.pid).flatMap(listeningOf).sort()).toEqual(addresses.sort());
        }
      }
      const before = await client(one.url);
      await before.write('one');

      // Silent while it is paused.
      await one.pause();
      let confirmed = false;
      const late = before.write('two').then(() => {
        confirmed = true;
      });
      await sleep(150);
      expect(confirmed).toBe(false);
      await one.resume();
      await late;

      // Back after a kill.
      await broker.settled(one);
      const killed = familyOf(one.pid);
      await one.kill();
      expect(one.running).toBe(false);
      expect(isGone(killed[0]!)).toBe(true);
      expect(await isRefused(port)).toBe(true);
      await one.restart();
      expect(one.port).toBe(port);
      expect(killed).not.toContain(one.pid);
      await before.write('three');
      const clients = [await client(one.url), await client(other.url)] as const;
      await until('all three are there', 5_000, async () => (await clients[0].count()) === 3);
      expect(await clients[1].count()).toBe(0);
      await Promise.all([before, ...clients].map((each) => each.close()));

      // It is gone after the clean-up, whatever its state.
      const pids = [one, other].flatMap(({ pid }) => familyOf(pid));
      await other.pause();
      await one.stop();
      expect(one.running).toBe(false);
      await cleanUpServers();
      await until('all are gone', 5_000, () => [...killed, ...pids].every(isGone));
      expect([one.folder, other.folder].filter(existsSync)).toEqual([]);
      expect(await isRefused(other.port)).toBe(true);
    }, 60_000);

    it('does not outlive a test process that is killed while it is paused', async () => {
      const program = `${broker.module};
        const server = await start();
        await server.pause();
        console.log([server.port, server.pid].join(' '));
        setInterval(() => {}, 1000);`;
      // In a temporary folder of this test, because nobody else removes it. The server's user must be able to enter it.
      const folder = temporaryFolder();
      chmodSync(folder, 0o711);
      const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
        cwd: ROOT,
        env: { ...process.env, TMPDIR: folder },
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      try {
        const said = await new Promise<string>((resolve) => child.stdout.once('data', (line) => resolve(String(line))));
        const [port, pid] = said.trim().split(' ').map(Number) as [number, number];
        const pids = familyOf(pid);
        expect(isGone(pid)).toBe(false);
        child.kill('SIGKILL');
        await until('all are gone', 5_000, () => pids.every(isGone));
        // Other threads of a process may end after its first one.
        await until('nobody listens any more', 5_000, () => isRefused(port));
      } finally {
        child.kill('SIGKILL');
      }
    });

    it('says why it does not start', async () => {
      await expect(broker.startNonsense()).rejects.toThrow(broker.nonsense);
    });
  });
}

inTheLongRun(describeWithOwnKafka)('servers: a Kafka behind a proxy', () => {
  it('sends clients that came through the proxy back to it', async () => {
    const proxy = await startProxy(0);
    await using server = await startKafka({ proxy });
    const through = await kafkaClient(`kafka://${proxy.host}:${proxy.port}`);
    await through.write('one');
    const { accepted } = proxy.counters();
    const round = await kafkaClient(server.url);
    expect(await round.count()).toBe(1);
    expect(proxy.counters().accepted).toBe(accepted);
    const bytes = proxy.counters().bytesToServer;
    await through.write('x'.repeat(10_000));
    expect(proxy.counters().bytesToServer).toBeGreaterThan(bytes + 10_000);
    await Promise.all([through.close(), round.close()]);
    await proxy.close();
  });
});
