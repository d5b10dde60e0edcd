import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, expect, it } from 'vitest';
import { type Check, examine } from '../../src/cli/doctor.ts';
import { FOLDER } from '../../src/ledger/drivers/sqlite/migrate.ts';
import { migrations } from '../../src/ledger/schema/migrations.ts';
import { cleanUp, createSale, run, startServer, temporaryFolder } from '../support/server.ts';

afterAll(cleanUp);

const NOW = Date.UTC(2026, 10, 11);
const KEYS = { DOORBUSTER_ADMIN_KEY: 'k'.repeat(16), DOORBUSTER_AUTH_SECRET: 's'.repeat(32) };

/** Every file with its content and times, which must not change. */
function photograph(folder: string): unknown {
  return readdirSync(folder).map((name) => {
    const { size, mtimeMs, mode } = statSync(join(folder, name));
    return {
      name,
      size,
      mtimeMs,
      mode,
      hash: createHash('sha1')
        .update(readFileSync(join(folder, name)))
        .digest('hex'),
    };
  });
}

/** Examines the folder and checks that nothing was changed. */
async function examined(folder: string, env: Record<string, string> = KEYS): Promise<Record<string, Check>> {
  const before = existsSync(folder) ? photograph(folder) : null;
  const checks = await examine({ data: folder }, env, NOW);
  expect(existsSync(folder) ? photograph(folder) : null).toEqual(before);
  return Object.fromEntries(checks.map((check) => [check.name, check]));
}

function statuses(checks: Record<string, Check>): string[] {
  return [...new Set(Object.values(checks).map(({ status }) => status))];
}

/** A folder as a server leaves it, with an order in it; killed: with its -wal. */
async function usedFolder({ killed = false } = {}): Promise<string> {
  const server = await startServer();
  const sale = await createSale(server);
  await server.call('POST', `/v1/sales/${sale}/orders`, { buyer: 'ann', body: { item: 'voucher' } });
  if (killed) await server.kill();
  else await server.stop();
  return server.data;
}

it('a folder that does not exist yet: all ok, and it is not created', async () => {
  const folder = join(temporaryFolder(), 'a', 'b');
  const checks = await examined(folder);
  expect(statuses(checks)).toEqual(['ok']);
  expect(checks['data folder']!.says).toContain('serve will create it');
  const { code, stdout } = await run(['doctor', '--data', folder], KEYS);
  expect(stdout).toMatch(/✓ node +ok: 24\./);
  expect([code, stdout.trimEnd().split('\n').at(-1)]).toEqual([0, 'no errors']);
  expect(existsSync(folder)).toBe(false);
});

it('after a run: ok, by text and by --json', async () => {
  const folder = await usedFolder();
  const checks = await examined(folder);
  expect(statuses(checks)).toEqual(['ok']);
  expect(checks['in use']!.says).toBe('no server is using the data folder');
  expect(checks.journal!.says).toContain('WAL');
  expect(checks.integrity!.status).toBe('ok');
  const { code, stdout } = await run(['doctor', '--data', folder, '--json'], KEYS);
  expect([code, JSON.parse(stdout).ok]).toEqual([0, true]);
});

it('while a server runs: ok, says so, and the server goes on', async () => {
  const server = await startServer();
  const sale = await createSale(server);
  const { code, stdout } = await run(['doctor', '--data', server.data], KEYS);
  expect(stdout).toContain('a server is using the data folder now');
  expect(stdout).toMatch(/✓ schema .*\n.*\n✓ integrity/);
  expect(code).toBe(0);
  const order = await server.call('POST', `/v1/sales/${sale}/orders`, { buyer: 'ann', body: { item: 'voucher' } });
  expect(order.status).toBe(201);
  expect(await server.stop()).toBe(0);
});

it('after kill -9: the ledger is read with its -wal, and left as it is', async () => {
  const folder = await usedFolder({ killed: true });
  expect(statSync(join(folder, 'ledger.sqlite-wal')).size).toBeGreaterThan(0);
  const checks = await examined(folder);
  expect(statuses(checks)).toEqual(['ok']);
  expect(checks.schema!.says).toBe(`version ${migrations(FOLDER).at(-1)!.version}`);
  rmSync(join(folder, 'ledger.sqlite-shm'));
  expect((await examined(folder)).ledger).toMatchObject({
    status: 'warn',
    says: expect.stringContaining('doorbuster migrate'),
  });
});

it('a damaged ledger: says what to do, exit code 1', async () => {
  const folder = await usedFolder();
  const file = join(folder, 'ledger.sqlite');
  // Every page but the first: the schema can be read, the rest cannot.
  writeSync(openSync(file, 'r+'), Buffer.alloc(statSync(file).size - 4096, 0x5a), 0, undefined, 4096);
  expect((await examined(folder)).integrity).toMatchObject({
    status: 'wrong',
    says: expect.stringContaining('backup'),
  });
  writeFileSync(file, 'this is not a database, but long enough to be taken for one'.repeat(10));
  expect((await examined(folder)).integrity).toMatchObject({
    status: 'wrong',
    says: expect.stringContaining('damaged'),
  });
  const { code, stdout } = await run(['doctor', '--data', folder], KEYS);
  expect(stdout).toMatch(/✗ integrity .*restore it from a backup/);
  expect(code).toBe(1);
});

it('a schema that is newer or older than the program', async () => {
  const folder = temporaryFolder();
  const ledger = new DatabaseSync(join(folder, 'ledger.sqlite'));
  ledger.exec('CREATE TABLE migrations (version INTEGER PRIMARY KEY); INSERT INTO migrations VALUES (9999)');
  expect((await examined(folder)).schema).toMatchObject({
    status: 'wrong',
    says: expect.stringContaining('newer doorbuster'),
  });
  ledger.exec('DELETE FROM migrations');
  ledger.close();
  expect((await examined(folder)).schema).toMatchObject({
    status: 'warn',
    says: expect.stringContaining('doorbuster migrate'),
  });
});

it('wrong configuration: each value is named; weak and missing keys are warned of', async () => {
  const env = { PORT: 'x', SSE_MAX: '-1', REDIS_URL: 'http://r', LOG_LEVEL: 'loud', ...KEYS };
  const wrong = (await examine({ data: temporaryFolder() }, env, NOW)).filter(({ name }) => name === 'config');
  expect(wrong.map(({ status, says }) => `${status} ${says.split(' ')[0]}`).sort()).toEqual([
    'wrong LOG_LEVEL',
    'wrong PORT',
    'wrong REDIS_URL',
    'wrong SSE_MAX',
  ]);
  const weak = await examined(temporaryFolder(), {
    DOORBUSTER_ADMIN_KEY: 'ann:short',
    DOORBUSTER_AUTH_SECRET: 'short',
  });
  expect([weak['admin key']!.status, weak['auth secret']!.status]).toEqual(['warn', 'warn']);
  expect(weak.secrets, 'on this machine they will do').toBeUndefined();
  const outside = await examined(temporaryFolder(), { ...KEYS, HOST: '192.0.2.1' });
  expect(outside.secrets, 'serve would refuse to listen with them').toMatchObject({ status: 'wrong' });
  expect(outside.secrets!.says).toMatch(/^DOORBUSTER_ADMIN_KEY .*: to listen on 192\.0\.2\.1, set a random one/);
  const none = await examined(temporaryFolder(), {});
  expect([none['admin key']!.status, none['auth secret']!.status]).toEqual(['warn', 'warn']);
  const { code, stdout } = await run(['doctor', '--data', temporaryFolder()], env);
  expect([code, stdout.trimEnd().split('\n').at(-1)]).toEqual([1, '4 errors: ✗']);
});

it('a data folder that is a file, and a clock that cannot be right', async () => {
  const folder = temporaryFolder();
  writeFileSync(join(folder, 'file'), '');
  expect(
    (await examine({ data: join(folder, 'file') }, KEYS, NOW)).find(({ name }) => name === 'data folder'),
  ).toMatchObject({
    status: 'wrong',
  });
  mkdirSync(join(folder, 'data'));
  const clock = (await examine({ data: join(folder, 'data') }, KEYS, Date.UTC(1970, 0, 1))).find(
    ({ name }) => name === 'clock',
  );
  expect(clock).toMatchObject({ status: 'wrong', says: expect.stringContaining('set the clock') });
});
