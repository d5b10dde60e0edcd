import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { until } from '../support/fault-wait.ts';
import { ADMIN_KEY, type Answer, cleanUp, createSale, startServer, type TestServer, token } from '../support/server.ts';

/** Wrong admin keys are logged and delayed, and whoever sends them cannot lock others out. */
describe('failed admin sign-ins', () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startServer({ env: { TRUST_PROXY: 'on' } });
  });
  afterAll(cleanUp);

  interface Timed extends Answer {
    ms: number;
  }

  async function ask(key: string, from?: string): Promise<Timed> {
    const begunMs = performance.now();
    const headers = from === undefined ? {} : { 'x-forwarded-for': from };
    const answer = await server.call('GET', '/v1/ops/audit', { bearer: key, headers });
    return { ...answer, ms: performance.now() - begunMs };
  }

  const guesses = (count: number, from?: string): Promise<Timed>[] =>
    Array.from({ length: count }, (_, n) => ask(`guess-${n}`, from));

  const statuses = (answers: readonly Answer[]): number[] => answers.map(({ status }) => status);

  it.concurrent('the next ones wait, and the right key does not', async () => {
    const from = '203.0.113.1';
    for (let n = 0; n < 5; n++) expect((await ask('typo', from)).status).toBe(401);
    const slow = await ask('typo', from);
    expect([slow.status, slow.body.code]).toEqual([401, 'unauthenticated']);
    expect(slow.ms).toBeGreaterThan(240);
    expect((await ask(ADMIN_KEY, from)).status).toBe(200);
  });

  it.concurrent('a flood of one address is not even compared beyond what waits; others come in meanwhile', async () => {
    const from = '2001:db8:1:2::1';
    const flood = guesses(100, from);
    const [elsewhere, buyer] = await Promise.all([
      ask(ADMIN_KEY, '2001:db8:1:3::1'),
      server.call('GET', '/v1/orders', { bearer: token('ann'), headers: { 'x-forwarded-for': from } }),
    ]);
    expect([elsewhere.status, buyer.status]).toEqual([200, 200]);
    const answers = await Promise.all(flood);
    const refused = answers.filter(({ status }) => status === 429);
    expect(refused.length).toBeGreaterThan(0);
    expect(refused[0]!.body.code).toBe('rate_limited');
    expect(Number(refused[0]!.headers.get('retry-after'))).toBeGreaterThan(0);
    expect(statuses(answers.filter(({ status }) => status !== 429))).toEqual(Array(100 - refused.length).fill(401));
    // Once they are answered, the address may try again.
    await until('the right key is compared', 5_000, async () => (await ask(ADMIN_KEY, from)).status === 200);
  });

  it.concurrent('an address where a right key came from is never kept out, however many wrong ones come from there', async () => {
    const office = '198.51.100.4';
    expect((await ask(ADMIN_KEY, office)).status).toBe(200);
    const flood = guesses(60, office);
    for (let n = 0; n < 5; n++) expect(await ask(ADMIN_KEY, office)).toMatchObject({ status: 200 });
    expect(new Set(statuses(await Promise.all(flood)))).toEqual(new Set([401]));
  });

  it.concurrent('a proxy on the own network that tells no addresses is never kept out, either', async () => {
    const flood = guesses(60);
    const inTime = await ask(ADMIN_KEY);
    expect(inTime.status).toBe(200);
    await createSale(server);
    await Promise.all(flood);
  });

  it.concurrent('an invalid buyer’s token does not count as a wrong admin key', async () => {
    const before = server.output().length;
    const from = '203.0.113.99';
    const bad = Array.from({ length: 40 }, (_, n) => ask(`${token(`b${n}`).slice(0, -4)}AAAA`, from));
    const answers = await Promise.all(bad);
    expect(new Set(statuses(answers))).toEqual(new Set([401]));
    expect(server.output().slice(before)).not.toContain(from);
  });

  it('are in the log with their address, at a bounded rate, without the key', async () => {
    const flood = Promise.allSettled(guesses(30, '203.0.113.77'));
    await until('a line', 5_000, () => server.output().includes('203.0.113.77'));
    await until('what was left out', 5_000, () => / more"/.test(server.output()));
    const lines = server
      .output()
      .split('\n')
      .filter((line) => line.includes('203.0.113.77'));
    expect(lines.length).toBeLessThanOrEqual(10);
    expect(JSON.parse(lines[0]!)).toMatchObject({ level: 40, origin: '203.0.113.77', msg: 'an admin key was refused' });
    expect(server.output()).not.toContain('guess-');
    // Do not wait for the delayed answers.
    await server.kill();
    await flood;
  });
});
