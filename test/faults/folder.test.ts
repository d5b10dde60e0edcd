import { spawn } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  closeSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readConfig } from '../../src/base/config.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import { CrowdClient } from '../support/crowd-client.ts';
import { ledgerOrders } from '../support/crowd-judge.ts';
import { CrowdRecord, crowdOf } from '../support/crowd-record.ts';
import { startCalmServer } from '../support/fault-server.ts';
import { sleep, until } from '../support/fault-wait.ts';
import {
  ADMIN_KEY,
  AUTH_SECRET,
  BIN,
  cleanUp,
  createSale,
  run,
  type TestServer,
  temporaryFolder,
} from '../support/server.ts';

const NOBODY = 65534;
const AS_NOBODY = ['setpriv', `--reuid=${NOBODY}`, `--regid=${NOBODY}`, '--clear-groups'];
const KEYS = { DOORBUSTER_ADMIN_KEY: ADMIN_KEY, DOORBUSTER_AUTH_SECRET: AUTH_SECRET };
const RECOVERY_MS_MAX = 4_000;
/** The tests run servers under another uid, because root can write anywhere. */
const isRoot = process.getuid?.() === 0;

afterAll(cleanUp);

/** A folder that everybody may enter: mkdtemp creates them for their owner only. */
function publicFolder(): string {
  const folder = temporaryFolder();
  chmodSync(folder, 0o755);
  return folder;
}

async function out(server: TestServer): Promise<{ reason: string }> {
  const why = await server.call('GET', '/readyz');
  expect(why.status).toBe(503);
  expect((await server.call('GET', '/healthz')).status).toBe(200);
  const order = await server.call('POST', '/v1/sales/1/orders', { buyer: 'alice', body: { item: 'voucher' } });
  expect([order.status, order.body.code, order.headers.get('retry-after')]).toEqual([503, 'unavailable', '1']);
  const sale = await server.call('POST', '/v1/sales', { admin: true, body: {} });
  expect([422, 503]).toContain(sale.status);
  return { reason: why.body.parts.ledger };
}

async function sells(server: TestServer): Promise<void> {
  await until('it opens by itself', RECOVERY_MS_MAX, async () => (await server.call('GET', '/readyz')).status === 200);
  const saleId = await createSale(server, { stock: 1 });
  const path = `/v1/sales/${saleId}/orders`;
  expect((await server.call('POST', path, { buyer: 'alice', body: { item: 'voucher' } })).status).toBe(201);
}

// Concurrent, because they mostly wait for the next attempt.
describe.runIf(isRoot).concurrent('a data folder that cannot be written (another uid)', () => {
  it('is empty and read-only: 503 and why; it opens when the folder becomes writable', async () => {
    const data = join(publicFolder(), 'data');
    mkdirSync(data, { mode: 0o555 });
    const server = await startCalmServer({ data, under: AS_NOBODY });
    expect((await out(server)).reason).toMatch(/not writable/);
    chmodSync(data, 0o777);
    await sells(server);
    expect(await server.stop()).toBe(0);
  });

  it('does not exist in a folder that is read-only: the same', async () => {
    const parent = publicFolder();
    const server = await startCalmServer({ data: join(parent, 'data'), under: AS_NOBODY });
    expect((await out(server)).reason).toMatch(/cannot be made/);
    chmodSync(parent, 0o777);
    await sells(server);
    expect(await server.stop()).toBe(0);
  });

  it('has a ledger of somebody else: 503, nothing changed; and all is there when it may write', async () => {
    const data = join(publicFolder(), 'data');
    let server = await startCalmServer({ data });
    const saleId = await createSale(server, { stock: 2 });
    const path = `/v1/sales/${saleId}/orders`;
    const mine = { buyer: 'alice', key: 'k', body: { item: 'voucher' } };
    const first = await server.call('POST', path, mine);
    expect(await server.stop()).toBe(0);
    chmodSync(data, 0o755);
    const before = contentOf(data);

    server = await startCalmServer({ data, under: AS_NOBODY });
    expect((await out(server)).reason).toMatch(/not writable|read-only/);
    expect(contentOf(data)).toEqual(before);
    // An operator may change the files or the folder first.
    chownSync(data, NOBODY, NOBODY);
    await sleep(1_200);
    expect((await server.call('GET', '/readyz')).status).toBe(503);
    for (const file of readdirSync(data)) chownSync(join(data, file), NOBODY, NOBODY);
    await until(
      'it opens by itself',
      RECOVERY_MS_MAX,
      async () => (await server.call('GET', '/readyz')).status === 200,
    );
    const again = await server.call('POST', path, mine);
    expect([again.status, again.body]).toEqual([201, first.body]);
    expect(await server.stop()).toBe(0);
  });

  it('has a lock file that cannot be written: no lock, so no server', async () => {
    const data = join(publicFolder(), 'data');
    const first = await startCalmServer({ data });
    expect(await first.stop()).toBe(0);
    chmodSync(data, 0o777);
    for (const file of readdirSync(data)) chmodSync(join(data, file), 0o666);
    chmodSync(join(data, 'lock.sqlite'), 0o444);
    // SQLite opens such a file read-only and then grants an "exclusive" transaction to everybody.
    const one = await startCalmServer({ data, under: AS_NOBODY });
    expect((await out(one)).reason).toMatch(/not writable|read-only/);
    chmodSync(join(data, 'lock.sqlite'), 0o666);
    await sells(one);
    expect(await one.stop()).toBe(0);
  });
});

describe('one data folder, two processes', () => {
  it('the second server and `migrate` refuse with one line; after kill -9 of the first a new one starts at once', async () => {
    const first = await startCalmServer();
    const saleId = await createSale(first, { stock: 1 });
    for (const command of [
      ['serve', '--port', '0', '--data', first.data],
      ['migrate', '--data', first.data],
    ]) {
      const second = await run(command, KEYS);
      expect(second).toEqual({
        code: 1,
        stdout: '',
        stderr: oneLine(/data folder .*doorbuster-.* is in use: another doorbuster process has it/),
      });
    }
    // The first server is not affected.
    const path = `/v1/sales/${saleId}/orders`;
    expect((await first.call('POST', path, { buyer: 'alice', body: { item: 'voucher' } })).status).toBe(201);

    await first.kill();
    const next = await startCalmServer({ data: first.data });
    expect((await next.call('POST', path, { buyer: 'bob', body: { item: 'voucher' } })).body.code).toBe('sold_out');
    expect(await next.stop()).toBe(0);
    expect((await run(['migrate', '--data', first.data])).code).toBe(0);
  });

  it('of four that start at the same time one runs', async () => {
    const data = temporaryFolder();
    const starts = await Promise.allSettled(Array.from({ length: 4 }, () => startCalmServer({ data })));
    const running = starts.filter((start) => start.status === 'fulfilled');
    for (const start of starts) {
      if (start.status === 'rejected')
        expect(String(start.reason)).toMatch(/ended with 1: .*another doorbuster process/);
    }
    expect(running.length).toBe(1);
    expect(await running[0]!.value.stop()).toBe(0);
  });
});

describe('a ledger file that is damaged', () => {
  const DAMAGED = /ledger\.sqlite is damaged and was left as it is/;
  let stopped: string;
  let killed: string;
  let saleId: string;

  beforeAll(async () => {
    const server = await startCalmServer();
    saleId = await createSale(server, { stock: 3_000 });
    const record = new CrowdRecord();
    const client = new CrowdClient(server.url, 32);
    const buyers = Array.from({ length: 3_000 }, (_, n) => `buyer-${n}`);
    await crowdOf(buyers, 64, (buyer) => record.place(client, { saleId, buyer, key: `key of ${buyer}` }));
    client.close();
    killed = temporaryFolder();
    stopped = temporaryFolder();
    // The same shop twice: after kill -9, with its WAL, and after a clean stop.
    await server.kill();
    copyData(server.data, killed);
    const again = await startCalmServer({ data: server.data });
    expect(await again.stop()).toBe(0);
    copyData(server.data, stopped);
    expect(readdirSync(stopped)).not.toContain('ledger.sqlite-wal');
    expect(statSync(join(killed, 'ledger.sqlite-wal')).size).toBeGreaterThan(0);
  }, 60_000);

  const damages: [name: string, left: 'stopped' | 'killed', damage: (file: string) => void][] = [
    ['random garbage', 'stopped', garbage],
    ['random garbage', 'killed', garbage],
    ['a text file', 'stopped', (file) => writeFileSync(file, 'Remember to buy milk.\n'.repeat(500))],
    ['cut in half', 'stopped', (file) => truncateSync(file, statSync(file).size >> 1)],
    ['cut in the middle of a page', 'killed', (file) => truncateSync(file, (statSync(file).size >> 1) + 1000)],
    ['its first page overwritten after the header', 'stopped', (file) => overwrite(file, 100, 3_000)],
    ['a page in the middle overwritten', 'stopped', (file) => overwrite(file, pageInUse(file) * 4096, 4096)],
    ['a page in the middle overwritten', 'killed', (file) => overwrite(file, pageInUse(file) * 4096, 4096)],
  ];

  it.each(damages)('%s (%s): cannot be opened, and is left as it is', (_, left, damage) => {
    const data = temporaryFolder();
    copyData(left === 'stopped' ? stopped : killed, data);
    damage(join(data, 'ledger.sqlite'));
    const before = contentOf(data);
    expect(() => SqliteLedger.open(data, systemRuntime())).toThrow(DAMAGED);
    expect(changed(before, contentOf(data))).toEqual([]);
  });

  it('ends the start with one line, of serve and of migrate', async () => {
    const data = temporaryFolder();
    copyData(killed, data);
    garbage(join(data, 'ledger.sqlite'));
    const before = contentOf(data);
    for (const command of ['serve', 'migrate']) {
      const ended = await ends([command, '--data', data], KEYS);
      expect(ended).toEqual({ code: 1, stdout: '', stderr: oneLine(DAMAGED) });
      expect(changed(before, contentOf(data)), command).toEqual([]);
    }
  });

  it('empty, with a log beside it: that is no new shop', async () => {
    const data = temporaryFolder();
    copyData(killed, data);
    truncateSync(join(data, 'ledger.sqlite'), 0);
    const before = contentOf(data);
    expect(() => SqliteLedger.open(data, systemRuntime())).toThrow(DAMAGED);
    expect(changed(before, contentOf(data))).toEqual([]);
  });

  it('the undamaged copies start and have every order', async () => {
    for (const left of [stopped, killed]) {
      const data = temporaryFolder();
      copyData(left, data);
      const server = await startCalmServer({ data });
      expect((await ledgerOrders(server, saleId)).length).toBe(3_000);
      expect(await server.stop()).toBe(0);
    }
  });

  it('a newer schema is refused in one line, by serve and by migrate', async () => {
    const data = temporaryFolder();
    copyData(stopped, data);
    const db = new DatabaseSync(join(data, 'ledger.sqlite'));
    db.exec("INSERT INTO migrations (version, name, applied_at) VALUES (9999, 'of the future', 0)");
    db.close();
    for (const command of ['serve', 'migrate']) {
      const ended = await ends([command, '--data', data], KEYS);
      expect(ended).toEqual({ code: 1, stdout: '', stderr: oneLine(/schema 9999.*start a newer version/) });
    }
  });

  function garbage(file: string): void {
    writeFileSync(file, Buffer.from(Array.from({ length: 65_536 }, (_, n) => (n * 7919) % 251)));
  }

  /** A page that a table or index uses (a free one may contain anything), and that the WAL does not contain. */
  function pageInUse(file: string): number {
    const pages = statSync(file).size / 4096;
    const log = existsSync(`${file}-wal`) ? readFileSync(`${file}-wal`) : Buffer.alloc(0);
    const logged = new Set<number>();
    for (let frame = 32; frame < log.length; frame += 24 + 4096) logged.add(log.readUInt32BE(frame));
    const copy = temporaryFolder();
    copyData(dirname(file), copy);
    using db = new DatabaseSync(join(copy, 'ledger.sqlite'));
    const used = db.prepare('SELECT pageno FROM dbstat WHERE pageno > ? ORDER BY pageno').all(Math.floor(pages / 3));
    const found = used.map(({ pageno }) => Number(pageno)).find((page) => page <= pages && !logged.has(page));
    return found! - 1;
  }

  function overwrite(file: string, at: number, bytes: number): void {
    const open = openSync(file, 'r+');
    writeSync(open, Buffer.alloc(bytes, 0xa5), 0, bytes, at);
    closeSync(open);
  }
});

describe('serve with a wrong setting', () => {
  const wrong: [name: string, args: string[], env: Record<string, string>, says: RegExp][] = [
    ['no admin key', [], { DOORBUSTER_ADMIN_KEY: '' }, /DOORBUSTER_ADMIN_KEY/],
    [
      'an address of another machine',
      [],
      {
        HOST: '203.0.113.7',
        DOORBUSTER_ADMIN_KEY: 'a-long-admin-key-0123',
        DOORBUSTER_AUTH_SECRET: 'a-long-secret-0123456',
      },
      /host/i,
    ],
    [
      'a key that can be guessed, for everybody',
      [],
      { HOST: '0.0.0.0', DOORBUSTER_ADMIN_KEY: 'a' },
      /DOORBUSTER_ADMIN_KEY/,
    ],
    ['a proxy that is no address', [], { TRUST_PROXY: 'my proxy' }, /TRUST_PROXY/],
    ['an unknown flag', ['--prot', '80'], {}, /--prot/],
    ['demo for everybody', ['--demo', '--host', '0.0.0.0'], {}, /--demo.*0\.0\.0\.0/],
    ['Redis and no database', [], { REDIS_URL: 'redis://127.0.0.1' }, /DATABASE_URL/],
  ];

  it('each stops the start with one line that names it', async () => {
    const faults: string[] = [];
    await crowdOf(wrong, 3, async ([name, args, env, says]) => {
      const folder = join(temporaryFolder(), 'data');
      const { code, stdout, stderr } = await ends(['serve', '--data', folder, ...args], { ...KEYS, ...env });
      const lines = stderr.trimEnd().split('\n');
      if (code === 0 || code === null || lines.length !== 1 || stdout !== '' || !says.test(stderr)) {
        faults.push(`${name}: ${code} ${stderr}${stdout}`);
      }
      // The demo's keys must not have been created, either.
      if (args.includes('--demo') && existsSync(folder)) faults.push(`${name}: leaves a data folder behind`);
    });
    expect(faults).toEqual([]);
  });

  it.each([
    ['PORT', '65536'],
    ['PORT', '-1'],
    ['PORT', '1e3'],
    ['PORT', 'http'],
    ['LOG_LEVEL', 'loud'],
    ['DOORBUSTER_AUTH_SECRET', ''],
    ['DOORBUSTER_DATA', ''],
    ['DOORBUSTER_AUTH_SECRET', 'a,b,c'],
    ['DOORBUSTER_ADMIN_KEY', 'alice:1,alice:2'],
    ['DOORBUSTER_ADMIN_KEY', 'alice:'],
    ['DOORBUSTER_ADMIN_KEY', 'alice:bob:1,bob:1'],
    ['RATE_LIMIT_BUYER', '0'],
    ['RATE_LIMIT_ADDRESS', 'many'],
    ['METRICS_PUBLIC', 'yes'],
    ['IN_FLIGHT_MAX', '1.5'],
    ['EVENT_LOOP_DELAY_MAX_MS', ''],
    ['DATABASE_URL', 'oracle://127.0.0.1'],
    ['REDIS_URL', 'http://127.0.0.1'],
    ['REDIS_PREFIX', 'a{b}'],
    ['ANSWER_WITHIN_MS', '5'],
    ['PIPE_MAX', '0'],
    ['WRITER_LOCK', 'yes'],
    ['PIPE_URL', 'nats://127.0.0.1'],
  ])('%s=%s is refused by name', (name, value) => {
    expect(() => readConfig({}, { [name]: value })).toThrow(name);
  });

  it('a port in use', async () => {
    const other = createServer().listen(0, '127.0.0.1');
    await new Promise((resolve) => other.once('listening', resolve));
    const { port } = other.address() as { port: number };
    const folder = temporaryFolder();
    const ended = await ends(['serve', '--data', folder, '--port', String(port)], KEYS);
    expect(ended).toEqual({ code: 1, stdout: '', stderr: oneLine(new RegExp(`port ${port} .*in use`)) });
    // It has released the folder.
    expect((await run(['migrate', '--data', folder])).code).toBe(0);
    other.close();
  });
});

/** Like `run`, but ends and reports a server that starts after all, instead of waiting for it. */
async function ends(args: string[], env: Record<string, string> = {}) {
  const child = spawn(process.execPath, [BIN, ...args], {
    env: { ...process.env, PORT: '0', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk: Buffer) => {
    stdout += chunk;
    if (stdout.includes('listening on')) child.kill('SIGKILL');
  });
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk;
  });
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve));
  return { code, stdout, stderr };
}

function oneLine(says: RegExp): unknown {
  return expect.stringMatching(new RegExp(`^(?=[^\\n]*\\n$)[^\\n]*${says.source}`));
}

function copyData(from: string, to: string): void {
  for (const file of readdirSync(from)) {
    if (!file.endsWith('-shm')) copyFileSync(join(from, file), join(to, file));
  }
}

/** The ledger and its WAL. SQLite rebuilds the shared-memory file, and the lock file contains no data. */
function contentOf(folder: string): Record<string, Buffer> {
  const files = readdirSync(folder).filter((file) => !file.endsWith('-shm') && !file.startsWith('lock'));
  return Object.fromEntries(files.map((file) => [file, readFileSync(join(folder, file))]));
}

function changed(before: Record<string, Buffer>, after: Record<string, Buffer>): string[] {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
  return names.flatMap((name) => {
    const [was, is] = [before[name], after[name]];
    // To read a ledger in WAL mode SQLite creates an empty WAL.
    if (was === undefined) return is!.length === 0 ? [] : [`${name} is new`];
    if (is === undefined) return [`${name} is gone`];
    return was.equals(is) ? [] : [`${name} has changed (${was.length} → ${is.length} bytes)`];
  });
}
