import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  createLocks,
  createQuorum,
  type Quorum,
  type QuorumOptions,
  TimeoutError,
  UnavailableError,
} from '../../src/locks/index.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { asksScript, callsOf, keysOf } from '../support/locks-probe.ts';
import { aborting, ending, isPendingAfter } from '../support/locks-timing.ts';
import { LONG } from '../support/long.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/** Locks by the majority of independent masters, with each minority and majority of them away. */

/** More than the default of 200 ms: here all masters and all clients share a busy machine. */
const COMMAND_MS = 600;
/** Masters are asked side by side, twice where it must be tried again; then the clean-up. */
const BOUND_MS = 6 * COMMAND_MS;

let masters: RedisServer[];
let warmed = 0;

function quorumOf(servers: readonly RedisServer[], options: Partial<QuorumOptions> = {}) {
  return createQuorum({ masters: servers.map(({ url }) => url), commandMs: COMMAND_MS, ...options });
}

/** Connected to all: what is measured afterwards is the lock, and not how busy the machine is. */
async function warmUp(quorum: Quorum): Promise<void> {
  // A name of its own: two that warm up must not wait for each other.
  const name = `warm-${warmed++}`;
  await until('the masters answer', 5000, () =>
    quorum
      .mutex(name)
      .run(() => true)
      .catch(() => false),
  );
}

/** What is held or awaited of one name, on a master. */
async function partsOf(master: RedisServer, name: string): Promise<string[]> {
  return (await keysOf(master.port)).filter((key) => key.endsWith(`:quorum:${name}`));
}

async function expectNothing(servers: readonly RedisServer[], name: string): Promise<void> {
  await until(`nothing of ${name} is left`, 2500, async () => {
    const all = await Promise.all(servers.map((master) => partsOf(master, name)));
    return all.flat().length === 0;
  });
}

function mutexName(name: string): string {
  return `quorum:${name}`;
}

/** Every way to take some of `count` away; in a quick run of each size only one that has the first and one that has not. */
function subsets(count: number): number[][] {
  const all = Array.from({ length: 2 ** count }, (_, bits) =>
    Array.from({ length: count }, (_, i) => i).filter((i) => (bits >> i) & 1),
  );
  if (LONG || count < 3) return all;
  return Array.from({ length: count + 1 }, (_, size) => all.filter((one) => one.length === size)).flatMap((same) => [
    ...new Set([same[0]!, same.at(-1)!]),
  ]);
}

describeWithRedis('locks: quorum', () => {
  beforeAll(async () => {
    masters = await Promise.all([1, 2, 3].map(() => startRedis()));
  });
  afterAll(cleanUpServers);

  describe.concurrent('side by side', () => {
    it.each(LONG ? [2, 3, 4] : [3])(
      'of %i masters, each subset killed: granted by a majority, else UnavailableError',
      async (count) => {
        const own = await Promise.all(Array.from({ length: count }, () => startRedis()));
        const majority = Math.floor(count / 2) + 1;
        for (const down of subsets(count)) {
          // Closed before the others come back: what a quorum still asks of one that is away would be had there, for a
          // moment, in the midst of the next round.
          {
            const what = `${down.length} of ${count} down: ${down}`;
            await using known = quorumOf(own);
            await warmUp(known);
            await Promise.all(down.map((i) => own[i]!.kill()));
            await using fresh = quorumOf(own);
            const up = own.filter((_, i) => !down.includes(i));
            for (const [who, quorum] of [
              ['known', known],
              ['fresh', fresh],
            ] as const) {
              for (const call of who === 'known' ? (['tryAcquire', 'acquire'] as const) : (['acquire'] as const)) {
                const end = await ending<{ held: boolean; release(): Promise<void> } | null>(quorum.mutex('m')[call]());
                expect(end.ms, `${what} ${who} ${call}`).toBeLessThan(BOUND_MS);
                if (up.length >= majority) {
                  expect(end.failed, `${what} ${who} ${call}`).toBeNull();
                  expect(end.value?.held, `${what} ${who} ${call}`).toBe(true);
                  const released = await ending(end.value!.release());
                  expect(released.failed, `${what} ${who} release`).toBeNull();
                  expect(released.ms, `${what} ${who} release`).toBeLessThan(BOUND_MS);
                } else {
                  expect(end.error, `${what} ${who} ${call}`).toBeInstanceOf(UnavailableError);
                }
                await expectNothing(up, 'm');
              }
            }
          }
          await Promise.all(down.map((i) => own[i]!.restart()));
        }
      },
      60_000,
    );

    it('a majority is stopped, not killed: UnavailableError in bounded time, and nothing is left when it goes on', async () => {
      const own = await Promise.all([1, 2, 3].map(() => startRedis()));
      await using quorum = quorumOf(own);
      await warmUp(quorum);
      await Promise.all(own.slice(1).map((master) => master.pause()));
      const calls = [
        quorum.mutex('m').tryAcquire(),
        quorum.mutex('m').acquire(),
        quorum.mutex('m').acquire({ wait: 9000 }),
      ];
      for (const end of await Promise.all(calls.map((call) => ending<unknown>(call)))) {
        expect(end.error).toBeInstanceOf(UnavailableError);
        expect(end.ms).toBeLessThan(BOUND_MS);
      }
      await Promise.all(own.slice(1).map((master) => master.resume()));
      await expectNothing(own, 'm');
      const later = await ending(quorum.mutex('m').acquire({ wait: 3000 }));
      expect(later.failed).toBeNull();
    });

    it('of two masters, one for and one against: it settles, and nothing is left on the one for', async () => {
      const two = masters.slice(0, 2);
      await using quorum = quorumOf(two);
      await using against = createLocks({ redis: two[1]!.url });
      const held = await against.mutex(mutexName('split')).acquire();
      const tried = await ending(quorum.mutex('split').tryAcquire());
      expect(tried).toMatchObject({ failed: null, value: null });
      expect(tried.ms).toBeLessThan(BOUND_MS);
      const waited = await ending(quorum.mutex('split').acquire({ wait: 700 }));
      expect(waited.error).toBeInstanceOf(TimeoutError);
      expect(waited.ms).toBeGreaterThan(690);
      expect(waited.ms).toBeLessThan(700 + BOUND_MS);
      await expectNothing([two[0]!], 'split');
      await held.release();
      await quorum.mutex('split').run(() => undefined);
    });

    it('the reply of one master is lost in a try that fails: that master is free again at once', async () => {
      const proxy = await startProxy(masters[2]!.port);
      await using quorum = createQuorum({
        commandMs: COMMAND_MS,
        masters: [masters[0]!.url, masters[1]!.url, `redis://127.0.0.1:${proxy.port}`],
      });
      await using others = createLocks({ redis: masters[0]!.url });
      await using more = createLocks({ redis: masters[1]!.url });
      await warmUp(quorum);
      const held = await Promise.all([others, more].map((locks) => locks.mutex(mutexName('lost')).acquire()));
      proxy.dropReplies(({ request }) => asksScript(request, 'quorum:lost'));
      const tried = await ending(quorum.mutex('lost').tryAcquire());
      expect(tried.value ?? null).toBeNull();
      expect(tried.ms).toBeLessThan(BOUND_MS);
      expect(proxy.counters().repliesDropped).toBeGreaterThan(0);
      proxy.dropReplies(0);
      await expectNothing([masters[2]!], 'lost');
      await Promise.all(held.map((grant) => grant.release()));
    });

    it('the reply of one master is lost in a try that succeeds: granted, and given back everywhere', async () => {
      const proxy = await startProxy(masters[2]!.port);
      await using quorum = createQuorum({
        commandMs: COMMAND_MS,
        masters: [masters[0]!.url, masters[1]!.url, `redis://127.0.0.1:${proxy.port}`],
      });
      await warmUp(quorum);
      proxy.dropReplies(({ request }) => asksScript(request, 'quorum:late'));
      const grant = await quorum.mutex('late').acquire();
      grant.assertHeld();
      await sleep(100);
      proxy.dropReplies(0);
      await grant.release();
      await expectNothing(masters, 'late');
    });

    it('a minority is restarted empty while it is held: held on, by nobody else; a second one: lost, and told', async () => {
      const own = await Promise.all([1, 2, 3].map(() => startRedis()));
      await using quorum = quorumOf(own, { lease: 6000 });
      await using other = quorumOf(own, { lease: 6000 });
      const grant = await quorum.mutex('m').acquire();
      await until('all three have it', 2000, async () => (await partsOf(own[2]!, 'm')).length === 1);
      const lost = aborting(grant.signal, 10_000);
      await own[2]!.kill();
      await own[2]!.restart();
      expect(await isPendingAfter(lost, 1000)).toBe(true);
      grant.assertHeld();
      for (let i = 0; i < 5; i++) expect(await other.mutex('m').tryAcquire()).toBeNull();
      grant.assertHeld();
      await own[1]!.kill();
      await own[1]!.restart();
      expect((await lost).reason).toBe('refused');
      expect((await lost).ms).toBeLessThan(5000);
      expect(() => grant.assertHeld()).toThrow('lost');
      const next = await ending(other.mutex('m').acquire({ wait: 3000 }));
      expect(next.failed).toBeNull();
      expect(next.value!.token).toBeGreaterThan(grant.token);
      await expect(grant.release()).rejects.toMatchObject({ code: 'lock_lost' });
      next.value!.assertHeld();
    });

    it('a minority that was restarted while it was held does not make release() fail', async () => {
      const own = await Promise.all([1, 2, 3].map(() => startRedis()));
      await using quorum = quorumOf(own);
      for (const master of own) {
        const grant = await quorum.mutex('m').acquire();
        await sleep(100);
        await master.kill();
        await master.restart();
        await sleep(200);
        expect((await ending(grant.release())).failed).toBeNull();
        await expectNothing(own, 'm');
      }
    });

    it('no renewal reaches a majority: the signal aborts before either of them gives it away', async () => {
      const proxies = await Promise.all(masters.map(({ port }) => startProxy(port)));
      await using quorum = createQuorum({
        commandMs: COMMAND_MS,
        masters: proxies.map(({ port }) => `redis://127.0.0.1:${port}`),
        lease: 2000,
      });
      const grant = await quorum.mutex('cut').acquire();
      await sleep(900);
      for (const proxy of proxies.slice(0, 2)) proxy.freeze();
      const key = 'doorbuster:lock:{0}:mutex:lock:quorum:cut';
      const expire = await Promise.all(masters.slice(0, 2).map((master) => master.command('PEXPIRETIME', key)));
      const deadlineMs = Date.now() + grant.remaining();
      expect(deadlineMs).toBeLessThan(Math.max(...expire.map(Number)));
      const { atMs } = await aborting(grant.signal, 4000);
      expect(atMs - deadlineMs).toBeLessThan(500);
      expect(() => grant.assertHeld()).toThrow('lost');
      for (const proxy of proxies) proxy.thaw();
    });

    it('tokens grow from one majority to the next although the clocks of the masters differ', async () => {
      const own = await Promise.all([1, 2, 3].map(() => startRedis()));
      const hoursUs = [3, 0, 1].map((hours) => (Date.now() + hours * 3_600_000) * 1000);
      await Promise.all(own.map((master, i) => master.command('SET', 'doorbuster:lock:{0}:clock', String(hoursUs[i]))));
      await using quorum = quorumOf(own);
      const tokens: bigint[] = [];
      // Two of three in turn; the one that is away is stopped, so that it does not forget.
      for (const away of [2, 0, 1, 0, 2, 1, 0]) {
        await own[away]!.pause();
        const grant = await quorum.mutex('m').acquire({ wait: 3000 });
        tokens.push(grant.token);
        await grant.release();
        await own[away]!.resume();
        await expectNothing(own, 'm');
      }
      expect(tokens[0]).toBeGreaterThan(BigInt(hoursUs[0]!));
      expect(
        tokens.every((token, i) => i === 0 || token > tokens[i - 1]!),
        tokens.join(' '),
      ).toBe(true);
    });

    it('waiting is by notification: nothing is asked meanwhile, and the next has it at once', async () => {
      const own = await Promise.all([1, 2, 3].map(() => startRedis()));
      await using quorum = quorumOf(own);
      await using other = quorumOf(own);
      await Promise.all([quorum, other].map(warmUp));
      const grant = await quorum.mutex('m').acquire();
      const next = other.mutex('m').acquire();
      await until('it waits', 3000, async () => (await partsOf(own[0]!, 'm')).length === 2);
      await sleep(100);
      const before = await Promise.all(own.map(({ port }) => callsOf(port, 'evalsha')));
      await sleep(800);
      expect(await Promise.all(own.map(({ port }) => callsOf(port, 'evalsha')))).toEqual(before);
      const end = ending(next);
      await grant.release();
      expect((await end).failed).toBeNull();
      expect((await end).ms).toBeLessThan(800);
      expect((await end).value!.token).toBeGreaterThan(grant.token);
    });

    it('the master at which one waits is killed: waited on at the next one, and had', async () => {
      const own = await Promise.all([1, 2, 3].map(() => startRedis()));
      await using quorum = quorumOf(own);
      await using other = quorumOf(own);
      await Promise.all([quorum, other].map(warmUp));
      const grant = await quorum.mutex('m').acquire();
      const next = ending(other.mutex('m').acquire({ wait: 10_000 }));
      await until('it waits', 3000, async () => (await partsOf(own[0]!, 'm')).length === 2);
      await own[0]!.kill();
      await sleep(300);
      grant.assertHeld();
      const releasedMs = performance.now();
      expect((await ending(grant.release())).failed).toBeNull();
      expect((await next).failed).toBeNull();
      expect(performance.now() - releasedMs).toBeLessThan(3000);
      await (await next).value!.release();
      await expectNothing(own.slice(1), 'm');
    });

    it('there is no semaphore by majority: network delay alone would let in too many', async () => {
      await using quorum = quorumOf(masters);
      expect(Object.getOwnPropertyNames(Object.getPrototypeOf(quorum))).not.toContain('semaphore');
    });

    it('many that want it at once, each with its own connections: one at a time, all in the end', async () => {
      const quorums = Array.from({ length: 4 }, () => quorumOf(masters));
      await Promise.all(quorums.map(warmUp));
      let inside = 0;
      let crossed = 0;
      const work = quorums.flatMap((quorum) =>
        [1, 2, 3].map(() =>
          quorum.mutex('crowd').run(
            async () => {
              if (++inside > 1) crossed++;
              await sleep(3);
              inside--;
            },
            { wait: 20_000 },
          ),
        ),
      );
      await Promise.all(work);
      expect(crossed).toBe(0);
      await expectNothing(masters, 'crowd');
      await Promise.all(quorums.map((quorum) => quorum.close()));
    });
  });
});
