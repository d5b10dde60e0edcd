import { cpSync, existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync, type StatementSync } from 'node:sqlite';
import { expect } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { DoorbusterError } from '../../src/base/errors.ts';
import { type Logger, silentLog } from '../../src/base/logger.ts';
import { seededRandom } from '../../src/base/random.ts';
import type { Runtime } from '../../src/base/runtime.ts';
import type { Timers } from '../../src/base/timers.ts';
import { EmbeddedShop } from '../../src/engine/embedded.ts';
import type { Gate } from '../../src/gate/port.ts';
import type { Rebuilder } from '../../src/gate/rebuild.ts';
import { LEDGER_FILE } from '../../src/ledger/drivers/sqlite/folder.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import { actor } from '../../src/model/actor.ts';
import type { Point, Reached } from '../../src/orders/life/points.ts';
import { settled, T0 } from '../contract/manual.ts';
import { Bank, type BankOptions } from './life-bank.ts';
import { judgeLife } from './life-judge.ts';
import { judgeMoney, unfinished } from './life-money.ts';
import { newSale } from './new-sale.ts';
import { temporary } from './sqlite-ledger.ts';

export const PRICE = { amount: 8000, currency: 'CNY' };
export const BY = actor('system', 'test');

interface Timer {
  atMs: number;
  readonly everyMs: number | null;
  readonly run: () => void;
}

/** The timers of one process. When it has died none of them runs any more. */
class ProcessTimers implements Timers {
  alive = true;
  readonly #clock: ManualClock;
  readonly #timers = new Set<Timer>();
  #turns = 0;

  constructor(clock: ManualClock) {
    this.#clock = clock;
  }

  after(ms: number, run: () => void): () => void {
    return this.#add({ atMs: this.#clock.monotonic() + ms, everyMs: null, run });
  }

  every(ms: number, run: () => void): () => void {
    return this.#add({ atMs: this.#clock.monotonic() + ms, everyMs: ms, run });
  }

  nextTurn(run: () => void): void {
    this.#turns++;
    setImmediate(() => {
      this.#turns--;
      if (this.alive) run();
    });
  }

  /** Until nothing happens any more without time's passing. */
  async quiet(): Promise<void> {
    do await settled();
    while (this.#turns > 0);
  }

  /** Time passes, and whatever is due happens at its time. */
  async advance(ms: number): Promise<void> {
    const untilMs = this.#clock.monotonic() + ms;
    for (;;) {
      await this.quiet();
      const due = this.#due(untilMs);
      if (due === undefined) break;
      this.#clock.advance(Math.max(due.atMs - this.#clock.monotonic(), 0));
      this.#fire(due);
    }
    this.#clock.advance(Math.max(untilMs - this.#clock.monotonic(), 0));
    await this.quiet();
  }

  /** Time has passed, and nobody had the processor meanwhile: what is due happens late, once. */
  async jump(ms: number): Promise<void> {
    this.#clock.advance(ms);
    const nowMs = this.#clock.monotonic();
    const late = [...this.#timers].filter(({ atMs }) => atMs <= nowMs).sort((a, b) => a.atMs - b.atMs);
    for (const timer of late) {
      if (!this.#timers.has(timer)) continue;
      this.#fire(timer);
      await this.quiet();
    }
    await this.quiet();
  }

  #due(untilMs: number): Timer | undefined {
    let first: Timer | undefined;
    if (!this.alive) return first;
    for (const timer of this.#timers) {
      if (timer.atMs <= untilMs && (first === undefined || timer.atMs < first.atMs)) first = timer;
    }
    return first;
  }

  #fire(timer: Timer): void {
    if (timer.everyMs === null) this.#timers.delete(timer);
    else timer.atMs = this.#clock.monotonic() + timer.everyMs;
    if (this.alive) timer.run();
  }

  #add(timer: Timer): () => void {
    this.#timers.add(timer);
    return () => void this.#timers.delete(timer);
  }
}

interface Process {
  readonly timers: ProcessTimers;
  readonly ledger: SqliteLedger;
  readonly shop: EmbeddedShop;
  readonly folder: string;
}

export interface WorldOptions extends BankOptions {
  readonly log?: Logger;
  readonly stock: number;
  readonly perBuyer: number;
  readonly payWithinSeconds: number;
}

/**
 * An embedded shop on a real ledger whose time, bank and death are the test's. A crash leaves the files as they are at
 * that instant; what the dead process still had in mind reaches neither ledger nor bank. With the same program the same
 * happens, turn for turn.
 */
export class LifeWorld {
  readonly clock = new ManualClock(T0);
  readonly bank: Bank;
  saleId = '';
  itemId = '';
  /** The next time that a flow comes to this point, the process dies there. */
  dieAt: Point | null = null;
  /** How often each point was reached. */
  readonly reached = new Map<Point, number>();
  crashes = 0;
  readonly #log: Logger;
  #process!: Process;
  /** What the process that died has left; it must be opened again. */
  #image: string | null = null;
  #reading: { folder: string; db: DatabaseSync; queries: Map<string, StatementSync> } | null = null;
  readonly faults: string[] = [];

  static async open(options: WorldOptions): Promise<LifeWorld> {
    const world = new LifeWorld(options);
    await world.#start(temporary());
    const { stock, perBuyer, payWithinSeconds } = options;
    const items = [{ code: 'voucher', name: 'Voucher', price: PRICE, stock }];
    const sale = newSale({ opensAtMs: T0, closesAtMs: T0 + 1e10, perBuyer, payWithinSeconds, items });
    const change = await world.until(world.shop.createSale(sale, { by: actor('admin', 'admin'), keyed: null }));
    if (change.outcome !== 'changed') throw new Error(`no sale: ${change.outcome}`);
    world.saleId = change.sale.id;
    world.itemId = change.sale.items[0]!.id;
    return world;
  }

  /** What another process has left in this folder, at this time; the folder is ours from now on. */
  static async on(folder: string, nowMs: number, bank: BankOptions): Promise<LifeWorld> {
    const world = new LifeWorld(bank);
    world.clock.advance(nowMs - T0);
    await world.#start(folder);
    const [row] = world.rows('SELECT CAST(id AS TEXT) AS id, CAST(sale_id AS TEXT) AS sale FROM items');
    world.saleId = row!.sale as string;
    world.itemId = row!.id as string;
    return world;
  }

  private constructor(options: BankOptions & { readonly log?: Logger }) {
    this.bank = new Bank(options);
    this.#log = options.log ?? silentLog();
  }

  get shop(): EmbeddedShop {
    return this.#process.shop;
  }

  get ledger(): SqliteLedger {
    return this.#process.ledger;
  }

  get gate(): Gate {
    return (this.shop as unknown as { gate: Gate }).gate;
  }

  /** The gate is taken away and built anew from the ledger, with whatever is under way. */
  rebuild(): void {
    void (this.shop as unknown as { rebuilder: Rebuilder }).rebuilder.rebuild(this.saleId);
  }

  get dead(): boolean {
    return this.#image !== null;
  }

  async #start(folder: string): Promise<void> {
    const timers = new ProcessTimers(this.clock);
    const runtime: Runtime = { clock: this.clock, timers, random: seededRandom(this.crashes + 1), log: this.#log };
    const ledger = SqliteLedger.open(folder, runtime);
    const payments = { sandbox: false, providers: [this.bank.provider(() => timers.alive)] };
    const reached: Reached = (at) => {
      if (!timers.alive) return;
      // No sale has seats here: no order is moved.
      const point = at as Point;
      this.reached.set(point, (this.reached.get(point) ?? 0) + 1);
      if (this.dieAt === point) this.crash();
    };
    const opening = EmbeddedShop.on(ledger, runtime, { payments, reached });
    this.#process = { timers, ledger, shop: await opening, folder };
  }

  /** kill -9, here and now. */
  crash(): void {
    if (this.#image !== null) return;
    this.crashes++;
    this.dieAt = null;
    const { timers, folder } = this.#process;
    const image = temporary();
    for (const suffix of ['', '-wal']) {
      const file = join(folder, LEDGER_FILE + suffix);
      if (existsSync(file)) cpSync(file, join(image, LEDGER_FILE + suffix));
    }
    timers.alive = false;
    this.#image = image;
  }

  /** A new process on what the dead one has left; does nothing while it lives. */
  async reopen(): Promise<void> {
    if (this.#image === null) return;
    const { ledger, folder } = this.#process;
    this.#stopReading();
    await ledger.close();
    rmSync(folder, { recursive: true, force: true });
    const image = this.#image;
    this.#image = null;
    // It takes its time to start again.
    this.clock.advance(1);
    await this.#start(image);
  }

  /** Begins something, and does not wait for it. What it is told is judged, unless the process has died by then. */
  begin<T>(what: string, work: Promise<T>, judge: (answer: T) => unknown = () => undefined): void {
    const { timers } = this.#process;
    const done = work.then(
      (answer) => (timers.alive ? judge(answer) : undefined),
      (error: unknown) => {
        if (!timers.alive || error instanceof DoorbusterError) return;
        this.faults.push(`${what}: ${error instanceof Error ? error.stack : String(error)}`);
      },
    );
    done.catch((error: unknown) => void this.faults.push(`${what}: ${(error as Error).message}`));
  }

  /** What a promise gives; if it takes time, time passes. */
  async until<T>(work: Promise<T>): Promise<T> {
    let done = false;
    const ended = (): void => {
      done = true;
    };
    work.then(ended, ended);
    await this.quiet();
    for (let waits = 0; !done && waits < 600; waits++) await this.advance(100);
    if (!done) throw new Error('a promise hangs: a minute went by, and nothing can bring it about any more');
    return await work;
  }

  async turns(turns: number): Promise<void> {
    for (let turn = 0; turn < turns; turn++) await settled();
  }

  quiet(): Promise<void> {
    return this.#process.timers.quiet();
  }

  advance(ms: number): Promise<void> {
    return this.#process.timers.advance(ms);
  }

  jump(ms: number): Promise<void> {
    return this.#process.timers.jump(ms);
  }

  /** Reads the tables behind the ledger's back. */
  rows(sql: string): Record<string, unknown>[] {
    const folder = this.#image ?? this.#process.folder;
    if (this.#reading?.folder !== folder) {
      this.#stopReading();
      this.#reading = {
        folder,
        db: new DatabaseSync(join(folder, LEDGER_FILE), { readOnly: true }),
        queries: new Map(),
      };
    }
    const { db, queries } = this.#reading;
    const query = queries.get(sql) ?? db.prepare(sql);
    query.setReadBigInts(true);
    queries.set(sql, query);
    return query.all().map((row) => Object.fromEntries(Object.entries(row).map(([name, cell]) => [name, plain(cell)])));
  }

  #stopReading(): void {
    this.#reading?.db.close();
    this.#reading = null;
  }

  /** The bank is well, all that it has to tell is told, time passes: until nothing is left to be done. */
  async settle({ reversed = false, tells = true } = {}): Promise<void> {
    this.dieAt = null;
    await this.reopen();
    this.bank.mood = 'well';
    const told = new Set<string>();
    for (let round = 0; round < 60; round++) {
      const untold = this.bank.news.filter(({ id }) => tells && !told.has(id));
      for (const news of reversed ? untold.reverse() : untold) {
        // One that is not taken in now is told again.
        const taken = await this.until(
          this.shop.paymentNews(news).then(
            () => true,
            () => false,
          ),
        );
        if (taken) told.add(news.id);
      }
      await this.jump(20_000);
      await this.advance(600);
      if ((!tells || this.bank.news.length === told.size) && (await this.#unfinished()).length === 0) return;
    }
    expect(await this.#unfinished(), 'what does not settle by itself').toEqual([]);
    expect(told.size, 'news that were taken in').toBe(this.bank.news.length);
  }

  #unfinished(): Promise<unknown[]> {
    return unfinished((sql) => this.rows(sql));
  }

  /** P1, P2, P4, P6, P9 of what stands in the ledger now, whatever is under way. */
  async judge(): Promise<void> {
    expect(this.faults).toEqual([]);
    await judgeLife((sql) => this.rows(sql), { claims: false });
  }

  /** When all is settled: units, money and counts agree between gate, ledger and bank, to the cent. */
  async judgeSettled(): Promise<void> {
    while (await this.ledger.maintain(1000));
    await judgeLife((sql) => this.rows(sql), { claims: true });
    const [item] = (await this.ledger.getSale(this.saleId))!.items;
    const { total, reserved, sold } = item!;
    const [view] = (await this.gate.view(this.saleId))!;
    expect(view, 'P4, P9: the gate has what the ledger has').toMatchObject({
      total,
      free: total - reserved - sold,
      queued: 0,
      held: reserved + sold,
      house: 0,
    });
    const sale = await this.shop.getSaleNow(this.saleId);
    expect(sale!.items[0], 'P9').toMatchObject({ total, free: total - reserved - sold, queued: 0, reserved, sold });
    await judgeMoney((sql) => this.rows(sql), this.bank);
    expect(
      this.rows(
        `SELECT CAST(o.id AS TEXT) AS id, o.version, count(a.id) AS moves FROM orders o LEFT JOIN audit a
           ON a.subject = 'order:' || o.id AND a.action LIKE 'order.%' AND a.action <> 'order.place'
         GROUP BY o.id HAVING count(a.id) <> o.version - 1`,
      ),
      'each move stands in the audit, once',
    ).toEqual([]);
    expect(
      this.rows(
        `SELECT CAST(o.id AS TEXT) AS id, count(a.id) AS placed FROM orders o LEFT JOIN audit a
           ON a.subject = 'order:' || o.id AND a.action = 'order.place' AND a.actor = 'system:sweeper'
         WHERE o.revives IS NOT NULL GROUP BY o.id HAVING count(a.id) <> 1`,
      ),
      'each order that the shop itself placed stands in the audit, once',
    ).toEqual([]);
    expect(
      this.rows(
        `SELECT CAST(o.id AS TEXT) AS id, e.status FROM orders o LEFT JOIN orders e ON e.id = o.revives
         WHERE o.revives IS NOT NULL AND (e.status IS NULL OR e.status <> 'expired' OR e.buyer <> o.buyer)`,
      ),
      'P6: what is revived had expired',
    ).toEqual([]);
    expect(this.faults).toEqual([]);
  }

  async close(): Promise<void> {
    const { timers, ledger, folder } = this.#process;
    timers.alive = false;
    this.#stopReading();
    await ledger.close();
    rmSync(folder, { recursive: true, force: true });
    if (this.#image !== null) rmSync(this.#image, { recursive: true, force: true });
  }
}

/** Ids are longer than numbers are. */
function plain(cell: unknown): unknown {
  if (typeof cell !== 'bigint') return cell;
  return Number.isSafeInteger(Number(cell)) ? Number(cell) : String(cell);
}
