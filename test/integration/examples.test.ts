import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { LONG } from '../support/long.ts';
import { spawnNode } from '../support/openapi-spawn.ts';
import { cleanUp, ROOT, temporaryFolder } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';

/** The examples run, print what they should, end by themselves and leave nothing behind. */
afterAll(cleanUp);

const FOLDER = join(ROOT, 'examples');
const OUTPUT: Record<string, (string | RegExp)[]> = {
  'library.ts': [
    'sale: open, 2 free',
    'reserved: alice has 1 voucher-100',
    /^again: alice already has order \d+$/,
    'reserved: bob has 1 voucher-100',
    'refused: carol, sold_out',
    'alice has 1 order: reserved',
    'watched: sold out',
    'late: sale_closed',
  ],
  'http.ts': [
    /^listening: http:\/\/127\.0\.0\.1:\d+\/docs shows the API$/,
    'sale: 201 open',
    'alice: 201 reserved',
    'bob: 409 sold_out',
  ],
  'express.ts': ['campaign: made', 'alice: reserved', 'free: 99', 'elsewhere: {"error":"not found, says Express"}'],
  'locks.ts': [
    'mutex: held: false, signal: lock_lost, expired',
    'fence: the late write is refused (lock_stale_fence), the order stays paid',
    'held: true; a second try: null, lock_timeout',
    'read-write: 3 readers at once, then a writer beside 0',
    'semaphore: 5 calls, 2 at a time',
    'once: built 1 time, all have {"sold":100}',
    'multi: alice 75, bob 125',
    'leader: the first leads',
    'leader: the second instance waits, led elsewhere',
    'leader: the second leads',
  ],
  'locks-idempotency.ts': [
    'two clicks: 201 order 1, 201 order 1',
    'orders: 1',
    'later: 201 order 1, replayed: true',
    'another body: 422 idempotency_key_reused',
    'another buyer: 201 order 2',
    'without a key: 400 idempotency_key_missing',
  ],
  'fastify.ts': ['alice: 201 reserved', 'bob: 409 sold_out', 'elsewhere: {"error":"not found, says the application"}'],
};

it.each(Object.entries(OUTPUT))('examples/%s', (name, expected) => expectToSay(name, expected));

describe.runIf(LONG)('on a Redis', () => {
  describeWithAnyRedis('REDIS_URL', () => {
    afterAll(cleanUpServers);
    it('examples/locks.ts', async () => expectToSay('locks.ts', OUTPUT['locks.ts']!, { REDIS_URL: await redisUrl() }));
  });
});

async function expectToSay(
  name: string,
  expected: (string | RegExp)[],
  env: Record<string, string> = {},
): Promise<void> {
  const folder = temporaryFolder();
  const { code, output } = await spawnNode([join(FOLDER, name)], { TMPDIR: folder, ...env });
  const lines = output.trimEnd().split('\n');
  expect([code, lines.length], output).toEqual([0, expected.length]);
  for (const [index, line] of expected.entries()) {
    if (typeof line === 'string') expect(lines[index]).toBe(line);
    else expect(lines[index]).toMatch(line);
  }
  expect(readdirSync(folder)).toEqual([]);
}

it('the command at the head of each example is the one that runs it', () => {
  for (const name of Object.keys(OUTPUT)) {
    const [, head] = /^\/\*\*\n(.*?)\n \*\//s.exec(readFileSync(join(FOLDER, name), 'utf8'))!;
    const printed = [...head!.matchAll(/^ \* {5}(.*)$/gm)].map(([, command]) => command);
    const command = `npm run example ${name.slice(0, -'.ts'.length)}`;
    expect(printed[0]).toBe(command);
    // The locks also run on a Redis.
    for (const other of printed.slice(1)) expect(other).toBe(`REDIS_URL=redis://127.0.0.1:6379 ${command}`);
  }
});

it('every example is here, is listed, and says what a user imports instead', () => {
  const files = readdirSync(FOLDER).filter((name) => name.endsWith('.ts'));
  expect(files.sort()).toEqual(Object.keys(OUTPUT).sort());
  const readme = readFileSync(join(FOLDER, 'README.md'), 'utf8');
  for (const name of files) {
    expect(readme).toContain(`(${name})`);
    const source = readFileSync(join(FOLDER, name), 'utf8');
    const ofLocks = name.startsWith('locks');
    expect(source).toContain(
      ofLocks ? "import { createLocks } from 'doorbuster/locks';" : "import { createDoorbuster } from 'doorbuster';",
    );
    if (name === 'fastify.ts') expect(source).toContain("import doorbuster from 'doorbuster/fastify';");
  }
});
