import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { createLocks, type Locks } from '../../src/locks/index.ts';
import { sleep } from '../support/fault-wait.ts';
import { forget, remember } from '../support/servers/clean-up.ts';
import { type FaultProxy, startProxy } from '../support/servers/proxy.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';
import { type Event, type History, nowUs, type Trouble } from './history.ts';
import type { Fault, LockPlan, Schedule, WorkerPlan } from './schedule.ts';
import type { Assignment } from './worker.ts';

const WORKER = fileURLToPath(new URL('./worker.ts', import.meta.url));
const PREFIX = 'history';
/** After the last fault is healed: everything that waits has an answer by then. */
const END_WITHIN_MS = 14_000;
/** The most by which an operation makes its lease longer; and what a busy machine needs to do anything at all. */
const EXTRA_MS = 300;
/** Of the longest lease that a schedule asks for. */
const MARGIN_MS = 15;
const SLACK_MS = 500;
const BEAT_MS = 5;
const STALL_MS = 30;

/** A process that plays a part, and may play another one later. */
class Player {
  readonly #child: ChildProcess;
  readonly ready: Promise<void>;
  #isOver = false;
  #onEnd: (ended: boolean) => void = () => undefined;
  stopped = false;

  constructor() {
    this.#child = spawn(process.execPath, ['--disable-warning=ExperimentalWarning', WORKER], {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      env: { ...process.env, NODE_OPTIONS: '' },
    });
    const started = { end: async () => this.kill(), endNow: () => this.kill() };
    remember(started);
    this.ready = new Promise((resolve, reject) => {
      this.#child.on('message', (message: { ready?: boolean; done?: number }) => {
        if (message.ready) resolve();
        if (message.done !== undefined) this.#onEnd(true);
      });
      this.#child.on('exit', () => {
        this.#isOver = true;
        forget(started);
        reject(new Error('a process of the history ended early'));
        this.#onEnd(false);
      });
    });
    // It is awaited by whoever takes it; one that nobody takes may end in silence.
    this.ready.catch(() => undefined);
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** Resolves when its part has ended: true in order, false with the process. */
  play(assignment: Assignment): Promise<boolean> {
    return new Promise((resolve) => {
      this.#onEnd = resolve;
      this.#child.send(assignment);
    });
  }

  signal(signal: NodeJS.Signals): void {
    if (!this.#isOver) this.#child.kill(signal);
  }

  kill(): void {
    this.signal('SIGKILL');
  }
}

/** What several histories share: processes that wait for a part, and the Redis of the fence, which nothing happens to. */
export class Stage implements AsyncDisposable {
  readonly #control: Promise<RedisServer> = startRedis();
  #idle: Player[] = [];
  #next = 0;

  /** Starts processes ahead of time. */
  async warm(count: number): Promise<void> {
    while (this.#idle.length < count) this.#idle.push(new Player());
    await Promise.all(this.#idle.map(({ ready }) => ready));
  }

  take(): Player {
    for (;;) {
      const player = this.#idle.pop();
      if (!player) return new Player();
      if (!player.isOver) return player;
    }
  }

  giveBack(player: Player): void {
    if (!player.isOver) this.#idle.push(player);
  }

  async run(schedule: Schedule): Promise<History> {
    const control = await this.#control;
    return await new Performance(this, control, `${PREFIX}${this.#next++}`, schedule).run();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const player of this.#idle) player.kill();
    this.#idle = [];
    await (await this.#control)[Symbol.asyncDispose]();
  }
}

interface Slot {
  readonly proxy: FaultProxy;
  player: Player;
  w: number;
}

/** One schedule, played once. */
class Performance {
  readonly #stage: Stage;
  readonly #control: RedisServer;
  readonly #prefix: string;
  readonly #schedule: Schedule;
  readonly #folder = mkdtempSync(join(tmpdir(), 'doorbuster-history-'));
  readonly #troubles: Trouble[] = [];
  readonly #killed: { w: number; t: number }[] = [];
  readonly #slots: Slot[] = [];
  readonly #parts: { w: number; player: Player; end: Promise<boolean>; ended: boolean }[] = [];
  #redis!: RedisServer;
  #workers = 0;
  /** What is done to Redis is done one after the other. */
  #atRedis: Promise<void> = Promise.resolve();

  constructor(stage: Stage, control: RedisServer, prefix: string, schedule: Schedule) {
    this.#stage = stage;
    this.#control = control;
    this.#prefix = prefix;
    this.#schedule = schedule;
  }

  async run(): Promise<History> {
    const { seed, settings, locks, workers, faults } = this.#schedule;
    this.#redis = await startRedis({ persistence: settings.persistence });
    try {
      for (const _ of workers) {
        const player = this.#stage.take();
        this.#slots.push({ proxy: await startProxy(this.#redis.port), player, w: -1 });
      }
      await Promise.all(this.#slots.map(({ player }) => player.ready));
      const stopBeats = this.#beat();
      const from = nowUs();
      for (const [index, plan] of workers.entries()) this.#begin(this.#slots[index]!, plan);
      await Promise.all(faults.map((fault) => this.#inflict(fault)));
      const hung = await this.#ends();
      const events = this.#read();
      const left = { hung, ...(await this.#lookAround(locks)) };
      stopBeats();
      const fence = await this.#fenceLogs(locks);
      const troubles = [...this.#troubles].sort((one, other) => one.from - other.from);
      return { seed, settings, locks, from, events, troubles, killed: this.#killed, fence, left };
    } finally {
      await Promise.all(this.#slots.map(({ proxy }) => proxy.close()));
      await this.#redis[Symbol.asyncDispose]();
      rmSync(this.#folder, { recursive: true, force: true });
    }
  }

  /** The proxies live here: when we stand still, so does the network. */
  #beat(): () => void {
    let last = nowUs();
    const timer = setInterval(() => {
      const t = nowUs();
      if (t - last > STALL_MS * 1000) this.#troubles.push({ kind: 'network stall', from: last, to: t, worker: null });
      last = t;
    }, BEAT_MS);
    return () => clearInterval(timer);
  }

  #begin(slot: Slot, plan: WorkerPlan): void {
    const w = this.#workers++;
    slot.w = w;
    const { settings, locks } = this.#schedule;
    const assignment: Assignment = {
      w,
      file: this.#fileOf(w),
      redis: `redis://${slot.proxy.host}:${slot.proxy.port}`,
      control: this.#control.url,
      prefix: this.#prefix,
      settings,
      locks,
      plan,
    };
    const part = { w, player: slot.player, end: slot.player.play(assignment), ended: false };
    void part.end.then(() => {
      part.ended = true;
    });
    this.#parts.push(part);
  }

  #fileOf(w: number): string {
    return join(this.#folder, `${w}.jsonl`);
  }

  async #inflict(fault: Fault): Promise<void> {
    await sleep(fault.atMs);
    if ('worker' in fault) await this.#atWorker(fault, this.#slots[fault.worker]!);
    else {
      this.#atRedis = this.#atRedis.then(() => this.#onRedis(fault));
      await this.#atRedis;
    }
  }

  async #during(trouble: Omit<Trouble, 'from' | 'to'>, work: () => Promise<void> | void): Promise<void> {
    const from = nowUs();
    await work();
    this.#troubles.push({ ...trouble, from, to: nowUs() });
  }

  async #atWorker(fault: Extract<Fault, { worker: number }>, slot: Slot): Promise<void> {
    const { player, proxy, w } = slot;
    const { kind } = fault;
    if (kind === 'kill') {
      // Killed already, and the next one is not there yet.
      if (this.#killed.some((each) => each.w === w)) return;
      player.kill();
      this.#killed.push({ w, t: nowUs() });
      if (!fault.next) return;
      slot.player = this.#stage.take();
      await slot.player.ready;
      this.#begin(slot, fault.next);
      return;
    }
    await this.#during({ kind, worker: w }, async () => {
      switch (kind) {
        case 'stop':
          // It may have ended its part, and begun one of another history.
          if (this.#parts.find((part) => part.w === w)!.ended || player.stopped) return;
          player.stopped = true;
          player.signal('SIGSTOP');
          await sleep(fault.forMs);
          player.signal('SIGCONT');
          player.stopped = false;
          return;
        case 'cut':
          proxy.cut();
          return;
        case 'refuse':
          proxy.cut();
          await proxy.refuse(true);
          await sleep(fault.forMs);
          await proxy.refuse(false);
          return;
        case 'freeze':
          proxy.freeze();
          await sleep(fault.forMs);
          proxy.thaw();
          return;
        case 'lose':
          proxy.dropReplies(fault.replies);
          await sleep(200);
          proxy.dropReplies(0);
          return;
        case 'delay':
          proxy.delay(fault.delayMs, fault.way === 'both' ? undefined : fault.way);
          await sleep(fault.forMs);
          proxy.delay(0);
      }
    });
  }

  async #onRedis(fault: Exclude<Fault, { worker: number }>): Promise<void> {
    const redis = this.#redis;
    const { kind } = fault;
    const forgets = kind === 'flush' || (kind === 'redis-restart' && this.#schedule.settings.persistence === 'none');
    await this.#during({ kind, worker: null, ...(forgets ? { forgets } : {}) }, async () => {
      switch (kind) {
        case 'redis-stop':
          await redis.pause();
          await sleep(fault.forMs);
          await redis.resume();
          return;
        case 'redis-pause':
          await redis.clientPause(fault.forMs);
          await sleep(fault.forMs);
          return;
        case 'redis-restart':
          await redis.kill();
          await sleep(fault.forMs);
          await redis.restart();
          return;
        case 'flush':
          await redis.command('FLUSHALL');
      }
    });
  }

  /** The processes that do not end. */
  async #ends(): Promise<number[]> {
    const hung: number[] = [];
    const killed = new Set(this.#killed.map(({ w }) => w));
    const late = AbortSignal.timeout(END_WITHIN_MS);
    const tooLate = new Promise<void>((resolve) => late.addEventListener('abort', () => resolve()));
    for (const part of this.#parts) {
      await Promise.race([part.end, tooLate]);
      if (part.ended && !killed.has(part.w)) this.#stage.giveBack(part.player);
      if (part.ended) continue;
      hung.push(part.w);
      part.player.kill();
    }
    return hung;
  }

  #read(): Event[] {
    const events: Event[] = [];
    for (const { w } of this.#parts) {
      if (!existsSync(this.#fileOf(w))) continue;
      for (const line of readFileSync(this.#fileOf(w), 'utf8').split('\n')) {
        try {
          if (line !== '') events.push(JSON.parse(line) as Event);
        } catch {
          // Killed in the middle of a line.
        }
      }
    }
    return events.sort((one, other) => one.t - other.t);
  }

  /** A newcomer takes each lock, which clears away what dead processes left, and then there is nothing. */
  async #lookAround(locks: readonly LockPlan[]): Promise<Omit<History['left'], 'hung'>> {
    const newcomer = createLocks({ redis: this.#redis.url, prefix: this.#prefix });
    const stuck: string[] = [];
    // What was held when the last thing went wrong is free when its lease has ended.
    const { leaseMs, handOverMs } = this.#schedule.settings;
    const leaseUs = (leaseMs + EXTRA_MS + handOverMs) * 1000;
    const lastUs = Math.max(0, ...this.#killed.map(({ t }) => t), ...this.#troubles.map(({ to }) => to));
    const untilUs = Math.max(nowUs(), lastUs + leaseUs) + SLACK_MS * 1000;
    try {
      // A lease that ran out at its holder a moment ago runs out at Redis a little later: by the margin, and what clocks differ.
      const sinceUs = nowUs() - MARGIN_MS * 1000;
      const ranOut = this.#read().some(({ e, t, ...event }) => {
        return e === 'lost' && t > sinceUs && 'reason' in event && event.reason === 'expired';
      });
      if (ranOut) await sleep(MARGIN_MS);
      // Nobody was killed or cut off: nothing may wait for a newcomer to be cleared away.
      const untidy = lastUs === 0 ? await this.#listed(newcomer) : [];
      await Promise.all(
        locks.map(async (lock) => {
          if (!(await this.#takes(newcomer, lock, untilUs))) stuck.push(lock.name);
        }),
      );
      const listed = [...untidy, ...(await this.#listed(newcomer))];
      const keys = (await this.#redis.command('KEYS', '*')) as string[];
      return { stuck, listed, keys: keys.filter((key) => !/:(clock|gone)$/.test(key)) };
    } finally {
      await newcomer.close();
    }
  }

  async #listed(locks: Locks): Promise<string[]> {
    return (await locks.list()).map(({ kind, name, holders, waiting }) => {
      return `${kind} ${name}: ${holders.length} hold, ${waiting} wait`;
    });
  }

  async #takes(locks: Locks, { kind, name, permits }: LockPlan, untilUs: number): Promise<boolean> {
    do {
      const lock =
        kind === 'semaphore'
          ? locks.semaphore(name, { permits })
          : kind === 'readwrite'
            ? locks.readWrite(name).write
            : locks[kind](name);
      // The whole of a semaphore.
      const grant = await lock.tryAcquire(kind === 'semaphore' ? { permits } : ({} as object));
      if (grant) {
        await grant.release();
        return true;
      }
      await sleep(25);
    } while (nowUs() < untilUs);
    return false;
  }

  async #fenceLogs(locks: readonly LockPlan[]): Promise<Record<string, { token: string; op: string }[]>> {
    const logs: Record<string, { token: string; op: string }[]> = {};
    for (const { name } of locks) {
      const key = `${this.#prefix}:fence:${name}`;
      const lines = (await this.#control.command('LRANGE', key, '0', '-1')) as string[];
      logs[name] = lines.map((line) => {
        const [token = '', op = ''] = line.split(' ');
        return { token, op };
      });
      await this.#control.command('DEL', key);
    }
    return logs;
  }
}
