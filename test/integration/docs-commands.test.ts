import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { blocksOfSession, COMMANDS_ELSEWHERE } from '../support/docs/inventory.ts';
import type { Block } from '../support/docs/pages.ts';
import { runShell, type Session, type Told } from '../support/docs/shell.ts';
import { makeWorkshop } from '../support/docs/workshop.ts';
import { LONG } from '../support/long.ts';
import { cleanUp, createSale, run, startServer } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithOwnRabbitmq, describeWithPostgres } from '../support/servers/describe.ts';
import { kafkaAvailable, startKafka } from '../support/servers/kafka.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { freePort } from '../support/servers/process.ts';
import { startRabbitmq } from '../support/servers/rabbitmq.ts';
import { startRedis } from '../support/servers/redis.ts';

/** Runs the commands of the README and the guides as printed; see `test/support/docs/shell.ts`. */

const LEFT = COMMANDS_ELSEWHERE.map(({ command }) => command);

afterAll(cleanUp);
afterAll(cleanUpServers);

/** A session in a fresh folder, with free ports in place of the printed ones. */
async function session(blocks: Block[], options: Partial<Session> = {}): Promise<Told[]> {
  const folder = options.folder ?? makeWorkshop();
  const [first, second] = [await freePort(), await freePort()];
  return runShell({
    ...options,
    folder,
    blocks,
    left: [...LEFT, ...(options.left ?? [])],
    replaced: [...(options.replaced ?? []), [/\b8080\b/g, String(first)], [/\b8081\b/g, String(second)]],
    env: { PORT: String(first), URL: `http://127.0.0.1:${first}`, ...options.env },
  });
}

function outputOf(told: Told[], command: string): string {
  return told
    .filter(({ statement }) => statement.includes(command))
    .map(({ output }) => output)
    .join('\n');
}

describe('README.md', () => {
  it('from npm start to an order that is paid, and a server with secrets of its own', async () => {
    const blocks = blocksOfSession('first hour');
    // “In another terminal, the command it printed”, but with fewer than 5 000 buyers.
    const crowd = { ...blocks[0]!, code: 'eval "$(grep -o "npx doorbuster crowd .*" .served)"\n' };
    const told = await session(LONG ? [blocks[0]!, crowd, ...blocks.slice(1)] : blocks);
    expect(outputOf(told, 'npm start')).toContain('Doorbuster is open');
    expect(outputOf(told, '/pay')).toContain('"status":"paid"');
    if (LONG) expect(outputOf(told, 'npx doorbuster crowd')).toContain('verdict: every promise held');
  }, 60_000);
});

describe('docs/guides', () => {
  it('operate.md: doctor, serve, backup and check', async () => {
    const folder = makeWorkshop();
    for (const name of ['srv', 'backups']) mkdirSync(join(folder, name));
    const told = await session(blocksOfSession('operate'), {
      folder,
      replaced: [
        [/(?<=["' ])\/(?=(?:srv|backups)\/)/g, `${folder}/`],
        // A test listens on this machine only.
        [/(?<=\bserve .*)--host 0\.0\.0\.0/g, '--host 127.0.0.1'],
      ],
      left: spawnSync('sqlite3', ['--version']).status === 0 ? [] : [/^sqlite3 /],
    });
    expect(outputOf(told, 'doctor')).toContain('no errors');
    expect(outputOf(told, 'check')).not.toBe('');
  }, 60_000);

  it('payments.md, webhooks.md, accounts.md, likes.md and seats.md: requests to a shop with an order', async () => {
    const key = 'a-key-of-forty-eight-hexadecimal-characters-1234';
    const env = { DOORBUSTER_ADMIN_KEY: `alice:${key}`, WEBHOOKS_PRIVATE: 'on', ACCOUNTS: 'on' };
    const server = await startServer({ env });
    const admin = {
      ...server,
      call: (method: string, path: string, given = {}) => server.call(method, path, { ...given, bearer: key }),
    };
    const sale = await createSale(admin);
    const order = await server.call('POST', `/v1/sales/${sale}/orders`, { buyer: 'alice', body: { item: 'voucher' } });
    const told = await session(blocksOfSession('requests'), {
      replaced: [
        [/http:\/\/127\.0\.0\.1:8080/g, server.url],
        // The host of an endpoint is resolved: a reader would use an existing one.
        ['shop.example', '127.0.0.1'],
      ],
      env: { ADMIN_KEY: key, ORDER: order.body.id },
    });
    expect(outputOf(told, '/confirm')).toContain('"status":"paid"');
    expect(outputOf(told, '/v1/ops/webhooks')).toContain('"secret":');
    expect(outputOf(told, '/v1/sessions')).toContain('"token":');
    expect(outputOf(told, '/like')).toContain('"changed":true');
    expect(outputOf(told, '/move')).toContain('"seats":["Stalls/A/1","Stalls/A/2"]');
    expect(outputOf(told, '"together"')).toContain('"seats":["Stalls/A/6","Stalls/A/7","Stalls/A/8"]');
    expect(outputOf(told, '/unblock')).toContain('"blocked":0');
  }, 60_000);
});

describe.runIf(LONG)('on several machines', () => {
  describeWithPostgres('Redis and PostgreSQL', () => {
    it('README.md and distributed.md: migrate, doctor, two servers and a worker', async () => {
      const [redis, postgres] = await Promise.all([startRedis(), startPostgres()]);
      const told = await session(blocksOfSession('several machines'), {
        replaced: [
          ['redis://127.0.0.1:6379', redis.url],
          ['127.0.0.1:5432', `127.0.0.1:${postgres.port}`],
        ],
        // The README sets them some lines above.
        env: {
          DOORBUSTER_ADMIN_KEY: 'alice:some-admin-key-1234',
          DOORBUSTER_AUTH_SECRET: 'a-secret-of-thirty-two-bytes-or-more',
        },
      });
      expect(outputOf(told, 'doctor')).not.toContain('✗');
    }, 60_000);
  });
});

describe.runIf(LONG)('with a broker', () => {
  describeWithOwnRabbitmq('RabbitMQ, then Kafka', () => {
    it.runIf(kafkaAvailable)(
      'pipes.md: rights, start, look, and the move from one to the other',
      async () => {
        const [redis, postgres, rabbitmq, kafka] = await Promise.all([
          startRedis(),
          startPostgres(),
          startRabbitmq(),
          startKafka(),
        ]);
        const shop = { REDIS_URL: redis.url, DATABASE_URL: postgres.url };
        expect((await run(['migrate'], shop)).code).toBe(0);
        const blocks = blocksOfSession('brokers');
        const told = await session(
          // The page explains the set-up of the broker after the start, and refers to it there.
          [
            ...blocks.filter(({ heading }) => heading === 'Rights'),
            ...blocks.filter(({ heading }) => heading !== 'Rights'),
          ],
          {
            withinMs: 230_000,
            path: [rabbitmq.controlPath()],
            fill: shop,
            replaced: [
              ['127.0.0.1:5672', `127.0.0.1:${rabbitmq.port}`],
              ['127.0.0.1:9092', `127.0.0.1:${kafka.port}`],
            ],
          },
        );
        expect(outputOf(told, 'doctor')).toContain('amqp:shop/doorbuster.orders, 8 partitions');
        expect(outputOf(told, 'doctor')).toContain('kafka:doorbuster.orders, 8 partitions');
        expect(outputOf(told, 'doctor')).toContain('amqp:shop/doorbuster.likes, 8 partitions');
        expect(outputOf(told, 'doorbuster worker')).toContain('worker started');
        expect(outputOf(told, 'list_queues')).toContain('doorbuster.orders.4');
      },
      240_000,
    );
  });
});
