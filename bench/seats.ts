import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { loadScripts } from '../src/base/redis/scripts.ts';
import { systemRuntime } from '../src/base/runtime.ts';
import type { AdmitRequest, SeatWish } from '../src/gate/port.ts';
import { RedisGate } from '../src/gate/redis/gate.ts';
import { scriptNamed } from '../src/gate/redis/scripts.ts';
import { buildSeatMap, encodeSeatMap, type SeatMap } from '../src/model/seat-map.ts';
import type { SaleSnapshot } from '../src/model/snapshot.ts';
import { Server } from './locks/server.ts';
import { report } from './support.ts';

/**
 * Orders for seats in Redis: how long Redis takes for a whole call of 64 orders, from an empty hall to one that is 99 % full, and how
 * many orders one process gets through. Beside it the same orders as ticket shops of the sources' kind decide them (a JSON of every
 * seat, read and matched in the script), and orders for a counted item. What a call takes is Redis' own measure (SLOWLOG).
 */
const SALE = '7';
const ORDERS = 64;
const FILLS = [0, 0.5, 0.9, 0.99];
const HALLS = [
  { name: '1 000 seats, rows of 50', rows: 20, width: 50 },
  { name: '20 000 seats, rows of 50', rows: 400, width: 50 },
  { name: '20 000 seats, rows of 500', rows: 40, width: 500 },
  { name: '20 000 seats, rows of 1', rows: 20_000, width: 1 },
];
/** Two of them are beside the baseline. */
const BESIDE = 2;

type Kind = 'together' | 'any' | 'named';

let lastId = 7_000_000_000_000_000_000n;
const nextId = (): string => String(++lastId);

function mapOf({ rows, width }: (typeof HALLS)[number]): SeatMap {
  return buildSeatMap(
    Array.from({ length: rows }, (_, row) => ({ section: 'S', row: String(row), from: 1, to: width })),
  );
}

/** A random permutation, so that a hall is filled evenly. */
function shuffled(count: number): number[] {
  const all = Array.from({ length: count }, (_, at) => at);
  for (let at = count - 1; at > 0; at--) {
    const other = Math.floor(Math.random() * (at + 1));
    [all[at], all[other]] = [all[other]!, all[at]!];
  }
  return all;
}

function snapshot(epoch: number, map: SeatMap, taken: readonly number[]): SaleSnapshot {
  const nowMs = Date.now();
  const price = { amount: 8000, currency: 'CNY' };
  return {
    ...{ saleId: SALE, epoch, version: 1, opensAtMs: nowMs - 1000, closesAtMs: nowMs + 3_600_000 },
    ...{ paused: false, closed: false, perBuyer: 100, payWithinSeconds: 900, mayAdmit: true },
    items: [
      {
        ...{ id: '11', code: 'stalls', price, total: map.size, blocked: 0, rev: 1 },
        seats: { map: encodeSeatMap(map), blocked: [] },
      },
      { id: '12', code: 'standing', price, total: 1_000_000_000, blocked: 0, rev: 1 },
    ],
    content: [
      {
        holds: taken.map((seat) => ({ orderId: nextId(), itemId: '11', buyer: `h${seat}`, slots: [1], seats: [seat] })),
        keys: [],
      },
    ],
  };
}

function request(buyer: string, seats: SeatWish | undefined, quantity: number): AdmitRequest {
  const itemCode = seats === undefined ? 'standing' : 'stalls';
  return { saleId: SALE, orderId: nextId(), buyer, itemCode, quantity, seats, key: null, fingerprint: 'x' };
}

/** 1 to 4 seats, the same for everybody who is measured. */
const quantityOf = (at: number): number => 1 + (at % 4);

interface Taken {
  /** Of each call, in µs. */
  readonly us: number[];
  readonly perSecond: number;
  readonly admitted: number;
  readonly asked: number;
}

const at = (values: readonly number[], part: number): number => {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(Math.floor(sorted.length * part), sorted.length - 1)] ?? 0;
};

export async function run(args: string[]): Promise<void> {
  const quick = args.includes('--quick');
  const calls = quick ? 100 : 400;
  const server = await Server.start();
  const eye = new Redis(server.url);
  const gate = new RedisGate({ target: server.url, pipeMax: 100_000_000, commandMs: 10_000 }, systemRuntime());
  const damai = loadScripts(fileURLToPath(new URL('./baselines/seats/', import.meta.url))).get('damai')!;
  await eye.script('LOAD', damai.lua);
  await eye.config('SET', 'slowlog-log-slower-than', '0');
  await eye.config('SET', 'slowlog-max-len', '100000');
  let epoch = 0;

  /** How long Redis took for each call of a script since the last question. */
  const durations = async (sha: string): Promise<number[]> => {
    const log = (await eye.call('SLOWLOG', 'GET', '-1')) as [number, number, number, string[]][];
    await eye.call('SLOWLOG', 'RESET');
    return log.filter(([, , , command]) => command[1] === sha).map(([, , us]) => us);
  };

  /** Calls of 64 orders each; after each call all seats are given back, so that the hall stays as full as it is. */
  const ours = async (kind: Kind | 'counted', free: readonly number[]): Promise<Taken> => {
    const script = scriptNamed(kind === 'counted' ? 'admit' : 'admit-seats');
    const us: number[] = [];
    let [spentMs, admitted, asked] = [0, 0, 0];
    for (let call = 0; call < calls; call++) {
      const requests = Array.from({ length: ORDERS }, (_, i) => {
        const quantity = quantityOf(i);
        if (kind === 'counted') return request(`b${i}`, undefined, quantity);
        if (kind !== 'named') return request(`b${i}`, kind, quantity);
        const from = Math.floor(Math.random() * Math.max(free.length - 4, 1));
        return request(
          `b${i}`,
          free.slice(from, from + quantity).toSorted((a, b) => a - b),
          quantity,
        );
      });
      await eye.call('SLOWLOG', 'RESET');
      const startMs = performance.now();
      const verdicts = await Promise.all(requests.map((one) => gate.admit(one)));
      spentMs += performance.now() - startMs;
      us.push((await durations(script.sha)).reduce((sum, each) => sum + each, 0));
      asked += requests.length;
      for (const [i, verdict] of verdicts.entries()) {
        if (verdict.outcome !== 'admitted') continue;
        admitted++;
        await gate.release(SALE, requests[i]!);
      }
    }
    return { us, perSecond: (1000 * asked) / spentMs, admitted, asked };
  };

  const theirs = async (map: SeatMap, taken: ReadonlySet<number>): Promise<Taken> => {
    const json = (seat: number): string => {
      const row = map.rows.findLastIndex(({ first }) => first <= seat);
      return JSON.stringify({
        ...{ id: String(seat), programId: 1, ticketCategoryId: 2, rowCode: row, colCode: seat - map.rows[row]!.first },
        ...{ seatType: 1, price: 680, sellStatus: 1 },
      });
    };
    await eye.del('free', 'locked');
    const jsons = new Map<string, string>();
    for (let seat = 0; seat < map.size; seat++) if (!taken.has(seat)) jsons.set(String(seat), json(seat));
    const fields = [...jsons].flat();
    for (let from = 0; from < fields.length; from += 2000) await eye.hset('free', ...fields.slice(from, from + 2000));
    let [spentMs, admitted, asked] = [0, 0, 0];
    const us: number[] = [];
    const orders = Math.min(calls, jsons.size > 5000 ? 40 : 200);
    for (let order = 0; order < orders; order++) {
      await eye.call('SLOWLOG', 'RESET');
      const startMs = performance.now();
      const ids = (await eye.evalsha(damai.sha, 2, 'free', 'locked', quantityOf(order))) as string[];
      spentMs += performance.now() - startMs;
      us.push(...(await durations(damai.sha)));
      asked++;
      if (ids.length > 0) admitted++;
      for (const id of ids) await eye.hset('free', id, jsons.get(id)!);
    }
    return { us, perSecond: (1000 * asked) / spentMs, admitted, asked };
  };

  const rows: Record<string, unknown>[] = [];
  const ratios: number[] = [];
  let slowest = 0;
  for (const [place, hall] of HALLS.entries()) {
    const map = mapOf(hall);
    for (const fill of FILLS) {
      const order = shuffled(map.size);
      const taken = order.slice(0, Math.round(fill * map.size));
      const free = order.slice(taken.length);
      await server.clear();
      await eye.script('LOAD', damai.lua);
      await gate.install(snapshot(++epoch, map, taken));
      for (const kind of ['together', 'any', 'named'] as const) {
        const { us, perSecond, admitted, asked } = await ours(kind, free);
        slowest = Math.max(slowest, at(us, 0.99));
        rows.push({
          ...{ hall: hall.name, full: `${100 * fill} %`, kind, 'calls of': ORDERS, 'p50 µs': at(us, 0.5) },
          ...{
            'p99 µs': at(us, 0.99),
            'orders/s': Math.round(perSecond),
            admitted: `${Math.round((100 * admitted) / asked)} %`,
          },
        });
        console.error(JSON.stringify(rows.at(-1)));
        if (kind !== 'together' || place >= BESIDE) continue;
        const beside = await theirs(map, new Set(taken));
        // Per order: a call of theirs is one order.
        const ratio = at(beside.us, 0.5) / (at(us, 0.5) / ORDERS);
        if (map.size === 20_000) ratios.push(ratio);
        rows.push({
          ...{ hall: hall.name, full: `${100 * fill} %`, kind: 'JSON of every seat', 'calls of': 1 },
          ...{ 'p50 µs': at(beside.us, 0.5), 'p99 µs': at(beside.us, 0.99), 'orders/s': Math.round(beside.perSecond) },
          ...{ admitted: `${Math.round((100 * beside.admitted) / beside.asked)} %`, 'times ours': Math.round(ratio) },
        });
        console.error(JSON.stringify(rows.at(-1)));
      }
    }
  }
  const counted = await ours('counted', []);
  rows.push({
    ...{ hall: 'counted item', full: '', kind: 'counted', 'calls of': ORDERS, 'p50 µs': at(counted.us, 0.5) },
    ...{ 'p99 µs': at(counted.us, 0.99), 'orders/s': Math.round(counted.perSecond), admitted: '100 %' },
  });
  // Whatever the hall, its fill and what is asked for: the slowest counts.
  const rates = rows.filter(({ 'calls of': orders, kind }) => orders === ORDERS && kind !== 'counted');
  const seatRate = Math.min(...rates.map((row) => row['orders/s'] as number));
  const targets = [
    { target: 'a call of 64 orders ≤ 2 000 µs p99 of Redis, at every fill', value: slowest, met: slowest <= 2000 },
    {
      target: '≥ 200 × a JSON of every seat, 20 000 seats, at every fill',
      value: Math.round(Math.min(...ratios)),
      met: Math.min(...ratios) >= 200,
    },
    {
      ...{
        target: 'seat orders/s ≥ 0.3 of counted ones, the slowest',
        value: Number((seatRate / counted.perSecond).toFixed(2)),
      },
      met: seatRate / counted.perSecond >= 0.3,
    },
  ];
  report(
    'seats',
    { seats: rows, targets },
    [
      'a network: client and Redis share the machine and its two cores',
      'the ledger, the pipe, HTTP: only the gate decides here',
      'a hall that is filled by orders instead of at random: there rows in front are full and are skipped',
    ],
    { calls },
  );
  process.exit(0);
}
