import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { join } from 'node:path';
import { createSigner, createVerifier } from 'fast-jwt';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { sign } from '../../src/base/signature.ts';
import { CALM, expectProblem } from '../support/openapi-wire.ts';
import {
  ADMIN_KEY,
  type Answer,
  AUTH_SECRET,
  cleanUp,
  createSale,
  run,
  startServer,
  type TestServer,
  temporaryFolder,
} from '../support/server.ts';

/** Identity, addresses and secrets: what attackers try first (P10). */
afterAll(cleanUp);

describe('where a request comes from', () => {
  let server: TestServer;
  let sale: string;

  beforeAll(async () => {
    server = await startServer({ env: { ...CALM, TRUST_PROXY: 'on' } });
    sale = await createSale(server, { stock: 100, perBuyer: 50 });
  });

  async function originOf(forwarded: string | null): Promise<string> {
    const headers = forwarded === null ? {} : { 'x-forwarded-for': forwarded };
    const placed = await server.call('POST', `/v1/sales/${sale}/orders`, { buyer: 'eve', body: { item: 'voucher' } });
    const { id } = placed.body;
    const cancelled = await server.call('POST', `/v1/orders/${id}/cancel`, { buyer: 'eve', body: {}, headers });
    expect(cancelled.status).toBe(200);
    const audit = await server.call('GET', `/v1/ops/audit?subject=order:${id}`, { admin: true });
    return audit.body.data[0].origin;
  }

  it('is what the proxy adds, and an address, whatever the client has written', async () => {
    expect(await originOf(null)).toBe('127.0.0.1');
    expect(await originOf('198.51.100.7')).toBe('198.51.100.7');
    expect(await originOf('6.6.6.6, 198.51.100.7')).toBe('198.51.100.7');
    expect(await originOf('198.51.100.7:4711')).toBe('198.51.100.7');
    expect(await originOf('[2001:db8::1]:4711')).toBe('2001:db8::1');
    expect(await originOf('not-an-address <script>')).toBe('127.0.0.1');
    expect(await originOf('a'.repeat(300))).toBe('127.0.0.1');
    expect(await originOf(`${'1.2.3.4, '.repeat(200)}198.51.100.7`)).toBe('198.51.100.7');
  });
});

describe('a buyer’s token', () => {
  let server: TestServer;
  const WEBHOOKS = { shared: 'the-shared-webhook-secret-0123456', bank: 'the-own-secret-of-my-bank-0123456' };
  const good = { sub: 'ann', iss: 'shop', aud: 'doorbuster', exp: Math.floor(Date.now() / 1000) + 600 };
  const asked = (claims: Record<string, unknown>, key = AUTH_SECRET): Promise<Answer> =>
    server.call('GET', '/v1/orders', { bearer: createSigner({ key, algorithm: 'HS256' })(claims) });
  const status = async (claims: Record<string, unknown>): Promise<number> => (await asked(claims)).status;

  beforeAll(async () => {
    server = await startServer({
      env: {
        ...CALM,
        AUTH_REQUIRE_EXP: 'on',
        AUTH_ISSUER: 'shop',
        AUTH_AUDIENCE: 'doorbuster',
        PAYMENTS_SANDBOX: 'on',
        PAYMENT_WEBHOOK_SECRET: WEBHOOKS.shared,
        PAYMENT_WEBHOOK_SECRET_MY_BANK: WEBHOOKS.bank,
      },
    });
  });

  it('must have an end, and the issuer and audience that are asked for', async () => {
    expect(await status(good)).toBe(200);
    expect(await status({ ...good, aud: ['other', 'doorbuster'] })).toBe(200);
    const { exp: _, ...endless } = good;
    expect(await status(endless), 'without exp').toBe(401);
    expect(await status({ ...good, exp: Math.floor(Date.now() / 1000) - 5 }), 'over').toBe(401);
    const { iss: __, ...unissued } = good;
    expect(await status(unissued), 'without iss').toBe(401);
    expect(await status({ ...good, iss: 'other' }), 'another issuer').toBe(401);
    const { aud: ___, ...unheard } = good;
    expect(await status(unheard), 'without aud').toBe(401);
    expect(await status({ ...good, aud: 'other' }), 'for another').toBe(401);
    // The owner of a genuine token is told what is wrong with it; others are not.
    expect((await asked(endless)).body.detail).toBe(
      'the token lacks a claim that this server requires (exp, iss or aud)',
    );
    expect((await asked({ ...good, aud: 'other' })).body.detail).toContain('another issuer or audience');
    expect((await asked(endless, 'x'.repeat(32))).body.detail).toBe('the token or key is not valid, or has expired');
  });

  it('of an account is not accepted by default, from whomever: accounts are off, and their routes are not there', async () => {
    expect(await status({ ...good, sub: 'account:1' })).toBe(401);
    const body = { username: 'ann', email: 'ann@example.com', password: 'nine purple teapots' };
    expectProblem(await server.call('POST', '/v1/accounts', { body }), 404, 'not_found');
    expectProblem(await server.call('POST', '/v1/sessions', { body }), 404, 'not_found');
    expect(Object.keys((await server.call('GET', '/openapi.json')).body.paths)).not.toContain('/v1/accounts');
  });

  it('a provider with a secret of its own is believed with no other, and speaks for no other', async () => {
    const amount = { amount: 8000, currency: 'CNY' };
    const body = JSON.stringify({ id: 'n1', type: 'payment.captured', orderId: '4711', reference: 'r', amount });
    const told = async (provider: string, secret: string): Promise<number> => {
      const headers = { 'doorbuster-signature': sign(secret, body, Date.now()), 'content-type': 'application/json' };
      return (await server.call('POST', `/v1/webhooks/payments/${provider}`, { raw: body, headers })).status;
    };
    expect(await told('my-bank', WEBHOOKS.bank), 'believed, and yet nobody this server knows').toBe(404);
    expect(await told('my-bank', WEBHOOKS.shared)).toBe(401);
    expect(await told('MY_BANK', WEBHOOKS.shared), 'however it is written').toBe(401);
    expect(await told('sandbox', WEBHOOKS.shared)).toBe(200);
    expect(await told('sandbox', WEBHOOKS.bank)).toBe(401);
    expect(await told('__proto__', WEBHOOKS.bank)).toBe(401);
  });
});

describe('--demo', () => {
  it('neither prints nor signs with given secrets, and answers to this machine’s names only', async () => {
    const server = await startServer({ args: ['--demo'], env: { DEMO_HOSTS: 'shop.test' } });
    expect((await server.call('GET', '/v1/sales', { admin: true })).status).toBe(200);
    const { body } = await server.call('POST', '/v1/demo/tokens', { body: { user: 'ann' } });
    expect(() => createVerifier({ key: AUTH_SECRET })(body.token), 'not a token of the given secret').toThrow();
    expect((await server.call('GET', '/v1/orders', { bearer: body.token })).status).toBe(200);
    expect((await server.call('GET', '/v1/orders', { buyer: 'ann' })).status, 'which is still good').toBe(200);
    expect((await server.call('GET', '/v1/ops/webhooks', { admin: true })).status).toBe(200);
    expect(server.output()).not.toContain(ADMIN_KEY);
    const { adminKey, authSecret } = JSON.parse(readFileSync(join(server.data, 'demo-keys.json'), 'utf8'));
    expect(server.output()).not.toContain(adminKey);
    expect(createVerifier({ key: authSecret })(body.token)).toMatchObject({ sub: 'ann' });

    // Accounts are on, and a token for trying things out is nobody's account.
    const ann = { username: 'ann', email: 'ann@example.com', password: 'nine purple teapots' };
    const registered = await server.call('POST', '/v1/accounts', { body: ann });
    expect(registered.status).toBe(201);
    expect((await server.call('GET', '/v1/orders', { bearer: registered.body.token })).status).toBe(200);
    const { subject } = registered.body.account;
    expectProblem(await server.call('POST', '/v1/demo/tokens', { body: { user: subject } }), 422, 'invalid_request');
    expectProblem(await server.call('GET', '/v1/orders', { buyer: subject }), 401, 'unauthenticated');

    const { port } = new URL(server.url);
    const named = (host: string, path: string): Promise<number> =>
      new Promise((resolve, reject) => {
        request({ port, host: '127.0.0.1', path, headers: { host } }, (answer) => {
          answer.resume();
          resolve(answer.statusCode!);
        })
          .on('error', reject)
          .end();
      });
    for (const host of [`localhost:${port}`, `127.0.0.1:${port}`, `[::1]:${port}`, 'shop.test', `SHOP.test:${port}`]) {
      expect(await named(host, '/v1/time'), host).toBe(200);
    }
    for (const host of [
      'evil.example',
      `evil.example:${port}`,
      'localhost.evil.example',
      '127.0.0.1.evil.example',
      '10.0.0.1',
    ]) {
      for (const path of ['/v1/time', '/metrics', '/', '/openapi.json']) {
        expect(await named(host, path), `${host}${path}`).toBe(403);
      }
    }
  });

  it('does not start on a server that is elsewhere', async () => {
    const elsewhere = ['--redis-url', 'redis://cache.invalid:6379', '--database-url', 'postgres://127.0.0.1:1/shop'];
    const { code, stderr } = await run(['serve', '--demo', '--port', '0', '--data', temporaryFolder(), ...elsewhere]);
    expect(code).not.toBe(0);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toMatch(/REDIS_URL is on cache\.invalid/);
  });
});

describe('a server that others can reach', () => {
  const strong = {
    DOORBUSTER_ADMIN_KEY: 'alice:0123456789abcdefgh',
    DOORBUSTER_AUTH_SECRET: '0123456789abcdef-secret',
  };

  it.each([
    ['DOORBUSTER_ADMIN_KEY', 'a'],
    ['PAYMENT_WEBHOOK_SECRET_BANK', 'whs'],
  ])('does not start with %s=%s', async (name, value) => {
    // It cannot listen on this address: if it got that far, the message would say so.
    const args = ['serve', '--host', '192.0.2.1', '--port', '0', '--data', temporaryFolder()];
    const { code, stderr } = await run(args, { ...strong, [name]: value });
    expect(code).not.toBe(0);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toContain(`${name} `);
    expect(stderr).not.toContain('not an address of this machine');
    if (value.length > 1) expect(stderr).not.toContain(value);
  });

  it('starts with strong ones, as far as its address is good', async () => {
    const args = ['serve', '--host', '192.0.2.1', '--port', '0', '--data', temporaryFolder()];
    const { stderr } = await run(args, strong);
    expect(stderr).toContain('192.0.2.1 is not an address of this machine');
  });
});

describe('the data folder', () => {
  const modeOf = (file: string): string => (statSync(file).mode & 0o777).toString(8);

  it('is for its owner only, with all that is in it', async () => {
    const data = join(temporaryFolder(), 'made');
    const server = await startServer({ data, args: ['--demo'] });
    await createSale(server);
    expect(modeOf(data)).toBe('700');
    const files = readdirSync(data);
    expect(files).toEqual(
      expect.arrayContaining(['ledger.sqlite', 'ledger.sqlite-wal', 'lock.sqlite', 'demo-keys.json']),
    );
    for (const file of files) expect(modeOf(join(data, file)), file).toBe('600');
    await server.kill();
    for (const file of readdirSync(data)) chmodSync(join(data, file), 0o644);
    const again = await startServer({ data, args: ['--demo'] });
    await createSale(again);
    for (const file of readdirSync(data)) expect(modeOf(join(data, file)), `${file}, as it was before`).toBe('600');
  });

  it('that existed before keeps its mode', async () => {
    const data = join(temporaryFolder(), 'theirs');
    mkdirSync(data);
    chmodSync(data, 0o750);
    writeFileSync(join(data, 'note.txt'), 'theirs');
    chmodSync(join(data, 'note.txt'), 0o644);
    const server = await startServer({ data });
    expect([modeOf(data), modeOf(join(data, 'note.txt'))]).toEqual(['750', '644']);
    expect(existsSync(join(data, 'ledger.sqlite'))).toBe(true);
    expectProblem(await server.call('GET', '/v1/orders'), 401, 'unauthenticated');
  });
});
