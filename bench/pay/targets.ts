import { inProcess, inRedis, type PayLock } from '../baselines/pay-locks.ts';
import { median } from '../support.ts';
import type { PayFloors } from './floors.ts';
import { Orders } from './orders.ts';
import { type Ours, openOurs } from './ours.ts';
import { STORES, type Store } from './stores.ts';

/** Concurrent callers: a rush. One transaction each is no faster with fewer (256 were tried). */
const CALLERS = 1024;
const CALLERS_FEW = 64;
/** Unpaid orders per second of measuring; a target that pays all of them ends early. */
const FILL_FAST = 30_000;
const FILL_SLOW = 8000;
const BATCHES_TRIED: Way[] = [256, 512].flatMap((size) => [1, 2, 4].map((writers) => ({ size, writers })));
const BATCHES_TRIED_QUICK: Way[] = [256, 512].map((size) => ({ size, writers: 4 }));

/** Concurrent callers, and orders per call. */
interface Way {
  readonly writers: number;
  readonly size: number;
}

/** One way to pay orders. */
export interface Target extends Way {
  readonly what: string;
  readonly setting: string;
  readonly fast: boolean;
  pay(orderIds: string[]): Promise<unknown>;
  /** Counts how moves were grouped. */
  readonly moved?: Ours['moved'];
}

export interface Figure {
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly nodeUs: number;
  readonly databaseUs: number;
  /** Moves per transaction. */
  readonly together: number | null;
}

/** What is compared on one database. */
export interface Plan {
  readonly targets: Target[];
  /** Ours, and the baseline (one transaction each, under a lock) that it is judged by. */
  readonly judged: [ours: Target, base: Target][];
  readonly beside: [ours: Target, other: Target][];
}

/** One database, and every way to pay orders there. */
export class Bench {
  readonly store: Store;
  readonly #orders: Orders;
  readonly #redis: string | null;
  readonly #closing: (() => unknown)[] = [];

  /** `redis`: the Redis for locks that several processes share; null: a shop of one process needs none. */
  static async open(name: string, redis: string | null): Promise<Bench> {
    const store = await STORES[name]!();
    return new Bench(store, await Orders.open(store.ledger, store.ask), redis);
  }

  private constructor(store: Store, orders: Orders, redis: string | null) {
    this.store = store;
    this.#orders = orders;
    this.#redis = redis;
  }

  async close(): Promise<void> {
    for (const close of this.#closing) await close();
    await this.store.end();
  }

  /** Pays for `durationMs`, then checks that every payment is stored exactly once. */
  async measure(target: Target, durationMs: number): Promise<Figure> {
    const orders = this.#orders;
    await orders.fill(((target.fast ? FILL_FAST : FILL_SLOW) * durationMs) / 1000 + target.writers * target.size);
    const tookMs: number[] = [];
    const moved = { moves: 0, commits: 0, ...target.moved };
    const databaseMs = this.store.cpuMs();
    const cpu = process.cpuUsage();
    const startedMs = performance.now();
    const writer = async (): Promise<void> => {
      while (orders.waiting > 0 && performance.now() - startedMs < durationMs) {
        const some = orders.take(target.size);
        const beganMs = performance.now();
        await target.pay(some);
        const endedMs = performance.now();
        for (let each = 0; each < some.length; each++) tookMs.push(endedMs - beganMs);
      }
    };
    await Promise.all(Array.from({ length: target.writers }, writer));
    const seconds = (performance.now() - startedMs) / 1000;
    const { user, system } = process.cpuUsage(cpu);
    const databaseUs = (this.store.cpuMs() - databaseMs) * 1000;
    await orders.mustAgree(target.what);
    tookMs.sort((a, b) => a - b);
    const paid = tookMs.length;
    const commits = (target.moved?.commits ?? 0) - moved.commits;
    return {
      perSecond: paid / seconds,
      p50Ms: tookMs[Math.floor(paid / 2)]!,
      p99Ms: tookMs[Math.floor(paid * 0.99)]!,
      nodeUs: (user + system) / paid,
      databaseUs: databaseUs / paid,
      together: commits === 0 ? null : (target.moved!.moves - moved.moves) / commits,
    };
  }

  /** Finds the best settings of the baselines; this also warms everything up. */
  async plan(tryMs: number, quick: boolean): Promise<Plan> {
    await this.#orders.fill(FILL_SLOW);
    await this.store.analyse();
    const { pools } = this.store;
    const floors: { floors: PayFloors; setting: string }[] = [];
    for (const poolMax of pools) {
      const setting = poolMax === 1 ? '' : `, ${poolMax} connections`;
      floors.push({ floors: await this.store.floors(poolMax), setting });
    }
    this.#closing.push(...floors.map((one) => () => one.floors.end()));
    const largest = floors.at(-1)!;

    const own = inProcess();
    const bestEach = (what: string, pay: (floors: PayFloors) => (orderId: string) => Promise<void>): Promise<Target> =>
      this.#best(
        floors.map((one) => each(what, one.setting, pay(one.floors))),
        tryMs,
      );
    const locked = await bestEach('one transaction each, order locked in process', (some) => locking(some.payOne, own));
    const inTwo = await bestEach('attempt and order, each alone, order locked in process', (some) =>
      locking(some.payInTwo, own),
    );
    const blind = await bestEach('one transaction each, no lock, no SELECT', (some) => some.payOneBlindly);
    const ways = quick ? BATCHES_TRIED_QUICK : BATCHES_TRIED;
    const tried = pools.length === 1 ? ways.map(({ size }) => ({ size, writers: 1 })) : ways;
    const inBatches = (what: string, pay: PayFloors['payAll']): Promise<Target> =>
      this.#best(
        tried.map((way) => ({ what, setting: `${way.size} × ${way.writers} at a time`, ...way, fast: true, pay })),
        tryMs,
      );
    const rowsOfPay = await inBatches('bare rows of pay, in batches', largest.floors.payAll);
    const rowsOfConfirm = await inBatches('bare rows of confirm, in batches', largest.floors.confirmAll);

    const ours = this.#ours(null);
    const pay = grouped('pay, locks in process', ours, 'pay');
    const confirm = grouped('confirm, locks in process', ours, 'confirm');
    const plan: Plan = {
      targets: [locked, inTwo, blind, rowsOfPay, rowsOfConfirm, pay, confirm],
      judged: [
        [confirm, locked],
        [pay, inTwo],
        [pay, locked],
      ],
      beside: [
        [pay, blind],
        [confirm, blind],
        [pay, rowsOfPay],
        [confirm, rowsOfConfirm],
      ],
    };
    if (!quick) {
      const [inTwoFew, payFew, lockedFew, confirmFew] = [few(inTwo), few(pay), few(locked), few(confirm)];
      plan.targets.push(inTwoFew, payFew, lockedFew, confirmFew);
      plan.beside.push([confirmFew, lockedFew], [payFew, inTwoFew], [payFew, lockedFew]);
    }
    if (this.#redis !== null) {
      const redis = await inRedis(this.#redis);
      this.#closing.push(() => redis.end());
      const lockedShared = await bestEach('one transaction each, order locked in Redis', (some) =>
        locking(some.payOne, redis),
      );
      const inTwoShared = await bestEach('attempt and order, each alone, order locked in Redis', (some) =>
        locking(some.payInTwo, redis),
      );
      const itemLocked = await bestEach('one transaction each, item locked in process', (some) =>
        locking(some.payOne, own, 'item'),
      );
      const oursShared = this.#ours(this.#redis);
      const payShared = grouped('pay, locks in Redis', oursShared, 'pay');
      const confirmShared = grouped('confirm, locks in Redis', oursShared, 'confirm');
      plan.targets.push(lockedShared, inTwoShared, itemLocked, payShared, confirmShared);
      plan.judged.push([confirmShared, lockedShared], [payShared, inTwoShared], [payShared, lockedShared]);
      plan.judged.push([pay, itemLocked]);
    }
    for (const target of plan.targets) if (target.moved !== undefined) await this.measure(target, tryMs);
    await this.store.analyse();
    return plan;
  }

  #ours(redis: string | null): Ours {
    const ours = openOurs(this.store.ledger, redis);
    this.#closing.push(() => ours.end());
    return ours;
  }

  async #best(tried: readonly Target[], tryMs: number): Promise<Target> {
    const figures = new Map<Target, number[]>(tried.map((target) => [target, []]));
    // Each three times, in turn: a single try is mostly luck.
    for (let times = 0; times < 3; times++) {
      for (const target of tried) figures.get(target)!.push((await this.measure(target, tryMs)).perSecond);
    }
    const middle = (target: Target): number => median(figures.get(target)!);
    for (const one of tried) console.error(`  ${one.what}, ${one.setting}: ${Math.round(middle(one))}/s`);
    return tried.reduce((a, b) => (middle(b) > middle(a) ? b : a));
  }
}

function each(what: string, setting: string, pay: (orderId: string) => Promise<void>): Target {
  const callers = `${CALLERS} callers${setting}`;
  return { what, setting: callers, writers: CALLERS, size: 1, fast: false, pay: ([orderId]) => pay(orderId!) };
}

/**
 * The ticket document (docs/concepts/sources.md, 002) locks the item (票档). Locking the order is faster, because orders of one
 * item then only contend for its row.
 */
function locking(pay: (orderId: string) => Promise<void>, lock: PayLock, what: 'order' | 'item' = 'order') {
  return (orderId: string): Promise<void> =>
    lock.run(what === 'order' ? `order:${orderId}` : 'item', () => pay(orderId));
}

function grouped(what: string, ours: Ours, how: 'pay' | 'confirm'): Target {
  return { ...each(what, '', ours[how]), fast: true, moved: ours.moved };
}

function few(target: Target): Target {
  const setting = target.setting.replace(`${target.writers} callers`, `${CALLERS_FEW} callers`);
  return { ...target, setting, writers: CALLERS_FEW };
}
