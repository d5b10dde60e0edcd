import { pino } from 'pino';
import { beforeEach, describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { SignIns } from '../../src/http/sign-ins.ts';

/** The bounds on wrong admin keys: at each bound, and one beyond. */
const THEM = '203.0.113.1';

describe('wrong admin keys', () => {
  let clock: ManualClock;
  let lines: Record<string, unknown>[];
  let signIns: SignIns;

  beforeEach(() => {
    clock = new ManualClock(0);
    lines = [];
    const log = pino({}, { write: (line: string) => lines.push(JSON.parse(line)) });
    signIns = new SignIns(clock, log);
  });

  const fail = (count: number, address = THEM): number[] =>
    Array.from({ length: count }, () => signIns.failed(address));
  const release = (count: number, address = THEM): void => {
    for (let n = 0; n < count; n++) signIns.released(address);
  };

  it('are answered at once five times, then after 250 ms, and twice as long up to 2 s; after a quiet minute anew', () => {
    expect(fail(10)).toEqual([0, 0, 0, 0, 0, 250, 500, 1000, 2000, 2000]);
    expect(fail(1, '203.0.113.2')).toEqual([0]);
    release(5);
    clock.advance(59_999);
    expect(fail(1)).toEqual([2000]);
    release(1);
    clock.advance(60_000);
    expect(fail(6)).toEqual([0, 0, 0, 0, 0, 250]);
  });

  it('sixteen answers wait: the next is refused unseen, from the same /64 of IPv6 too, until one of them is given', () => {
    const [one, sameNetwork, other] = ['2001:db8:1:2::1', '2001:db8:1:2:ffff::2', '2001:db8:1:3::1'];
    fail(20, one);
    expect([signIns.held, signIns.mayTry(sameNetwork!)]).toEqual([15, true]);
    fail(1, sameNetwork);
    expect([signIns.held, signIns.mayTry(one!), signIns.mayTry(sameNetwork!)]).toEqual([16, false, false]);
    expect([signIns.mayTry(other!), signIns.mayTry('192.0.2.1')]).toEqual([true, true]);
    // One more is not delayed, but refused at once.
    expect(fail(1, one)).toEqual([0]);
    release(1, one);
    expect([signIns.held, signIns.mayTry(one!)]).toEqual([15, true]);
  });

  it('nobody is locked out: not a proxy of the own network, not an address where a right key came from in 24 hours', () => {
    const [office, proxies] = ['198.51.100.4', ['127.0.0.1', '10.0.0.3', '::1', '::ffff:192.168.0.1', 'fd00::7']];
    signIns.succeeded(office!);
    for (const address of [office as string, ...proxies]) {
      fail(40, address);
      expect([address, signIns.mayTry(address)]).toEqual([address, true]);
    }
    clock.advance(24 * 3600 * 1000 - 1);
    expect(signIns.mayTry(office as string)).toBe(true);
    clock.advance(1);
    expect(signIns.mayTry(office as string)).toBe(false);
    signIns.succeeded(office as string);
    expect(signIns.mayTry(office as string)).toBe(true);
  });

  it('at most 512 answers wait, and 10 000 addresses are remembered, whatever an attacker has', () => {
    const address = (n: number): string => `2001:db8:${(n >> 8).toString(16)}:${(n & 255).toString(16)}::1`;
    for (let n = 0; n < 52; n++) fail(16, address(n));
    expect(signIns.held).toBe(512);
    // No room for another delayed answer: refused at once without comparing the key. An address with fewer failures is compared.
    expect([signIns.mayTry(address(60)), fail(4, address(60)), signIns.mayTry(address(60))]).toEqual([
      true,
      [0, 0, 0, 0],
      true,
    ]);
    expect([fail(1, address(60)), signIns.mayTry(address(60)), fail(1, address(60))]).toEqual([[0], false, [0]]);
    // The exceptions still apply.
    signIns.succeeded(address(61));
    for (const one of [address(61), '10.0.0.3'])
      expect([fail(9, one), signIns.mayTry(one)]).toEqual([Array(9).fill(0), true]);
    clock.advance(60_000);
    expect(signIns.mayTry(address(60)), 'after a quiet minute').toBe(true);
    // The first address is forgotten; its delayed answers are still given and counted down.
    for (let n = 100; n < 10_100; n++) fail(1, address(n));
    release(11, address(0));
    expect(signIns.held).toBe(501);
    expect(fail(6, address(0))).toEqual([0, 0, 0, 0, 0, 250]);
  });

  it('each has its line, with the address and nothing of the key', () => {
    fail(2);
    expect(lines.map(({ level, origin, failures, msg }) => ({ level, origin, failures, msg }))).toEqual([
      { level: 40, origin: THEM, failures: 1, msg: 'an admin key was refused' },
      { level: 40, origin: THEM, failures: 2, msg: 'an admin key was refused' },
    ]);
  });
});
