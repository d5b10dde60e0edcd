import { beforeEach, describe, expect, it } from 'vitest';
import { RetryableError } from '../../src/base/errors.ts';
import type { AccountWithHash, NewAccount } from '../../src/ledger/port.ts';
import { Accounts } from '../../src/social/accounts/accounts.ts';
import { settled } from '../contract/manual.ts';

/** What an account may be, the same work for every sign-in, and the bound on hashes. */
const ANN = { username: 'ann', email: 'ann@example.com', password: 'nine purple teapots' };

let stored: Map<string, AccountWithHash>;
/** What was read and hashed, in order. */
let work: string[];
/** Lets the oldest hash under way finish; null: hashes finish at once. */
let waiting: (() => void)[] | null;
let underWay: number;
let underWayMax: number;
let accounts: Accounts;

beforeEach(() => {
  stored = new Map();
  work = [];
  waiting = null;
  underWay = 0;
  underWayMax = 0;
  let lastId = 0;
  const ids = { next: async () => String(++lastId) };
  const hashing = async (): Promise<void> => {
    underWayMax = Math.max(underWayMax, ++underWay);
    if (waiting !== null) await new Promise<void>((resolve) => void waiting!.push(resolve));
    underWay--;
  };
  accounts = new Accounts({
    ledger: {
      createAccount: async ({ id, username, email, passwordHash }: NewAccount) => {
        const [createdAtMs, updatedAtMs] = [0, 0];
        const account = { id, subject: `account:${id}`, username, email, createdAtMs, updatedAtMs };
        stored.set(username, { ...account, passwordHash });
        return { outcome: 'ok', account };
      },
      accountByName: async (username) => {
        work.push('read');
        return stored.get(username) ?? null;
      },
      accountById: async () => null,
    },
    accountIds: ids,
    auditIds: ids,
    hasher: {
      hash: async (password) => {
        work.push('hash');
        await hashing();
        return `hash of ${password}`;
      },
      matches: async (password, hash) => {
        work.push('hash');
        await hashing();
        return hash === `hash of ${password}`;
      },
    },
    watched: (working) => working,
  });
});

const at = (address: string) => ({ network: address, address });
const HOME = at('192.0.2.1');
const register = (over: Partial<typeof ANN> = {}) => accounts.register({ ...ANN, ...over }, HOME, null);

describe('a sign-in', () => {
  it('does the same work for a right password, a wrong one and a name that does not exist: one read, one hash', async () => {
    await register();
    const worked = async (username: string, password: string): Promise<[boolean, string[]]> => {
      work = [];
      return [(await accounts.signIn(username, password, HOME)) !== null, work];
    };
    expect(await worked('ann', ANN.password)).toEqual([true, ['read', 'hash']]);
    expect(await worked('ann', 'another one')).toEqual([false, ['read', 'hash']]);
    expect(await worked('nobody', ANN.password)).toEqual([false, ['read', 'hash']]);
  });

  it('results in the account without its hash', async () => {
    await register();
    const account = await accounts.signIn('ann', ANN.password, HOME);
    expect(account).toMatchObject({ username: 'ann', email: 'ann@example.com' });
    expect(JSON.stringify(account)).not.toContain('hash');
  });
});

describe('hashes', () => {
  it('P10: one or two are under way, 32 more wait, and the rest is refused at once without reaching the ledger', async () => {
    waiting = [];
    const tries = Array.from({ length: 200 }, (_, n) => accounts.signIn(`user-${n}`, 'x', HOME));
    const outcomes = Promise.allSettled(tries);
    await settled();
    const accepted = work.filter((one) => one === 'read').length;
    expect(accepted).toBe(underWay);
    expect(accepted).toBeLessThanOrEqual(2);
    // Those beyond the queue have their answer while the first hash is still under way.
    const refused = await Promise.allSettled(tries.slice(accepted + 32));
    for (const one of refused) {
      const { reason } = one as PromiseRejectedResult;
      expect(reason).toBeInstanceOf(RetryableError);
      expect(reason.code).toBe('overloaded');
    }
    for (let n = 0; n < accepted + 32; n++) {
      waiting.shift()!();
      await settled();
    }
    const judged = (await outcomes).filter(({ status }) => status === 'fulfilled').length;
    expect([judged, underWayMax, work.length]).toEqual([accepted + 32, accepted, 2 * (accepted + 32)]);
    waiting = null;
    expect((await register()).ok, 'later ones are served again').toBe(true);
  });

  it('P10: two addresses that sign in again and again keep nobody out: the third has the next turn but two', async () => {
    waiting = [];
    const outcomes: string[] = [];
    const signIn = (address: string) =>
      accounts.signIn('ann', 'x', at(address)).then(
        () => outcomes.push(address),
        () => outcomes.push(`${address} refused`),
      );
    for (let n = 0; n < 50; n++) for (const address of ['198.51.100.1', '198.51.100.2']) void signIn(address);
    await settled();
    const atOnce = underWay;
    outcomes.length = 0;
    const honest = signIn('192.0.2.9');
    await settled();
    expect(outcomes, 'one of those who have most lost its place').toEqual([expect.stringMatching(/^198.*refused$/)]);
    outcomes.length = 0;
    for (let n = 0; n < atOnce + 3; n++) {
      waiting.shift()!();
      await settled();
    }
    expect(outcomes).toContain('192.0.2.9');
    await honest;
    while (underWay > 0) {
      waiting.shift()!();
      await settled();
    }
  });
});

describe('a registration', () => {
  it('of a name that is taken costs no hash', async () => {
    await register();
    work = [];
    expect(await register()).toEqual({ ok: false, code: 'username_taken' });
    expect(work).toEqual(['read']);
  });

  it.each([
    ['ann\u200b', 'invisible'],
    ['an\u202en', 'invisible'],
    ['a\u00adnn', 'invisible'],
    ['cafe\u0301', 'NFKC'],
    ['ａｎｎ', 'NFKC'],
    ['a\u00a0b', 'NFKC'],
    ['a\u0000b', 'control'],
    [' ann', 'blanks'],
    ['\ud800', 'well-formed'],
    ['x'.repeat(51), 'at most 50'],
  ])('refuses the name %j: %s', async (username, words) => {
    const errors = [{ path: '/username', message: expect.stringContaining(words) }];
    expect(await register({ username })).toEqual({ ok: false, code: 'invalid_request', errors });
    expect(work).toEqual([]);
  });

  it.each(['a', 'Zoë', '王小明', 'a b', '🎟'.repeat(50), 'account:5', 'admin'])(
    'takes the name %j',
    async (username) => {
      expect(await register({ username })).toMatchObject({ ok: true, account: { username } });
    },
  );

  it.each([
    ['Password', 'common'],
    ['１２３４５６７８', 'common'],
    ['e\u0301e\u0301e\u0301e\u0301', 'at least 8'],
    ['zoe@example.com', 'username or the address'],
    ['Zoe@Example.com', 'username or the address'],
    ['the-long-name', 'username or the address'],
  ])('refuses the password %j: %s', async (password, words) => {
    const errors = [{ path: '/password', message: expect.stringContaining(words) }];
    const own = { username: 'The-Long-Name', email: 'zoe@example.com', password };
    expect(await register(own)).toEqual({ ok: false, code: 'invalid_request', errors });
  });

  it('names every fault at once', async () => {
    const result = await register({ username: 'a\u200b', email: `a@${'İ'.repeat(252)}`, password: '12345678' });
    const paths = 'errors' in result && result.errors.map(({ path }) => path);
    expect(paths).toEqual(['/username', '/email', '/password']);
  });

  it('stores the address with its domain in lower case, and no other part of it', async () => {
    const result = await register({ email: 'Ann.Q@EXAMPLE.Com' });
    expect(result).toMatchObject({ ok: true, account: { email: 'Ann.Q@example.com' } });
  });
});
