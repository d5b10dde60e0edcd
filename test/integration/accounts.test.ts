import type { AddressInfo } from 'node:net';
import { createDecoder } from 'fast-jwt';
import type { FastifyInstance } from 'fastify';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { systemRandom } from '../../src/base/random.ts';
import { type Runtime, systemRuntime } from '../../src/base/runtime.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import { NO_PAYMENTS } from '../../src/engine/shop.ts';
import { HTTP_DEFAULTS, type HttpOptions } from '../../src/http/context.ts';
import { createServer } from '../../src/http/server.ts';
import { createDoorbuster } from '../../src/index.ts';
import { sourceOf } from '../../src/library/doorbuster.ts';
import { type PasswordHasher, ScryptHasher } from '../../src/social/accounts/password.ts';
import { until } from '../support/fault-wait.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import {
  ADMIN_KEY,
  type Answer,
  AUTH_SECRET,
  type CallOptions,
  caller,
  cleanUp,
  createSale,
  temporaryFolder,
} from '../support/server.ts';

/** Accounts over HTTP. */
afterAll(cleanUp);

const ANN = { username: 'ann', email: 'ann@example.com', password: 'nine purple teapots' };

interface Served {
  call: ReturnType<typeof caller>;
  register(over?: Partial<typeof ANN>, options?: CallOptions): Promise<Answer>;
  signIn(username: string, password: string, options?: CallOptions): Promise<Answer>;
}

function served(call: ReturnType<typeof caller>): Served {
  return {
    call,
    register: (over, options) => call('POST', '/v1/accounts', { body: { ...ANN, ...over }, ...options }),
    signIn: (username, password, options) => call('POST', '/v1/sessions', { body: { username, password }, ...options }),
  };
}

/** Of the public Internet, so that it has limits of its own. */
const from = (address: string): CallOptions => ({ headers: { 'x-forwarded-for': address } });

/** How much a hash costs is not the subject of most tests. */
const CHEAP: PasswordHasher = new ScryptHasher(systemRandom, { log2N: 4, r: 1, p: 1 });

describe('accounts', () => {
  let hasher = CHEAP;
  let shop: EmbeddedShop;
  let server: Served;
  let app: FastifyInstance;
  const apps: FastifyInstance[] = [];
  const lines: string[] = [];
  const log = pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) });

  async function serve(over: Partial<HttpOptions>, runtime: Runtime): Promise<Served> {
    const keys = { adminKeys: [{ name: 'alice', key: ADMIN_KEY }], authSecrets: [AUTH_SECRET] };
    const http = { ...HTTP_DEFAULTS, ...keys, accounts: true, eventLoopDelayMsMax: 60_000, ...over };
    app = await createServer({ shop: sourceOf(shop), http, runtime, trustProxy: true });
    apps.push(app);
    await app.listen({ port: 0, host: '127.0.0.1' });
    return served(caller(`http://127.0.0.1:${(app.server.address() as AddressInfo).port}`));
  }

  beforeAll(async () => {
    const passwords: PasswordHasher = {
      hash: (password) => hasher.hash(password),
      matches: (password, hash) => hasher.matches(password, hash),
    };
    shop = await EmbeddedShop.open(temporaryFolder(), systemRuntime(log), { ...NO_PAYMENTS, passwords });
    server = await serve({}, systemRuntime());
  });
  afterAll(async () => {
    for (const one of apps) await one.close();
    await shop?.close();
  });

  it('whoever registers is signed in, and so is whoever signs in; the token buys as account:<id>', async () => {
    const registered = await server.register({ email: 'Ann@EXAMPLE.com' }, from('198.51.100.1'));
    expect([registered.status, registered.headers.get('cache-control')]).toEqual([201, 'no-store']);
    const { account, token } = registered.body;
    expect(account).toEqual({
      ...{ id: expect.stringMatching(/^\d+$/), subject: `account:${account.id}`, username: 'ann' },
      ...{ email: 'Ann@example.com', createdAt: expect.stringMatching(/Z$/) },
    });
    const again = await server.signIn('ann', ANN.password);
    expect([again.status, again.body.account]).toEqual([201, account]);
    const sale = await createSale(server);
    const order = { body: { item: 'voucher' } };
    const placed = await server.call('POST', `/v1/sales/${sale}/orders`, { bearer: token, ...order });
    expect([placed.status, placed.body.buyer]).toEqual([201, account.subject]);
    const path = `/v1/orders/${placed.body.id}`;
    expect((await server.call('GET', path, { bearer: again.body.token })).status).toBe(200);

    // The shop's own buyer of that name is somebody else; the shop's backend may act for the account.
    expect((await server.call('GET', path, { buyer: 'ann' })).status).toBe(404);
    expectProblem(await server.call('GET', path, { buyer: account.subject }), 401, 'unauthenticated');
    const headers = { 'doorbuster-buyer': account.subject };
    const acting = await server.call('POST', `/v1/sales/${sale}/orders`, { admin: true, ...order, headers });
    expect(acting.body).toMatchObject({ code: 'limit_reached', orders: [placed.body.id] });

    const audit = await server.call('GET', `/v1/ops/audit?subject=${account.subject}`, { admin: true });
    expect(audit.body.data).toEqual([
      {
        ...{ id: expect.any(String), at: account.createdAt, actor: `buyer:${account.subject}`, origin: '198.51.100.1' },
        ...{ action: 'account.create', subject: account.subject, detail: { username: 'ann' } },
      },
    ]);
  });

  it('a name or an address that is taken is named', async () => {
    await server.register({ username: 'taken', email: 'taken@example.com' });
    expectProblem(await server.register({ username: 'taken' }), 409, 'username_taken');
    expectProblem(await server.register({ username: 'free', email: 'taken@EXAMPLE.com' }), 409, 'email_taken');
    expect((await server.register({ username: 'Taken', email: 'Taken@example.com' })).status, 'bytewise').toBe(201);
    const race = Array.from({ length: 8 }, (_, n) => server.register({ username: 'race', email: `${n}@race.example` }));
    const statuses = (await Promise.all(race)).map(({ status }) => status);
    expect(statuses.toSorted()).toEqual([201, ...Array(7).fill(409)]);
  });

  it('a wrong password and an unknown name get the same answer to the letter', async () => {
    await server.register({ username: 'bea', email: 'bea@example.com' });
    const [wrong, unknown] = [await server.signIn('bea', 'another one'), await server.signIn('nobody', 'another one')];
    expectProblem(wrong, 401, 'unauthenticated');
    expect(wrong.headers.get('www-authenticate')).toMatch(/^Bearer/);
    const letters = ({ status, headers, body }: Answer) => {
      const { date: _, ...rest } = Object.fromEntries(headers);
      return { status, rest, body };
    };
    expect(letters(unknown)).toEqual(letters(wrong));
    // Limited alike, too.
    const answers = async (name: string): Promise<(string | null)[]> => {
      const tries: (string | null)[] = [];
      for (let n = 0; n < 6; n++) {
        const { status, headers } = await server.signIn(name, `guess-${n}`);
        tries.push(`${status} ${headers.get('retry-after')}`);
      }
      return tries;
    };
    const limited = await answers('bea');
    expect(limited.at(-1)).toMatch(/^429 [12]$/);
    expect(await answers('nobody')).toEqual(limited);
  });

  it('an attacker does not keep the owner out at an address where they signed in', async () => {
    await server.register({ username: 'cem', email: 'cem@example.com' });
    const home = from('198.51.100.20');
    expect((await server.signIn('cem', ANN.password, home)).status).toBe(201);
    for (let n = 0; n < 12; n++) await server.signIn('cem', `guess-${n}`, from(`203.0.113.${n}`));
    expect((await server.signIn('cem', ANN.password, home)).status).toBe(201);
    expectProblem(await server.signIn('cem', ANN.password, from('198.51.100.21')), 429, 'rate_limited');
  });

  it('registrations of one address are limited, and tell no more names then', async () => {
    const statuses: number[] = [];
    for (let n = 0; n < 22; n++) {
      const own = { username: `many-${n % 11}`, email: `many-${n % 11}@example.com` };
      statuses.push((await server.register(own, from('203.0.113.200'))).status);
    }
    expect(statuses).toEqual([...Array(11).fill(201), ...Array(9).fill(409), 429, 429]);
    expect((await server.register({ username: 'many-11', email: 'many-11@example.com' })).status, 'elsewhere').toBe(
      201,
    );
  });

  it('with an Idempotency-Key a repeat by whoever has the password gets the account and a new token', async () => {
    const dan = { username: 'dan', email: 'dan@example.com' };
    const first = await server.register(dan, { key: 'k1' });
    const repeat = await server.register({ ...dan, email: 'dan@EXAMPLE.com' }, { key: 'k1' });
    expect([repeat.status, repeat.headers.get('idempotent-replayed')]).toEqual([201, 'true']);
    expect(repeat.body.account).toEqual(first.body.account);
    expect((await server.call('GET', '/v1/orders', { bearer: repeat.body.token })).status).toBe(200);
    expectProblem(
      await server.register({ ...dan, password: 'eight green kettles' }, { key: 'k1' }),
      409,
      'username_taken',
    );
    expectProblem(await server.register({ ...dan, email: 'x@example.com' }, { key: 'k1' }), 409, 'username_taken');
    expectProblem(await server.register(dan), 409, 'username_taken');
    expectProblem(
      await server.register(dan, { headers: { 'idempotency-key': 'x'.repeat(256) } }),
      422,
      'invalid_request',
    );
    // It is no way around the limit on guesses: beyond it even the right password is answered as a wrong one.
    for (let n = 0; n < 8; n++) {
      const guess = await server.register({ ...dan, password: `guess-${n}x` }, { key: 'k' });
      expectProblem(guess, 409, 'username_taken');
    }
    expectProblem(await server.register(dan, { key: 'k1' }), 409, 'username_taken');
    expectProblem(await server.signIn('dan', ANN.password), 429, 'rate_limited');
    expect(
      await shop.boundAnswer({
        caller: 'anyone',
        actingFor: null,
        operation: 'account.create',
        subject: '',
        key: 'k1',
      }),
    ).toBeNull();
  });

  it('a registration with a key does not tell which e-mail address a username has: neither by its answer nor by its work', async () => {
    const fay = { username: 'fay', email: 'fay@example.com' };
    await server.register(fay);
    let hashes = 0;
    hasher = { hash: (password) => CHEAP.hash(password), matches: async () => ++hashes < 0 };
    const guesses = ['fay@example.com', 'other@example.com'];
    const answers: [number, number][] = [];
    // More than may be judged for a name, each e-mail address in turn, from ever new addresses.
    for (let n = 0; n < 16; n++) {
      hashes = 0;
      const own = { ...fay, email: guesses[(n >> 2) % 2]!, password: 'a wrong password' };
      const { status } = await server.register(own, { ...from(`198.51.100.${100 + n}`), key: 'k' });
      answers.push([status, hashes]);
    }
    hasher = CHEAP;
    expect(answers.slice(0, 5)).toEqual(Array(5).fill([409, 1]));
    expect(answers.slice(5)).toEqual(Array(11).fill([409, 0]));
  });

  describe('what is refused', () => {
    const faultOf = async (sent: Promise<Answer>): Promise<string[]> => {
      const answer = await sent;
      expectProblem(answer, 422, 'invalid_request');
      return [...new Set<string>(answer.body.errors.map(({ path }: { path: string }) => path))];
    };

    it.each([
      ['password', 'short77'],
      ['password', 'x'.repeat(129)],
      ['password', 'PassWord123'],
      ['password', 'nine\u0000purple'],
      ['password', 'nine\npurple'],
      ['password', 'nine \ud800 purple'],
      ['password', 12345678],
      ['password', null],
      ['password', ['nine purple teapots']],
      ['username', ''],
      ['username', 'x'.repeat(51)],
      ['username', 'a\u0000b'],
      ['username', 'ann\u200b'],
      ['username', 'cafe\u0301'],
      ['username', { name: 'ann' }],
      ['email', 'ann'],
      ['email', 'a@b@c'],
      ['email', 'ann @example.com'],
      ['email', 'ann@'],
      ['email', `${'a'.repeat(250)}@b.cd`],
      ['email', 'ann\u0000@example.com'],
      ['email', true],
    ])('a %s like %j', async (field, value) => {
      expect(await faultOf(server.call('POST', '/v1/accounts', { body: { ...ANN, [field]: value } }))).toEqual([
        `/${field}`,
      ]);
    });

    it('an address that is none, in words and not as a pattern', async () => {
      const { body } = await server.register({ email: 'ann@' });
      expect(body.errors).toEqual([{ path: '/email', message: 'must be an e-mail address: one @, no blanks' }]);
    });

    it('a field too many or too few, and what is no object', async () => {
      expect(await faultOf(server.call('POST', '/v1/accounts', { body: { ...ANN, admin: true } }))).toEqual(['/admin']);
      expect(await faultOf(server.call('POST', '/v1/sessions', { body: { username: 'ann' } }))).toEqual(['/password']);
      expect(await faultOf(server.call('POST', '/v1/sessions', { body: ['ann', 'x'] }))).toEqual(['/']);
      expect(await faultOf(server.signIn('ann\u0000', 'x'))).toEqual(['/username']);
      expect(await faultOf(server.signIn('ann', 'x'.repeat(129)))).toEqual(['/password']);
    });

    it('a password of 4 KiB, and one of more (P10)', async () => {
      expect(await faultOf(server.signIn('ann', 'x'.repeat(4 * 1024 - 60)))).toEqual(['/password']);
      expectProblem(await server.signIn('ann', 'x'.repeat(4 * 1024)), 413, 'body_too_large');
      expectProblem(await server.register({ password: 'x'.repeat(8 * 1024) }), 413, 'body_too_large');
    });

    it('no refusal repeats a password', async () => {
      const secret = 'nine\u0007secret\u0007teapots';
      const { body } = await server.register({ password: secret });
      expect(JSON.stringify(body)).not.toContain('secret');
    });
  });

  it('a password is the same in any Unicode form, and counts in characters', async () => {
    const own = { username: 'zoe', email: 'zoe@example.com' };
    expect((await server.register({ ...own, password: '🎟'.repeat(128) })).status).toBe(201);
    const eve = { username: 'eve', email: 'eve@example.com', password: 'caf\u00e9 creme' };
    expect((await server.register(eve)).status).toBe(201);
    expect((await server.signIn('eve', 'cafe\u0301 creme')).status).toBe(201);
    expect((await server.signIn('eve', 'cafe creme')).status).toBe(401);
  });

  it('P10: of 2 000 sign-ins at once a few are judged, the rest gets 503 at once, and orders go on meanwhile', async () => {
    const sale = await createSale(server, { stock: 1000 });
    // An eighth of the real cost, and only when the test says so.
    const real = new ScryptHasher(systemRandom, { log2N: 12, r: 8, p: 1 });
    const gate = Promise.withResolvers<void>();
    hasher = {
      hash: (password) => CHEAP.hash(password),
      matches: (password, hash) => gate.promise.then(() => real.matches(password, hash)),
    };
    const statuses: number[] = [];
    const crowd = Array.from({ length: 2000 }, async (_, n) => {
      const payload = { username: `user-${n}`, password: 'a wrong password' };
      const { statusCode, headers } = await app.inject({ method: 'POST', url: '/v1/sessions', payload });
      statuses.push(statusCode);
      if (statusCode === 503) expect(Number(headers['retry-after'])).toBeGreaterThan(0);
    });
    const order = async (n: number): Promise<number> => {
      const body = { item: 'voucher' };
      return (await server.call('POST', `/v1/sales/${sale}/orders`, { buyer: `buyer-${n}`, body })).status;
    };
    const placed: number[] = [];
    for (let n = 0; n < 5; n++) placed.push(await order(n));
    await until('all but a few have their answer', 10_000, () => statuses.length >= 1966);
    expect(new Set(statuses)).toEqual(new Set([503]));
    gate.resolve();
    for (let n = 5; n < 10; n++) placed.push(await order(n));
    expect(placed).toEqual(Array(10).fill(201));
    await Promise.all(crowd);
    expect(new Set(statuses)).toEqual(new Set([401, 503]));
    const judged = statuses.filter((status) => status === 401).length;
    expect(judged).toBeGreaterThanOrEqual(32);
    expect(judged).toBeLessThanOrEqual(34);
    hasher = CHEAP;
    expect((await server.signIn('user-1', 'a wrong password')).status, 'later ones are judged again').toBe(401);
  });

  it('nothing of a password, a hash or a token is in the log, at whatever level', async () => {
    const logged = await serve({ issuer: 'shop', requireExp: true }, systemRuntime(log));
    const own = { username: 'log', email: 'log@example.com' };
    const registered = await logged.register(own, { key: 'k1' });
    expect(registered.status).toBe(201);
    expect((await logged.register(own, { key: 'k1' })).headers.get('idempotent-replayed')).toBe('true');
    expect((await logged.signIn('log', ANN.password)).status).toBe(201);
    expect((await logged.signIn('log', 'a wrong password')).status).toBe(401);
    expect((await logged.register({ ...own, password: 'iloveyou' })).status).toBe(422);
    const { account, token } = registered.body;
    expect((await logged.call('GET', '/v1/orders', { bearer: token })).status).toBe(200);
    expect(createDecoder()(token)).toMatchObject({ sub: account.subject, iss: 'shop' });
    const all = lines.join('');
    for (const there of ['/v1/sessions', '/v1/accounts', 'a sign-in was refused']) expect(all).toContain(there);
    for (const secret of [ANN.password, 'a wrong password', 'iloveyou', '$scrypt$', token.split('.')[2], AUTH_SECRET]) {
      expect(all.includes(secret), secret).toBe(false);
    }
  });
});

it('accounts are an option of the library, checked like the others', async () => {
  const made = createDoorbuster({ data: temporaryFolder(), http: { accounts: 'on' as never } });
  await expect(made).rejects.toThrow('http.accounts must be true or false');
});
