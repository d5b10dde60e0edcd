/**
 * A schedule of a history: which processes do what with which locks, and what goes wrong when. All of it is drawn from one
 * seed, so that a seed replays the same schedule; how the processes then meet is up to the machine.
 */

export type Kind = 'mutex' | 'fair' | 'readwrite' | 'semaphore';

export interface LockPlan {
  readonly name: string;
  readonly kind: Kind;
  /** The size of a semaphore; 1 for the others. */
  readonly permits: number;
}

export interface Op {
  /** Unique in the schedule. */
  readonly id: string;
  /** One name; several for a multi-lock (of mutexes). */
  readonly locks: readonly string[];
  readonly mode: 'read' | 'write';
  readonly permits: number;
  readonly thinkMs: number;
  /** tryAcquire. */
  readonly tries: boolean;
  /** How long it waits; null: for as long as it takes. */
  readonly waitMs: number | null;
  /** Aborts the waiting after so long. */
  readonly abortMs: number | null;
  /** A fixed lease; null: the renewed one of the settings. */
  readonly leaseMs: number | null;
  readonly holdMs: number;
  /** Between two looks at the grant, each with a fenced write. */
  readonly stepMs: number;
  /** Enters again under its own grant. */
  readonly reenters: boolean;
  /** Asks for a lease that much longer, half-way. */
  readonly extendMs: number | null;
  /** Half-way: a reader becomes a writer, a writer a reader. */
  readonly changes: boolean;
  /** Stops working when `signal` says so; otherwise it only looks at assertHeld(). */
  readonly obeys: boolean;
  /** Instead of all that: takes the lock from whoever has it. */
  readonly forces: boolean;
}

export interface WorkerPlan {
  /** Calls that go on side by side, each one operation after the other. */
  readonly fibres: readonly (readonly Op[])[];
  /** How far its wall clock is off. */
  readonly skewMs: number;
  /** How fast its monotonic clock runs. */
  readonly rate: number;
}

export type Fault =
  /** SIGSTOP, and SIGCONT after `forMs`. */
  | { readonly kind: 'stop'; readonly atMs: number; readonly forMs: number; readonly worker: number }
  /** SIGKILL; a new process takes its place if there is a plan for one. */
  | { readonly kind: 'kill'; readonly atMs: number; readonly worker: number; readonly next: WorkerPlan | null }
  | { readonly kind: 'cut'; readonly atMs: number; readonly worker: number }
  | { readonly kind: 'refuse'; readonly atMs: number; readonly forMs: number; readonly worker: number }
  | { readonly kind: 'freeze'; readonly atMs: number; readonly forMs: number; readonly worker: number }
  | { readonly kind: 'lose'; readonly atMs: number; readonly worker: number; readonly replies: number }
  | {
      readonly kind: 'delay';
      readonly atMs: number;
      readonly forMs: number;
      readonly worker: number;
      readonly delayMs: number;
      readonly way: 'toServer' | 'toClient' | 'both';
    }
  /** Of Redis: SIGSTOP, CLIENT PAUSE, SIGKILL and a start, FLUSHALL. */
  | { readonly kind: 'redis-stop' | 'redis-pause' | 'redis-restart'; readonly atMs: number; readonly forMs: number }
  | { readonly kind: 'flush'; readonly atMs: number };

export interface Settings {
  readonly leaseMs: number;
  readonly handOverMs: number;
  readonly commandMs: number;
  readonly outageMs: number;
  readonly persistence: 'none' | 'aof';
}

export interface Schedule {
  readonly seed: number;
  readonly settings: Settings;
  readonly locks: readonly LockPlan[];
  readonly workers: readonly WorkerPlan[];
  readonly faults: readonly Fault[];
}

/** How long processes begin new operations. */
const BUSY_MS = 1_100;

/** mulberry32: small, and the same everywhere. */
class Dice {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  fraction(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** A whole number, both ends included. */
  between(least: number, most: number): number {
    return least + Math.floor(this.fraction() * (most - least + 1));
  }

  chance(of: number): boolean {
    return this.fraction() < of;
  }

  pick<T>(from: readonly T[]): T {
    return from[this.between(0, from.length - 1)]!;
  }
}

export function scheduleOf(seed: number): Schedule {
  const dice = new Dice(seed);
  const settings: Settings = {
    leaseMs: dice.pick([250, 400, 600]),
    handOverMs: dice.pick([120, 200, 300]),
    commandMs: dice.pick([120, 250]),
    outageMs: dice.pick([500, 1500]),
    persistence: dice.pick(['none', 'aof']),
  };
  // Many in few processes want one mutex for a moment each.
  const rush = dice.chance(0.2);
  const locks = rush ? RUSH_LOCKS.slice(0, dice.between(1, 2)) : drawLocks(dice);
  const count = dice.between(2, 4);
  // Forcing excuses every overlap of that name around it: most schedules do without.
  const forces = dice.chance(0.15);
  const workers = Array.from({ length: count }, (_, index) =>
    drawWorker(dice, `${index}`, locks, settings, { forces, rush }),
  );
  const faults = drawFaults(dice, workers.length, locks, settings, rush);
  return { seed, settings, locks, workers, faults };
}

const RUSH_LOCKS: readonly LockPlan[] = [
  { name: 'm1', kind: 'mutex', permits: 1 },
  { name: 'm2', kind: 'mutex', permits: 1 },
];

interface Manner {
  readonly forces: boolean;
  readonly rush: boolean;
}

function drawLocks(dice: Dice): LockPlan[] {
  const all: LockPlan[] = [
    { name: 'm1', kind: 'mutex', permits: 1 },
    { name: 'm2', kind: 'mutex', permits: 1 },
    { name: 'f1', kind: 'fair', permits: 1 },
    { name: 'rw1', kind: 'readwrite', permits: 1 },
    { name: 's1', kind: 'semaphore', permits: dice.between(2, 3) },
  ];
  // Few names, much company: one or two of them are left out.
  const without = dice.between(1, 2);
  for (let i = 0; i < without; i++) all.splice(dice.between(0, all.length - 1), 1);
  return all;
}

function drawWorker(
  dice: Dice,
  id: string,
  locks: readonly LockPlan[],
  settings: Settings,
  manner: Manner,
): WorkerPlan {
  const { rush } = manner;
  const fibres = Array.from({ length: rush ? dice.between(3, 6) : dice.between(2, 3) }, (_, fibre) => {
    const ops: Op[] = [];
    let spentMs = 0;
    while (spentMs < BUSY_MS) {
      const op = drawOp(dice, `${id}.${fibre}.${ops.length}`, locks, settings, manner);
      ops.push(op);
      // Most of the time goes into waiting for others.
      spentMs += op.thinkMs + 2.5 * op.holdMs + (rush ? 25 : 30);
    }
    return ops;
  });
  const skewed = dice.chance(0.4);
  return {
    fibres,
    skewMs: skewed ? dice.pick([-1, 1]) * dice.between(1, 20) * 60_000 : 0,
    rate: skewed ? dice.pick([1, 1.005, 0.995]) : 1,
  };
}

function drawOp(dice: Dice, id: string, locks: readonly LockPlan[], settings: Settings, manner: Manner): Op {
  const { forces, rush } = manner;
  const lock = dice.pick(locks);
  const mutexes = locks.filter(({ kind }) => kind === 'mutex').map(({ name }) => name);
  const multi = lock.kind === 'mutex' && mutexes.length > 1 && dice.chance(rush ? 0.1 : 0.25);
  const reads = lock.kind === 'readwrite' && dice.chance(0.6);
  const fixed = dice.chance(0.25);
  const waits = dice.chance(0.8);
  const leaseMs = fixed ? dice.between(60, settings.leaseMs) : null;
  return {
    id,
    locks: multi ? mutexes : [lock.name],
    mode: reads ? 'read' : 'write',
    permits: lock.kind === 'semaphore' && dice.chance(0.3) ? 2 : 1,
    thinkMs: dice.between(0, rush ? 3 : 40),
    tries: !waits && dice.chance(0.5),
    waitMs: !waits ? 0 : dice.chance(0.5) ? null : dice.between(20, 900),
    abortMs: waits && dice.chance(0.1) ? dice.between(5, 300) : null,
    leaseMs,
    holdMs: dice.chance(rush ? 0.02 : 0.15) ? dice.between(150, 2 * settings.leaseMs) : dice.between(0, rush ? 2 : 60),
    stepMs: dice.between(1, 15),
    reenters: !multi && lock.kind !== 'semaphore' && dice.chance(0.15),
    extendMs: dice.chance(0.1) ? dice.between(0, 300) : null,
    changes: lock.kind === 'readwrite' && dice.chance(0.3),
    obeys: dice.chance(0.5),
    forces: forces && dice.chance(0.05),
  };
}

function drawFaults(
  dice: Dice,
  workers: number,
  locks: readonly LockPlan[],
  settings: Settings,
  rush: boolean,
): Fault[] {
  const faults: Fault[] = [];
  const count = dice.chance(0.08) ? 0 : dice.between(1, 5);
  for (let i = 0; i < count; i++) {
    const atMs = dice.between(50, BUSY_MS);
    const worker = dice.between(0, workers - 1);
    // Around the lease, and around the time for a hand-over: both sides of each.
    const around = dice.chance(0.5) ? settings.leaseMs : settings.handOverMs;
    const forMs = Math.round(around * (0.3 + 1.7 * dice.fraction()));
    const kind = dice.pick([
      ...(['stop', 'stop', 'stop', 'kill', 'kill', 'cut', 'refuse', 'freeze', 'freeze', 'lose', 'lose'] as const),
      ...(['delay', 'delay', 'redis-stop', 'redis-pause', 'redis-restart', 'flush'] as const),
    ]);
    switch (kind) {
      case 'stop':
      case 'refuse':
      case 'freeze':
        faults.push({ kind, atMs, forMs, worker });
        break;
      case 'kill': {
        const next = dice.chance(0.7)
          ? drawWorker(dice, `${worker}k${i}`, locks, settings, { forces: false, rush })
          : null;
        // The rest of the time, not all of it again.
        const short = next && { ...next, fibres: next.fibres.map((ops) => ops.slice(0, Math.ceil(ops.length / 2))) };
        faults.push({ kind, atMs, worker, next: short });
        break;
      }
      case 'cut':
        faults.push({ kind, atMs, worker });
        break;
      case 'lose':
        faults.push({ kind, atMs, worker, replies: dice.between(1, 6) });
        break;
      case 'delay': {
        const way = dice.pick(['toServer', 'toClient', 'both'] as const);
        faults.push({ kind, atMs, forMs, worker, delayMs: dice.between(5, 1.2 * settings.handOverMs), way });
        break;
      }
      case 'flush':
        faults.push({ kind, atMs });
        break;
      default:
        faults.push({ kind, atMs, forMs: kind === 'redis-restart' ? Math.min(forMs, 200) : forMs });
    }
  }
  return faults.sort((one, other) => one.atMs - other.atMs);
}

/** The seed of HISTORY_SEED, or null. */
export function givenSeed(): number | null {
  const given = process.env.HISTORY_SEED;
  return given === undefined || given === '' ? null : Number(given);
}
