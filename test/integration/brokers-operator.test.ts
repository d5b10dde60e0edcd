import { Admin } from '@platformatic/kafka';
import { Connection } from 'rabbitmq-client';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { main } from '../../src/cli/main.ts';
import { KAFKA_KIND, RABBITMQ_KIND } from '../support/broker-kinds.ts';
import { BrokerShop, type Ground, POSTGRES_KIND, sharedGround } from '../support/broker-shop.ts';
import { admin, counts, metric, place } from '../support/distributed-calls.ts';
import { until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { ADMIN_KEY, AUTH_SECRET, cleanUp, createSale, run, type TestServer } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import {
  describeWithOwnKafka,
  describeWithOwnRabbitmq,
  describeWithPostgres,
  describeWithRedis,
} from '../support/servers/describe.ts';
import { startKafka } from '../support/servers/kafka.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** A broker as an operator meets it: what the start refuses, what `doctor` says, and dead letters by HTTP. */

const KEYS = { DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET };
/** Five tries with 1, 2, 4 and 8 s between them. */
const DIES_WITHIN_MS = 30_000;

interface Letter {
  id: string;
  saleId: string | null;
  error: string;
  attempts: number;
}

async function letters(server: TestServer): Promise<Letter[]> {
  const { status, body } = await admin(server, 'GET', '/v1/ops/dead-letters');
  expect(status, JSON.stringify(body)).toBe(200);
  return body.data as Letter[];
}

let ground: Ground;
let shop: BrokerShop;

/** The settings of a shop's process; names at the broker begin with `prefix`. */
function environment(prefix: string, pipeUrl: string, databaseUrl: string): Record<string, string> {
  return {
    ...KEYS,
    REDIS_URL: ground.redis.url,
    REDIS_PREFIX: prefix,
    DATABASE_URL: databaseUrl,
    PIPE_URL: pipeUrl,
    LOG_LEVEL: 'fatal',
    PORT: '0',
  };
}

interface Ended {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** Runs the command line in this process; a refused command ends soon. */
async function runHere(args: string[], env: Record<string, string>): Promise<Ended> {
  const said = { stdout: '', stderr: '' };
  vi.spyOn(console, 'log').mockImplementation((line) => {
    said.stdout += `${line}\n`;
  });
  vi.spyOn(console, 'error').mockImplementation((line) => {
    said.stderr += `${line}\n`;
  });
  for (const [name, value] of Object.entries(env)) vi.stubEnv(name, value);
  try {
    return { code: await main(args), ...said };
  } finally {
    vi.unstubAllEnvs();
    vi.restoreAllMocks();
    // `serve` adds this listener for the life of its process.
    process.removeAllListeners('SIGXFSZ');
  }
}

/** Expects each command to end with one line that matches `words`, without a password or a stack trace. */
async function expectRefused(env: Record<string, string>, words: RegExp, commands = ['worker']): Promise<void> {
  for (const command of commands) {
    const { code, stdout, stderr } = await runHere([command], env);
    const said = stderr.trimEnd();
    expect({ code, said }).toEqual({ code: 1, said: expect.stringMatching(words) });
    expect(said.split('\n')).toHaveLength(1);
    expect(said).toMatch(new RegExp(`^doorbuster ${command}: `));
    expect(said + stdout).not.toMatch(/hunter2|\bat .+:\d+:\d+/);
  }
}

/** The doctor's check of the broker. */
async function brokerCheck(
  env: Record<string, string>,
  way = runHere,
  named = 'broker',
): Promise<{ status: string; says: string }> {
  const { stdout } = await way(['doctor', '--json'], env);
  const { checks } = JSON.parse(stdout) as { checks: { name: string; status: string; says: string }[] };
  const found = checks.filter(({ name }) => name === named);
  expect(found).toHaveLength(1);
  expect(stdout).not.toMatch(/guest:guest|hunter2/);
  return found[0]!;
}

function suite(): void {
  let server: TestServer;
  let ill: ReturnType<typeof brokerCheck>;
  afterAll(cleanUp);
  beforeAll(async () => {
    // In its own process, because it waits 5 s for the broker.
    const { protocol } = new URL(ground.broker.url);
    ill = brokerCheck(environment('doctor', `${protocol}//u:hunter2@127.0.0.1:1`, ground.database.url), run);
    ill.catch(() => undefined);
    shop = await BrokerShop.start(ground, 1, 1);
    server = shop.shop.servers[0]!;
  }, 60_000);

  it('a message that is not ours is listed by a process without a connection to the broker, retried, and dropped', async () => {
    const tool = ground.kind.tool(ground.broker, shop.prefix);
    await tool.publish(3, 'what is this');
    const [letter] = await until('a letter', 8_000, async () => {
      const all = await letters(server);
      return all.length > 0 ? all : null;
    });
    expect(letter).toMatchObject({
      saleId: null,
      attempts: 1,
      error: expect.stringMatching(/not written by a relay/),
    });
    expect(letter!.id).toMatch(/^foreign-/);
    const page = await admin(server, 'GET', `/v1/ops/dead-letters?cursor=${letter!.id}`);
    expect(page.body).toEqual({ data: [], nextCursor: null });
    expect((await admin(server, 'POST', `/v1/ops/dead-letters/${letter!.id}/retry`)).status).toBe(202);
    await until('it died once more', 5_000, async () => (await letters(server))[0]?.attempts === 2);
    const dropped = await admin(server, 'DELETE', `/v1/ops/dead-letters/${letter!.id}`);
    expect(dropped.status, JSON.stringify(dropped.body)).toBe(204);
    expect(await letters(server)).toEqual([]);
    expectProblem(await admin(server, 'DELETE', `/v1/ops/dead-letters/${letter!.id}`), 404, 'not_found');
    await tool.close();
  });

  it('an unreadable entry also passes through the broker, and holds up no other', async () => {
    const saleId = await createSale(server, { stock: 5 });
    const { redis } = ground;
    const epoch = await redis.command('HGET', shop.key(saleId, 'gate'), 'epoch');
    await redis.command('XADD', shop.key(saleId, `${epoch}:stream`), '*', 'what', 'is this');
    expect((await place(server, saleId, 'alice')).status).toBe(201);
    const letter = await until('a letter', 8_000, async () => {
      return (await letters(server)).find((one) => one.saleId === saleId);
    });
    expect(await metric(server, 'doorbuster_dead_letters')).not.toBeNull();
    expect((await admin(server, 'DELETE', `/v1/ops/dead-letters/${letter.id}`)).status).toBe(204);
    expect(await letters(server)).toEqual([]);
  });

  it.runIf(LONG)(
    'an order that the ledger can never store: five attempts, a dead letter, then retried to its end or rejected',
    async () => {
      const saleId = await createSale(server, { stock: 4 });
      await shop.query(
        "ALTER TABLE orders ADD CONSTRAINT poison CHECK (NOT (buyer LIKE 'poison%' AND status = 'reserved'))",
      );
      const [mended, given] = await Promise.all([
        place(server, saleId, 'poison-1', { key: 'k' }),
        place(server, saleId, 'poison-2', { key: 'k' }),
      ]);
      expect([mended.status, given.status]).toEqual([202, 202]);
      const begunMs = performance.now();
      expect((await place(server, saleId, 'alice')).status).toBe(201);
      expect(performance.now() - begunMs).toBeLessThan(2_000);
      const all = await until('two letters', DIES_WITHIN_MS, async () => {
        const now = await letters(server);
        return now.length === 2 ? now : null;
      });
      expect(all.map(({ attempts }) => attempts)).toEqual([5, 5]);
      await shop.query('ALTER TABLE orders DROP CONSTRAINT poison');
      expect((await admin(server, 'POST', `/v1/ops/dead-letters/${mended.body.id}/retry`)).status).toBe(202);
      await until('the mended one is reserved', 5_000, async () => {
        return (await admin(server, 'GET', `/v1/orders/${mended.body.id}`)).body.status === 'reserved';
      });
      expect((await admin(server, 'DELETE', `/v1/ops/dead-letters/${given.body.id}`)).status).toBe(204);
      expect((await admin(server, 'GET', `/v1/orders/${given.body.id}`)).body).toMatchObject({
        status: 'rejected',
        reason: 'undeliverable',
      });
      expect(await counts(server, saleId)).toMatchObject({ total: 4, free: 2, queued: 0, reserved: 2 });
    },
    DIES_WITHIN_MS + 30_000,
  );

  it('doctor: a broker that runs, and one that does not', async () => {
    const { kind, broker } = ground;
    const url = kind.pipeUrl(broker, 'doctor');
    const well = await brokerCheck(environment('doctor', url, shop.databaseUrl));
    expect(well).toMatchObject({ status: 'ok', says: expect.stringMatching(/8 partitions/) });
    const likes = await brokerCheck(environment('doctor', url, shop.databaseUrl), runHere, 'broker, likes');
    expect(likes).toMatchObject({ status: 'ok', says: expect.stringMatching(/likes, 8 partitions/) });
    const says = expect.stringMatching(/cannot be reached.*PIPE_URL/);
    expect(await ill).toMatchObject({ status: 'wrong', says });
  });
}

describeWithRedis('a shop with a broker, for its operator', () => {
  describeWithPostgres('on PostgreSQL', () => {
    let redis: RedisServer;
    beforeAll(async () => {
      redis = await startRedis();
    });
    afterAll(cleanUpServers);

    describeWithOwnRabbitmq('through RabbitMQ', () => {
      beforeAll(async () => {
        ground = await sharedGround(RABBITMQ_KIND, POSTGRES_KIND, 1, redis);
      }, 60_000);
      suite();

      it('what cannot be used ends the start in one line', async () => {
        const { databaseUrl } = shop;
        const { host, port, url } = ground.broker;
        const connection = new Connection({ url });
        await connection.queueDeclare({ queue: 'mismatch.orders.3', durable: true });
        await connection.queueDeclare({ queue: 'half.likes.3', durable: true });
        await connection.close();
        const at = `${host}:${port}`;
        const wrong = environment('wrong', `amqp://guest:hunter2@${at}`, databaseUrl);
        await expectRefused(wrong, /user or password of PIPE_URL/, ['worker', 'serve']);
        await expectRefused(
          environment('wrong', `amqp://guest:guest@${at}/nowhere`, databaseUrl),
          /virtual host.*nowhere/,
        );
        await expectRefused(environment('mismatch', url, databaseUrl), /queue mismatch\.orders\.3.*not as it must be/);
        // The queues of likes are as necessary, where likes go through them.
        const half = environment('half', url, databaseUrl);
        await expectRefused(half, /queue half\.likes\.3.*not as it must be/);
        expect(await brokerCheck(half)).toMatchObject({ status: 'ok' });
        const likes = await brokerCheck(half, runHere, 'broker, likes');
        expect(likes).toMatchObject({ status: 'wrong', says: expect.stringMatching(/queue half\.likes\.3/) });
        expect((await runHere(['doctor', '--json', '--likes', 'direct'], half)).stdout).not.toContain('broker, likes');
      }, 60_000);
    });

    describeWithOwnKafka('through Kafka', () => {
      beforeAll(async () => {
        ground = await sharedGround(KAFKA_KIND, POSTGRES_KIND, 1, redis);
      }, 60_000);
      suite();

      it('what cannot be used ends the start in one line', async () => {
        const { databaseUrl } = shop;
        const { host, port, url } = ground.broker;
        const client = new Admin({ clientId: 'test', bootstrapBrokers: [`${host}:${port}`] });
        const configs = [{ name: 'cleanup.policy', value: 'compact' }];
        await client.createTopics({ topics: ['compacted'], partitions: 8, replicas: 1, configs });
        await client.close();
        await expectRefused(
          environment('compact', `${url}/compacted`, databaseUrl),
          /topic compacted.*cleanup\.policy/,
        );
        // A broker without authentication refuses a password.
        const named = environment('named', `kafka://shop:hunter2@${host}:${port}`, databaseUrl);
        await expectRefused(named, /user or password of PIPE_URL/, ['worker', 'serve']);
      }, 60_000);

      it.runIf(LONG)(
        'a wrong password ends the start in one line, the right one does not',
        async () => {
          const { databaseUrl } = shop;
          const login = 'org.apache.kafka.common.security.plain.PlainLoginModule required';
          const locked = await startKafka({
            settings: {
              'listener.security.protocol.map': 'PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT',
              'sasl.enabled.mechanisms': 'PLAIN',
              'sasl.mechanism.inter.broker.protocol': 'PLAIN',
              'listener.name.plaintext.plain.sasl.jaas.config': `${login} username="a" password="b" user_a="b" user_shop="sesame";`,
            },
          });
          const at = `${locked.host}:${locked.port}`;
          await expectRefused(
            environment('locked', `kafka://shop:hunter2@${at}`, databaseUrl),
            /user or password of PIPE_URL/,
          );
          const right = environment('locked', `kafka://shop:sesame@${at}`, databaseUrl);
          expect(await brokerCheck(right)).toMatchObject({ status: 'ok' });
        },
        60_000,
      );
    });
  });
});
