import { type ChildProcess, spawn } from 'node:child_process';
import { chownSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep, until } from '../fault-wait.ts';
import { forget, remember, type Started } from './clean-up.ts';
import { childrenOf, isGone, isStopped, signal } from './family.ts';
import { programPath } from './program.ts';
import { assertReachable, type User } from './user.ts';

export const HOST = '127.0.0.1';

/**
 * Below the system's range of ephemeral ports: no outgoing connection can take the port of a
 * server that is down for a moment, and a client that tries to reach it cannot connect to itself. 10000 above each
 * is still below that range: a Redis cluster also uses that port.
 */
const PORT_MIN = 12_000;
const PORT_MAX = 21_999;
/**
 * Each worker of a test run has its own part of the range, so that a killed server finds its port free when it restarts.
 * A process without workers uses all of it: a nightly run of histories needs thousands.
 */
const POOL = process.env.VITEST_POOL_ID;
const PARTS_OF_A_RUN = 5;
let parts = POOL === undefined ? 1 : PARTS_OF_A_RUN;
let part = Number(POOL ?? 0) % parts;
const taken = new Set<number>();

/** Lets this process use the part of the range that no worker has: worker numbers begin with 1. */
export function drawPortsBesideWorkers(): void {
  parts = PARTS_OF_A_RUN;
  part = 0;
}

/** A free port, given only once in this process. `above`: these offsets must be free, too. */
export async function freePort(above: readonly number[] = []): Promise<number> {
  for (let tries = 0; tries < 100; tries++) {
    const port = PORT_MIN + Math.floor(((part + Math.random()) / parts) * (PORT_MAX - PORT_MIN + 1));
    if (taken.has(port)) continue;
    const free = await Promise.all([port, ...above.map((offset) => port + offset)].map(isFree));
    if (!free.every(Boolean)) continue;
    taken.add(port);
    return port;
  }
  throw new Error(`no free port from ${PORT_MIN} to ${PORT_MAX}`);
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen(port, HOST, () => server.close(() => resolve(true)));
  });
}

/** The place of a server, which stays the same across restarts. */
export interface Place {
  port: number;
  folder: string;
}

export interface Launch {
  /** For messages. */
  name: string;
  command: string;
  args(place: Place): string[];
  /** Added to our own environment. */
  env?(place: Place): Record<string, string>;
  /** Runs before the first start: writes configuration, creates a database. */
  prepare?(place: Place): Promise<void> | void;
  /** True once it serves; an error means not yet. */
  ready(place: Place): Promise<boolean>;
  readyWithinMs?: number;
  /** The port to use, from freePort; a free one otherwise. */
  port?: number;
  /** Further ports that it uses, as offsets. */
  portsAbove?: number[];
  /** The signal for an orderly end. Default SIGTERM. */
  stopSignal?: NodeJS.Signals;
  /** The user that it runs as, and that its folder belongs to; our own if null. */
  user?: User | null;
  /** True if it serves from child processes: these are paused, resumed and killed with it. */
  forks?: boolean;
  /** Runs after its end: removes what it left outside of its folder. */
  removeTraces?(place: Place): void;
}

const READY_WITHIN_MS = 10_000;
const STOP_WITHIN_MS = 5_000;
const OUTPUT_CHARACTERS_MAX = 65_536;
const PORT_TRIES_MAX = 3;

interface Running {
  child: ChildProcess;
  exited: Promise<void>;
  isOver: boolean;
  /** While its child processes are paused: kills them if we die. */
  guard?: ChildProcess;
}

/** A private server in its own process: on 127.0.0.1, on a free port, in a temporary folder. */
export class ServerProcess implements AsyncDisposable {
  readonly host = HOST;
  readonly folder: string;
  readonly #launch: Launch;
  readonly #started: Started;
  #port: number;
  #prepared = false;
  #running: Running | null = null;
  #output = '';

  /** Starts nothing yet: call start. */
  constructor(launch: Launch) {
    this.#launch = launch;
    this.#port = launch.port ?? 0;
    this.folder = mkdtempSync(join(tmpdir(), `doorbuster-${launch.name}-`));
    this.#started = { end: () => this.#end(), endNow: () => this.#endNow() };
    remember(this.#started);
    if (launch.user) {
      chownSync(this.folder, launch.user.uid, launch.user.gid);
      assertReachable(this.folder, launch.user);
    }
  }

  get port(): number {
    return this.#port;
  }

  /** Throws if it does not run: its pid may belong to another process by then. */
  get pid(): number {
    if (!this.running) throw new Error(`${this.#launch.name} is not running`);
    return this.#running!.child.pid!;
  }

  /** True while its process exists, be it paused or not. */
  get running(): boolean {
    return this.#running !== null && !this.#running.isOver;
  }

  /** The end of what it has printed. */
  output(): string {
    return this.#output;
  }

  /** Resolves when it serves. */
  async start(): Promise<void> {
    for (let tries = 1; ; tries++) {
      const chosen = this.#port === 0;
      if (chosen) this.#port = await freePort(this.#launch.portsAbove);
      if (!this.#prepared) await this.#launch.prepare?.({ port: this.#port, folder: this.folder });
      this.#prepared = true;
      try {
        return await this.#spawn();
      } catch (error) {
        // Another process may have taken the port since we checked: only then try again.
        const busy = /address already in use|eaddrinuse/i.test(this.#output);
        if (!chosen || !busy || tries === PORT_TRIES_MAX) throw error;
        this.#port = 0;
        this.#prepared = false;
      }
    }
  }

  /** SIGSTOP: connections stay open without answers. Resolves when it has stopped. */
  async pause(): Promise<void> {
    const { pid } = this;
    await this.#halt(pid);
    if (!this.#launch.forks) return;
    // A stopped process starts no more children.
    const children = childrenOf(pid);
    await Promise.all(children.map((child) => this.#halt(child)));
    this.#running!.guard ??= guard([pid, ...children]);
  }

  /** SIGCONT. Does nothing if it is not paused. */
  async resume(): Promise<void> {
    const { pid } = this;
    this.#dismissGuard();
    if (this.#launch.forks) for (const child of childrenOf(pid)) signal(child, 'SIGCONT');
    process.kill(pid, 'SIGCONT');
  }

  /** SIGKILL, paused or not. Resolves when it is gone; at once if it is gone already. */
  async kill(): Promise<void> {
    if (!this.running) return;
    const { child, exited } = this.#running!;
    // A stopped process starts no more children, so that none can escape.
    if (this.#launch.forks) await this.#halt(child.pid!);
    const children = this.#killNow();
    await exited;
    // They hold its shared memory: it could not start again before they are gone.
    await until(`${this.#launch.name} is gone`, 5_000, () => children.every(isGone));
  }

  /** Ends it in order, paused or not, and with SIGKILL if it takes too long. */
  async stop(): Promise<void> {
    if (!this.running) return;
    const { child, exited } = this.#running!;
    // A stopped process would handle the signal only later.
    await this.resume();
    child.kill(this.#launch.stopSignal ?? 'SIGTERM');
    const late = setTimeout(() => this.#killNow(), STOP_WITHIN_MS);
    await exited;
    clearTimeout(late);
  }

  /** Starts it again, on the same port and in the same folder; kills it first if it runs. */
  async restart(): Promise<void> {
    await this.kill();
    await this.#spawn();
  }

  /** Kills it and removes its folder. */
  async [Symbol.asyncDispose](): Promise<void> {
    forget(this.#started);
    await this.#end();
  }

  async #spawn(): Promise<void> {
    const { name, command, args, env, user, ready, readyWithinMs = READY_WITHIN_MS } = this.#launch;
    const place = { port: this.#port, folder: this.folder };
    const [program, ...rest] = [...dieWithUs(), command, ...args(place)];
    const child = spawn(program!, rest, {
      cwd: this.folder,
      env: { ...process.env, ...env?.(place) },
      stdio: ['ignore', 'pipe', 'pipe'],
      ...(user && { uid: user.uid, gid: user.gid }),
    });
    this.#output = '';
    const look = (chunk: Buffer): void => {
      this.#output = (this.#output + chunk).slice(-OUTPUT_CHARACTERS_MAX);
    };
    child.stdout!.on('data', look);
    child.stderr!.on('data', look);
    // Not 'close', because children of the server also hold its output open.
    const { promise: exited, resolve: hasExited } = Promise.withResolvers<void>();
    const running: Running = { child, exited, isOver: false };
    const over = (error?: Error): void => {
      if (error) this.#output += String(error);
      running.isOver = true;
      hasExited();
    };
    child.once('exit', () => over());
    child.once('error', (error) => {
      if (child.pid === undefined) over(error);
    });
    this.#running = running;

    const lastMs = performance.now() + readyWithinMs;
    while (!(await ready(place).catch(() => false)) || running.isOver) {
      const late = performance.now() > lastMs;
      if (late) await this.kill();
      if (running.isOver) {
        // 'exit' comes before the last output.
        await sleep(50);
        throw new Error(`${name} ${late ? `not ready within ${readyWithinMs} ms` : 'ended'}: ${this.#output}`);
      }
      await sleep(5);
    }
  }

  async #end(): Promise<void> {
    await this.kill();
    this.#removeFolder();
  }

  #endNow(): void {
    if (this.running) {
      if (this.#launch.forks) this.#running!.child.kill('SIGSTOP');
      this.#killNow();
    }
    this.#removeFolder();
  }

  /** Returns the child processes that it has killed. */
  #killNow(): number[] {
    const { child } = this.#running!;
    // Before them: its numbers may be somebody else's afterwards.
    this.#dismissGuard();
    const children = this.#launch.forks ? childrenOf(child.pid!) : [];
    for (const one of children) signal(one, 'SIGKILL');
    child.kill('SIGKILL');
    return children;
  }

  async #halt(pid: number): Promise<void> {
    signal(pid, 'SIGSTOP');
    // The signal is only on its way: a server on another core may answer one more request meanwhile.
    if (process.platform !== 'linux') return;
    await until(`${this.#launch.name} stops`, 2_000, () => isStopped(pid) || isGone(pid));
  }

  #dismissGuard(): void {
    this.#running?.guard?.kill('SIGKILL');
    delete this.#running?.guard;
  }

  #removeFolder(): void {
    try {
      this.#launch.removeTraces?.({ port: this.#port, folder: this.folder });
      rmSync(this.folder, { recursive: true, force: true, maxRetries: 2 });
    } catch {
      // A server that is just dying may have written once more.
    }
  }
}

/** The kernel kills the server when we die: even of SIGKILL, when no hook of ours runs. */
function dieWithUs(): string[] {
  const setpriv = process.platform === 'linux' ? programPath('setpriv') : null;
  return setpriv === null ? [] : [setpriv, '--pdeathsig', 'KILL', '--'];
}

/**
 * Kills these, paused processes all of them, when we die. The kernel kills a server with us, but its children are left to
 * notice that by themselves, and who is paused notices nothing.
 */
function guard(pids: readonly number[]): ChildProcess {
  // It reads until we are gone: the other end of the pipe closes then, whatever we die of.
  const script = 'trap "" INT TERM HUP; read -r _; kill -KILL "$@"';
  const child = spawn('sh', ['-c', script, 'sh', ...pids.map(String)], { stdio: ['pipe', 'ignore', 'ignore'] });
  child.unref();
  (child.stdin as Socket).unref();
  return child;
}
