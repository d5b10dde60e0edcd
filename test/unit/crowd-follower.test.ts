import { expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import type { Reply } from '../../src/crowd/client.ts';
import type { Fleet } from '../../src/crowd/fleet.ts';
import { Door } from '../../src/crowd/fleet.ts';
import { Follower } from '../../src/crowd/follower.ts';

const NEVER = new AbortController().signal;
const TICK_MS = 50;

/** A follower with a manual clock; `look` answers the read of an order. */
function world(look: (id: string, nowMs: number) => Reply | Promise<Reply>, width = 10) {
  let nowMs = 0;
  let tick = (): void => {};
  const alarms: { atMs: number; run: () => void }[] = [];
  const looks: { id: string; atMs: number }[] = [];
  const call = async (_method: string, path: string): Promise<Reply> => {
    const id = path.slice('/v1/orders/'.length);
    looks.push({ id, atMs: nowMs });
    return look(id, nowMs);
  };
  const timers = {
    ...systemRuntime().timers,
    every: (_ms: number, run: () => void) => {
      tick = run;
      return () => {
        tick = () => {};
      };
    },
    after: (ms: number, run: () => void) => {
      alarms.push({ atMs: nowMs + ms, run });
      return () => {};
    },
  };
  const decided: string[] = [];
  const follower = new Follower({
    fleet: { door: () => ({ call }) } as unknown as Fleet,
    width,
    runtime: { ...systemRuntime(), timers, clock: { ...systemRuntime().clock, monotonic: () => nowMs } },
    decided: ({ id, status }) => decided.push(`${id} ${status}`),
  });
  const pass = async (ms: number): Promise<void> => {
    for (const endMs = nowMs + ms; nowMs < endMs; ) {
      nowMs += TICK_MS;
      tick();
      // Answers take only a few turns of the microtask queue.
      for (let turns = 0; turns < 10; turns++) await Promise.resolve();
      for (const alarm of alarms.splice(0)) alarm.atMs <= nowMs ? alarm.run() : alarms.push(alarm);
    }
  };
  return { follower, pass, looks, decided };
}

function shows(id: string, status: string): Reply {
  const body = { id, buyer: 'ann', item: 'voucher', quantity: 1, status, reason: null };
  return { ok: true, status: 200, headers: {}, body };
}

function problem(status: number, code: string, retryAfter?: string): Reply {
  return { ok: true, status, headers: retryAfter ? { 'retry-after': retryAfter } : {}, body: { code } };
}

it('polls soon at first, then less often, and at least every 2.5 s', async () => {
  const { follower, pass, looks } = world((id) => shows(id, 'queued'));
  follower.add('1', 'token');
  follower.add('1', 'token');
  await pass(30_000);
  const gaps = looks.map(({ atMs }, at) => atMs - (looks[at - 1]?.atMs ?? 0));
  expect(gaps[0]).toBe(250);
  expect(Math.min(...gaps)).toBeGreaterThanOrEqual(150);
  expect(Math.max(...gaps)).toBeLessThanOrEqual(2_550);
  expect(looks.length).toBeLessThan(30);
});

it('polls only a few at once and a thousand a second, and every order in turn', async () => {
  const open: (() => void)[] = [];
  const slow = world((id) => new Promise((resolve) => open.push(() => resolve(shows(id, 'queued')))), 3);
  for (let at = 0; at < 100; at++) slow.follower.add(String(at), 'token');
  await slow.pass(1_000);
  expect(open).toHaveLength(3);

  const quick = world((id) => shows(id, 'queued'));
  for (let at = 0; at < 3_000; at++) quick.follower.add(String(at), 'token');
  await quick.pass(5_000);
  expect(quick.looks.length).toBeLessThanOrEqual(5_000);
  expect(new Set(quick.looks.map(({ id }) => id)).size).toBe(3_000);
});

it('waits through 404, 503, 429 and lost connections, and ends with the last decision', async () => {
  const troubles: Reply[] = [
    problem(404, 'not_found'),
    problem(503, 'unavailable', '2'),
    problem(429, 'rate_limited'),
    { ok: false, reason: 'ECONNRESET' },
  ];
  const { follower, pass, decided } = world(
    (id) => troubles.shift() ?? shows(id, id === '1' ? 'reserved' : 'rejected'),
  );
  follower.add('1', 'token');
  follower.add('2', 'token');
  const finished = follower.finish(60_000, NEVER);
  await pass(20_000);
  const following = await finished;
  expect(decided.toSorted()).toEqual(['1 reserved', '2 rejected']);
  expect(following).toMatchObject({ waited: true, odd: {} });
  expect(following.orders.map(({ end }) => end?.status)).toEqual(['reserved', 'rejected']);
  expect(following.orders.every(({ tookMs }) => tookMs! >= 250 && tookMs! < 20_000)).toBe(true);
});

it('gives up when the bound is over, and reports what was seen last and which answers break the contract', async () => {
  const { follower, pass, looks } = world((id) => {
    if (id === '1') return shows(id, 'queued');
    if (id === '2') return problem(404, 'not_found');
    return id === '3' ? { ok: false, reason: 'ECONNREFUSED' } : problem(500, 'internal');
  });
  for (const id of ['1', '2', '3', '4']) follower.add(id, 'token');
  const finished = follower.finish(5_000, NEVER);
  await pass(5_000);
  const { orders, odd, waited } = await finished;
  expect(orders.map(({ last }) => last)).toEqual(['queued', 'missing', 'unheard', 'unheard']);
  expect([waited, odd['500 internal']! > 0, Object.keys(odd).length]).toEqual([true, true, 1]);
  const before = looks.length;
  await pass(10_000);
  expect(looks).toHaveLength(before);
});

it('an interrupt ends it at once, and is not a fault', async () => {
  const { follower } = world((id) => shows(id, 'queued'));
  follower.add('1', 'token');
  const interrupt = new AbortController();
  const finished = follower.finish(60_000, interrupt.signal);
  interrupt.abort();
  expect(await finished).toMatchObject({ waited: false, orders: [{ id: '1', end: null }] });
});

it('a door keeps to its address until the connection is lost; calls that fail together move it once', async () => {
  const asked: number[] = [];
  const client = (at: number) => ({
    call: async (): Promise<Reply> => {
      asked.push(at % 2);
      return at % 2 === 0 ? { ok: false, reason: 'ECONNRESET' } : problem(503, 'unavailable');
    },
  });
  const door = new Door({ client } as unknown as Fleet, 0);
  await Promise.all([door.call('GET', '/'), door.call('GET', '/')]);
  await door.call('GET', '/');
  await door.call('GET', '/');
  expect(asked).toEqual([0, 0, 1, 1]);
});
