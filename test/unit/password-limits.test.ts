import { pino } from 'pino';
import { beforeEach, describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { PasswordLimits } from '../../src/http/password-limits.ts';
import { HttpProblem } from '../../src/http/problem.ts';

/** The bounds on wrong passwords and on registrations. */
const LOCAL = '127.0.0.1';
const DAY_MS = 24 * 3600 * 1000;
const address = (n: number): string => `2001:db8:${(n >> 8).toString(16)}:${(n & 255).toString(16)}::1`;

let clock: ManualClock;
let lines: string[];
let limits: PasswordLimits;

beforeEach(() => {
  clock = new ManualClock(0);
  lines = [];
  limits = new PasswordLimits(clock, pino({}, { write: (line: string) => void lines.push(line) }));
});

/** `right`, `wrong`, or the seconds of Retry-After. */
async function told(work: Promise<unknown>): Promise<string | number> {
  try {
    return (await work) === null ? 'wrong' : 'right';
  } catch (error) {
    if (!(error instanceof HttpProblem) || error.code !== 'rate_limited') throw error;
    return Number(error.headers!['retry-after']);
  }
}

const wrong = (from: string, name = 'ann') => told(limits.signIn(from, name, async () => null));
const right = (from: string, name = 'ann') => told(limits.signIn(from, name, async () => 'account'));

async function times(count: number, ask: (n: number) => Promise<string | number>): Promise<(string | number)[]> {
  const answers: (string | number)[] = [];
  for (let n = 0; n < count; n++) answers.push(await ask(n));
  return answers;
}

describe('wrong passwords for one name', () => {
  it('five are judged at once; then there is a pause of 1 s, and twice as long each time up to 30 s', async () => {
    expect(await times(6, (n) => wrong(address(n)))).toEqual([...Array(5).fill('wrong'), 1]);
    for (const pauseMs of [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]) {
      clock.advance(pauseMs - 1);
      expect([pauseMs, await right(address(99))]).toEqual([pauseMs, 1]);
      clock.advance(1);
      expect([pauseMs, await wrong(address(98))]).toEqual([pauseMs, 'wrong']);
      expect(await wrong(LOCAL), 'at a local address, too').toBe(Math.min((pauseMs * 2) / 1000, 30));
    }
    expect(await wrong(address(1), 'ben'), 'another name').toBe('wrong');
  });

  it('after a quarter of an hour it starts from zero', async () => {
    await times(5, (n) => wrong(address(n)));
    clock.advance(15 * 60_000);
    expect(await times(6, (n) => wrong(address(n)))).toEqual([...Array(5).fill('wrong'), 1]);
  });

  it('a thousand at once are not all free: five are judged, and after the pause one at a time', async () => {
    const judging: ((result: null) => void)[] = [];
    const slow = (n: number) =>
      told(limits.signIn(address(n), 'ann', () => new Promise<null>((resolve) => void judging.push(resolve))));
    const first = Array.from({ length: 1000 }, (_, n) => slow(n));
    expect(judging).toHaveLength(5);
    for (const answer of judging.splice(0)) answer(null);
    expect((await Promise.all(first)).filter((one) => one === 'wrong')).toHaveLength(5);
    clock.advance(1000);
    const next = Array.from({ length: 10 }, (_, n) => slow(2000 + n));
    expect(judging).toHaveLength(1);
    judging[0]!(null);
    await Promise.all(next);
  });

  it('whoever signed in from there in the last 24 hours is not kept out; others behind the attack are', async () => {
    const home = '198.51.100.4';
    expect(await right(home)).toBe('right');
    await times(8, (n) => wrong(address(n)));
    expect([await right(home), await right('198.51.100.5')]).toEqual(['right', 1]);
    const theirs = '203.0.113.50';
    expect([await right(theirs, 'mallory'), await right(theirs)], 'of that account only').toEqual(['right', 1]);
    clock.advance(DAY_MS);
    await times(8, (n) => wrong(address(n)));
    expect(await right(home)).toBe(1);
    // Behind an unknown proxy everybody has its address.
    expect([await right(LOCAL, 'cem'), await times(6, () => wrong(LOCAL, 'cem'))]).toEqual([
      'right',
      [...Array(5).fill('wrong'), 1],
    ]);
  });

  it('an error while it is judged counts as nothing', async () => {
    const failing = () => limits.signIn(address(1), 'ann', async () => Promise.reject(new Error('out')));
    for (let n = 0; n < 50; n++) await expect(failing()).rejects.toThrow('out');
    expect(await wrong(address(1))).toBe('wrong');
  });
});

describe('memory', () => {
  it('is bounded, and a crowd of sign-ins that were refused unjudged pushes out no name that failed', async () => {
    await times(5, (n) => wrong(address(n)));
    const refused = (n: number) =>
      limits.signIn(LOCAL, `crowd-${n}`, async () => Promise.reject(new Error('overloaded')));
    for (let n = 0; n < 10_100; n++) await refused(n).catch(() => null);
    expect(await wrong(address(9))).toBe(1);
    // Judged ones do, each at the price of a hash.
    for (let n = 0; n < 10_000; n++) await wrong(LOCAL, `other-${n}`);
    expect(await wrong(address(9))).toBe('wrong');
  });
});

describe('wrong passwords from one address', () => {
  it('twenty, for whatever names, then a pause up to 15 s; a right one between them changes nothing', async () => {
    const from = '203.0.113.1';
    expect(await times(19, (n) => wrong(from, `user-${n}`))).toEqual(Array(19).fill('wrong'));
    expect(await right(from, 'mallory')).toBe('right');
    expect([await wrong(from, 'x'), await wrong(from, 'y'), await right(from, 'mallory')]).toEqual(['wrong', 1, 1]);
    for (let n = 0; n < 10; n++) {
      clock.advance(15_000);
      expect(await wrong(from, `more-${n}`)).toBe('wrong');
    }
    expect(await right(from, 'mallory')).toBe(15);
    expect(await right('203.0.113.2', 'ben'), 'another address').toBe('right');
    clock.advance(5 * 60_000);
    expect(await wrong(from, 'z')).toBe('wrong');
  });

  it('a local one has no limit of its own: it may be a proxy', async () => {
    expect(await times(200, (n) => wrong(LOCAL, `user-${n}`))).toEqual(Array(200).fill('wrong'));
  });

  it('each is logged with its address, and nothing that was typed', async () => {
    await wrong('203.0.113.1', 'my-secret-password');
    expect(JSON.parse(lines[0]!)).toMatchObject({ level: 40, origin: '203.0.113.1', msg: 'a sign-in was refused' });
    expect(lines.join('')).not.toContain('my-secret-password');
  });
});

describe('wrong passwords from one IPv6 network', () => {
  const inNetwork = (n: number): string => `2001:db8:99:${n.toString(16)}::1`;

  it('a hundred from its /64s, then one a second; whoever signed in from there goes on, and so do other networks', async () => {
    const home = inNetwork(5000);
    expect(await right(home, 'owner')).toBe('right');
    expect(await times(100, (n) => wrong(inNetwork(n), `user-${n}`))).toEqual(Array(100).fill('wrong'));
    expect(await wrong(inNetwork(100), 'user-100')).toBe(1);
    for (let n = 0; n < 5; n++) {
      clock.advance(999);
      expect(await right(inNetwork(101), 'user-101')).toBe(1);
      clock.advance(1);
      expect(await wrong(inNetwork(200 + n), `more-${n}`)).toBe('wrong');
    }
    expect([await right(home, 'owner'), await right('2001:db8:98::1', 'ben')]).toEqual(['right', 'right']);
    clock.advance(5 * 60_000);
    expect(await times(2, (n) => wrong(inNetwork(300 + n), `late-${n}`))).toEqual(['wrong', 'wrong']);
  });

  it('IPv4 has addresses only: a neighbour’s tries are nobody else’s', async () => {
    await times(200, (n) => wrong(`203.0.113.${n}`, `user-${n}`));
    expect(await wrong('203.0.113.201', 'user-201')).toBe('wrong');
  });
});

describe('right passwords for one account', () => {
  const many = (count: number) => times(count, (n) => right(`203.0.113.${n}`));

  it('P10: ten in any minute, from whatever addresses, then 429 until the first of them is a minute old', async () => {
    expect(await many(9)).toEqual(Array(9).fill('right'));
    clock.advance(20_000);
    expect(await many(2)).toEqual(['right', 40]);
    expect(await right('203.0.113.0'), 'where it succeeded, too').toBe(40);
    expect(await right('203.0.113.0', 'ben'), 'another account').toBe('right');
    clock.advance(39_999);
    expect(await right('203.0.113.0')).toBe(1);
    clock.advance(1);
    expect(await many(10)).toEqual([...Array(9).fill('right'), 20]);
  });

  it('P10: a thousand at once are not all free', async () => {
    const judging: ((result: string) => void)[] = [];
    await right('203.0.113.1');
    const all = Array.from({ length: 1000 }, () =>
      told(limits.signIn('203.0.113.1', 'ann', () => new Promise<string>((resolve) => void judging.push(resolve)))),
    );
    expect(judging).toHaveLength(9);
    for (const answer of judging) answer('account');
    expect((await Promise.all(all)).filter((one) => one === 'right')).toHaveLength(9);
  });
});

describe('registrations of one IPv6 network', () => {
  it('a hundred from its /64s, then a pause up to 5 s', async () => {
    const register = (n: number) =>
      told(limits.register(`2001:db8:99:${n.toString(16)}::1`, async () => ({ result: 'account', counts: true })));
    expect(await times(101, register)).toEqual([...Array(100).fill('right'), 1]);
    for (let n = 0; n < 6; n++) {
      clock.advance(5000);
      expect(await register(200 + n)).toBe('right');
    }
    expect(await register(300)).toBe(5);
  });
});

describe('registrations of one address', () => {
  const register = (from: string, counts = true) =>
    told(limits.register(from, async () => ({ result: 'account', counts })));

  it('twenty, then a pause up to a minute; what was refused as invalid does not count; a local one has no limit', async () => {
    const from = '203.0.113.1';
    await times(30, () => register(from, false));
    expect(await times(22, () => register(from))).toEqual([...Array(20).fill('right'), 1, 1]);
    for (let n = 0; n < 8; n++) {
      clock.advance(60_000);
      expect(await register(from)).toBe('right');
    }
    expect(await register(from)).toBe(60);
    expect(await register('203.0.113.2')).toBe('right');
    expect(await times(100, () => register(LOCAL))).toEqual(Array(100).fill('right'));
  });
});
