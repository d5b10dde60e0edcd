import { createHmac, hkdfSync } from 'node:crypto';
import { createDecoder, createSigner } from 'fast-jwt';
import type { FastifyRequest } from 'fastify';
import { describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { silentLog } from '../../src/base/logger.ts';
import { accountTokens } from '../../src/http/account-tokens.ts';
import { Auth, type AuthOptions } from '../../src/http/auth.ts';
import { HttpProblem } from '../../src/http/problem.ts';
import { SignIns } from '../../src/http/sign-ins.ts';
import { forge } from '../support/openapi-wire.ts';

/** Which token may carry the sub of an account. */
const [SECRET, OLDER] = ['the-secret-of-the-shop-0123456789', 'the-older-secret-of-the-shop-0123'];
const OPTIONS = { authSecrets: [SECRET], adminKeys: [{ name: 'alice', key: 'key' }], issuer: null, audience: null };
const SUB = 'account:4711';

/** The buyer, or why not. */
function buyerOf(token: string, over: Partial<AuthOptions> = {}, headers: Record<string, string> = {}): string | null {
  const auth = new Auth({ ...OPTIONS, accounts: true, ...over }, new SignIns(new ManualClock(0), silentLog()));
  const request = { headers: { authorization: `Bearer ${token}`, ...headers }, raw: {}, ip: '127.0.0.1', socket: {} };
  try {
    return auth.identify(request as unknown as FastifyRequest)!.buyer;
  } catch (error) {
    if (!(error instanceof HttpProblem) || error.code !== 'unauthenticated') throw error;
    return null;
  }
}

const issue = accountTokens(OPTIONS);
const derived = (secret: string): string =>
  Buffer.from(hkdfSync('sha256', secret, '', 'doorbuster accounts', 32)).toString('base64url');
const signed = (sub: string, secret: string): string => forge({ sub }, { secret });

describe('the token of an account', () => {
  it('is accepted, ends after 24 hours, and only with ACCOUNTS=on', () => {
    const token = issue(SUB);
    const { sub, exp, iat } = createDecoder()(token) as { sub: string; exp: number; iat: number };
    expect([sub, exp - iat]).toEqual([SUB, 24 * 3600]);
    expect(buyerOf(token)).toBe(SUB);
    expect(buyerOf(token, { accounts: false })).toBeNull();
    expect(
      buyerOf(createSigner({ key: derived(SECRET), algorithm: 'HS256' })({ sub: SUB, exp: 1 })),
      'over',
    ).toBeNull();
  });

  it('is the only one that may have that prefix, and must have it', () => {
    expect(buyerOf(signed(SUB, derived(SECRET)))).toBe(SUB);
    expect(buyerOf(signed('ann', SECRET))).toBe('ann');
    for (const sub of [SUB, 'account:', 'account:ann']) {
      expect([sub, buyerOf(signed(sub, SECRET))]).toEqual([sub, null]);
      expect([sub, buyerOf(signed(sub, SECRET), { accounts: false })]).toEqual([sub, null]);
      const demo = { secret: 'the-secret-of-the-demo-0123456789' };
      expect([sub, buyerOf(signed(sub, demo.secret), { demo })]).toEqual([sub, null]);
    }
    for (const sub of ['ann', 'accounts:1', 'Account:1', 'account', ' account:1']) {
      expect([sub, buyerOf(signed(sub, derived(SECRET)))]).toEqual([sub, null]);
    }
    expect(buyerOf(signed('Account:1', SECRET)), 'compared bytewise').toBe('Account:1');
  });

  it('an admin may act for it', () => {
    expect(buyerOf('key', {}, { 'doorbuster-buyer': SUB })).toBe(SUB);
  });

  it('cannot be forged: no other algorithm, key or signature', () => {
    const key = derived(SECRET);
    for (const forged of [
      forge({ sub: SUB }, { alg: 'none', signature: '' }),
      forge({ sub: SUB }, { alg: 'HS512', hash: 'sha512', secret: key }),
      forge({ sub: SUB }, { alg: 'RS256', secret: key }),
      forge({ sub: SUB }, { secret: 'x'.repeat(43) }),
      forge({ sub: SUB }, { secret: createHmac('sha256', SECRET).update('doorbuster accounts').digest('base64url') }),
      `${issue(SUB).slice(0, -4)}AAAA`,
    ]) {
      expect([forged, buyerOf(forged)]).toEqual([forged, null]);
    }
  });

  it('outlives a rotation of the secret, for as long as the older one is configured', () => {
    const [before, rotated] = [accountTokens({ ...OPTIONS, authSecrets: [OLDER] })(SUB), [SECRET, OLDER]];
    expect(buyerOf(before, { authSecrets: rotated })).toBe(SUB);
    expect(buyerOf(before)).toBeNull();
    const after = accountTokens({ ...OPTIONS, authSecrets: rotated })(SUB);
    expect([buyerOf(after, { authSecrets: rotated }), buyerOf(after)], 'the first one signs').toEqual([SUB, SUB]);
  });

  it('has the issuer, the audience and the end that are asked for', () => {
    const asked = { issuer: 'shop', audience: 'doorbuster' };
    const token = accountTokens({ ...OPTIONS, ...asked })(SUB);
    expect(buyerOf(token, { ...asked, requireExp: true })).toBe(SUB);
    expect(buyerOf(token, { ...asked, audience: 'other' })).toBeNull();
    expect(buyerOf(issue(SUB), asked)).toBeNull();
  });

  it('of a demo is valid in that demo only, whatever secrets it was given', () => {
    const demo = { secret: 'the-secret-of-the-demo-0123456789' };
    const token = accountTokens({ ...OPTIONS, demo })(SUB);
    expect([buyerOf(token, { demo }), buyerOf(token), buyerOf(issue(SUB), { demo })]).toEqual([SUB, null, null]);
  });
});
