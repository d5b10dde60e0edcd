import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { AclOperations, AclPermissionTypes, Admin, ResourcePatternTypes, ResourceTypes } from '@platformatic/kafka';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { createDoorbuster, type Doorbuster } from '../../src/index.ts';
import { migrateSqlLedger } from '../../src/ledger/drivers/open.ts';
import { startWorker } from '../support/distributed.ts';
import { blocksOf } from '../support/docs/pages.ts';
import { until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, ROOT, run } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import {
  describeWithOwnKafka,
  describeWithOwnMysql,
  describeWithOwnPostgres,
  describeWithOwnRabbitmq,
  describeWithRedis,
} from '../support/servers/describe.ts';
import { startKafka } from '../support/servers/kafka.ts';
import { startMariadb } from '../support/servers/mariadb.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { startRabbitmq } from '../support/servers/rabbitmq.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/**
 * “Rights” of docs/guides/distributed.md and docs/guides/pipes.md: the granted rights are sufficient, and a migration needs the other
 * user.
 */

const guide = readFileSync(join(ROOT, 'docs/guides/distributed.md'), 'utf8');

/** The statements of the guide's block in that language. */
function granted(kind: string): string[] {
  const section = guide.slice(guide.indexOf('## Rights'));
  const block = new RegExp(`\`\`\`${kind}\n([\\s\\S]*?)\`\`\``).exec(section)![1]!;
  return block.split(/;?\n/).filter((line) => line.trim() !== '' && !/^(--|#)/.test(line));
}

const withUser = (url: string, user: string): string =>
  url.replace(/\/\/[^@]*@/, `//${user}:…@`).replace('…', 'secret');

afterAll(cleanUp);
afterAll(cleanUpServers);

describeWithRedis('rights', () => {
  let redis: RedisServer;
  let shop: Doorbuster | null = null;

  beforeAll(async () => {
    redis = await startRedis();
    for (const line of granted('redis')) await redis.command(...line.replace('…', 'secret').split(' '));
  }, 60_000);
  afterEach(async () => {
    await shop?.close();
    shop = null;
  });

  /** A sale from its beginning to its end, as the user that runs the shop. */
  async function sells(database: string, broker: { pipe?: string } = {}): Promise<void> {
    const url = `redis://doorbuster:secret@127.0.0.1:${redis.port}`;
    await redis.command('FLUSHALL');
    shop = await createDoorbuster({ redis: url, database, sandbox: true, ...broker });
    const made = await shop.sales.create({
      name: 'Vouchers',
      opensAt: 0,
      closesAt: Date.now() + 3_600_000,
      perBuyer: 3,
      items: [{ code: 'voucher', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: 5 }],
    });
    if (!made.ok) throw new Error(made.code);
    const sale = made.sale.id;
    const orders: string[] = [];
    for (const key of ['a', 'b']) {
      const placed = await shop.orders.place({ sale, buyer: 'alice', item: 'voucher', key });
      if (!placed.ok) throw new Error(placed.code);
      orders.push(placed.order.id);
    }
    expect(await shop.orders.pay(orders[0]!, { method: 'sandbox', token: 'ok' })).toMatchObject({ ok: true });
    expect(await shop.orders.refund(orders[0]!)).toMatchObject({ ok: true });
    expect(await shop.orders.cancel(orders[1]!)).toMatchObject({ ok: true });
    expect(await shop.sales.addStock(sale, 'voucher', 5)).toMatchObject({ ok: true });
    expect(await shop.check()).toMatchObject({ status: 'consistent' });
    const post = await shop.posts.create({ author: 'alice', title: 'Queue', content: 'Long.' });
    if (!post.ok) throw new Error(post.code);
    const { id } = post.post;
    expect(await shop.likes.like({ post: id }, 'bob')).toMatchObject({ ok: true, changed: true });
    await until('the like is stored', 10_000, async () => (await shop!.posts.get(id))!.likes.exact);
    expect(await shop.sales.close(sale)).toMatchObject({ ok: true });
    const env = { REDIS_URL: url, DATABASE_URL: database };
    const { stdout } = await run(['doctor'], env);
    expect(stdout).toMatch(/✓ redis /);
    expect(stdout).toMatch(/✓ database /);
    expect(stdout).toMatch(/✓ shop /);
  }

  async function mayNotMigrate(database: string): Promise<void> {
    const { code, stderr } = await run(['migrate'], { DATABASE_URL: database });
    expect(code).toBe(1);
    expect(stderr).toMatch(/denied/);
  }

  it('a missing right in Redis is named, and not reported as a wrong password', async () => {
    await redis.command('ACL', 'SETUSER', 'poor', 'on', '>secret', '~*', '&*', '+@all', '-info');
    const url = `redis://poor:secret@127.0.0.1:${redis.port}`;
    const error = await createDoorbuster({ redis: url, database: 'mysql://127.0.0.1:1/x' }).catch((thrown) => thrown);
    expect(error).toMatchObject({ code: 'bad_config', message: expect.stringMatching(/NOPERM.*'info'/) });
    expect(error.message).not.toMatch(/password/);
  });

  it('doctor says what is wrong with Redis, as serve does, and does not look for the shop there', async () => {
    const wrong: [string, RegExp][] = [
      [
        `redis://doorbuster:wrong@127.0.0.1:${redis.port}`,
        /✗ redis .*refuses the user or password of REDIS_URL \(WRONGPASS\)/,
      ],
      ['redis://127.0.0.1:1', /✗ redis .*ECONNREFUSED/],
    ];
    await Promise.all(
      wrong.map(async ([REDIS_URL, words]) => {
        const { stdout } = await run(['doctor'], { REDIS_URL, DATABASE_URL: 'mysql://127.0.0.1:1/x' });
        expect(stdout).toMatch(words);
        expect(stdout).not.toMatch(/wrong:wrong|:wrong@/);
      }),
    );
  });

  describeWithOwnMysql('on MariaDB', () => {
    it('one user migrates, another runs the shop', async () => {
      const server = await startMariadb();
      for (const sql of granted('sql')) await server.query(sql.replace('…', 'secret'));
      await mayNotMigrate(withUser(server.url, 'shop_run'));
      await migrateSqlLedger(withUser(server.url, 'shop_migrate'), systemRuntime());
      await sells(withUser(server.url, 'shop_run'));
    }, 30_000);
  });

  describeWithOwnPostgres('on PostgreSQL', () => {
    it('one user migrates, another runs the shop', async () => {
      const server = await startPostgres();
      for (const sql of granted('pgsql')) await server.query(sql.replace('…', 'secret'));
      await mayNotMigrate(withUser(server.url, 'shop_run'));
      await migrateSqlLedger(withUser(server.url, 'shop_migrate'), systemRuntime());
      await sells(withUser(server.url, 'shop_run'));
    }, 30_000);
  });

  describeWithOwnRabbitmq('at RabbitMQ', () => {
    it.runIf(LONG)(
      'a worker starts with the rights of the guide, and carries orders and likes',
      async () => {
        const [broker, database] = await Promise.all([startRabbitmq(), startPostgres()]);
        const [printed] = blocksOf('docs/guides/pipes.md').filter(({ heading }) => heading === 'Rights');
        const path = `${broker.controlPath()}:${process.env.PATH}`;
        const { status, stderr } = spawnSync('bash', ['-e', '-c', printed!.code], {
          env: { ...process.env, PATH: path },
          encoding: 'utf8',
        });
        expect(status, stderr).toBe(0);
        await migrateSqlLedger(database.url, systemRuntime());
        await redis.command('FLUSHALL');
        const pipe = `amqp://shop:secret@127.0.0.1:${broker.port}/shop`;
        const env = { REDIS_URL: redis.url, DATABASE_URL: database.url, PIPE_URL: pipe };
        const { stdout } = await run(['doctor'], env);
        expect(stdout).toMatch(/✓ broker .*amqp:shop\/doorbuster\.orders, 8 partitions/);
        expect(stdout).toMatch(/✓ broker, likes .*amqp:shop\/doorbuster\.likes, 8 partitions/);
        const worker = await startWorker(env);
        await worker.stop();
        await sells(database.url, { pipe });
      },
      60_000,
    );
  });

  describeWithOwnKafka('at Kafka', () => {
    it.runIf(LONG)(
      'a worker starts with the rights of the guide, and carries orders and likes',
      async () => {
        const login = 'org.apache.kafka.common.security.plain.PlainLoginModule required';
        const users = 'username="root" password="r" user_root="r" user_shop="secret"';
        const [broker, database] = await Promise.all([
          startKafka({
            settings: {
              'listener.security.protocol.map': 'PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT',
              'sasl.enabled.mechanisms': 'PLAIN',
              'sasl.mechanism.inter.broker.protocol': 'PLAIN',
              'listener.name.plaintext.plain.sasl.jaas.config': `${login} ${users};`,
              'authorizer.class.name': 'org.apache.kafka.metadata.authorizer.StandardAuthorizer',
              // The controller's own listener has no accounts.
              'super.users': 'User:root;User:ANONYMOUS',
            },
          }),
          startPostgres(),
        ]);
        const root = new Admin({
          clientId: 'test',
          bootstrapBrokers: [`${broker.host}:${broker.port}`],
          sasl: { mechanism: 'PLAIN', username: 'root', password: 'r' },
        });
        const printed = blocksOf('docs/guides/pipes.md').filter(({ heading }) => heading === 'Rights')[1]!.code;
        const rights = printed.trim().split('\n').map(rightsOf);
        const topics = rights.flatMap(({ resources }) =>
          resources.flatMap(([kind, name]) => (kind === 'TOPIC' ? [name] : [])),
        );
        // The guide’s commands do not let the user create them.
        await root.createTopics({ topics, partitions: 8, replicas: 1 });
        const creations = rights.flatMap(({ operations, resources }) =>
          resources.flatMap(([kind, resourceName]) =>
            operations.map((operation) => ({
              resourceType: ResourceTypes[kind],
              resourceName,
              resourcePatternType: ResourcePatternTypes.LITERAL,
              principal: 'User:shop',
              host: '*',
              operation: AclOperations[operation],
              permissionType: AclPermissionTypes.ALLOW,
            })),
          ),
        );
        await root.createAcls({ creations });
        await root.close();
        await migrateSqlLedger(database.url, systemRuntime());
        await redis.command('FLUSHALL');
        const pipe = `kafka://shop:secret@${broker.host}:${broker.port}`;
        const env = { REDIS_URL: redis.url, DATABASE_URL: database.url, PIPE_URL: pipe };
        const { stdout } = await run(['doctor'], env);
        expect(stdout).toMatch(/✓ broker .*kafka:doorbuster\.orders, 8 partitions/);
        expect(stdout).toMatch(/✓ broker, likes .*kafka:doorbuster\.likes, 8 partitions/);
        const worker = await startWorker(env);
        await worker.stop();
        await sells(database.url, { pipe });
      },
      90_000,
    );
  });
});

interface Rights {
  operations: (keyof typeof AclOperations)[];
  resources: ['TOPIC' | 'GROUP', string][];
}

/** What one `kafka-acls.sh` command grants. The tests have Kafka without its scripts. */
function rightsOf(command: string): Rights {
  const options = [...command.matchAll(/--(operation|topic|group) (\S+)/g)];
  return {
    operations: options.flatMap(([, option, value]) =>
      option === 'operation' ? [value!.toUpperCase() as Rights['operations'][number]] : [],
    ),
    resources: options.flatMap(([, option, value]) =>
      option === 'operation' ? [] : [[option!.toUpperCase() as 'TOPIC' | 'GROUP', value!]],
    ),
  };
}
