/**
 * A process of its own that takes locks, for tests that kill, stop or stall it. Its parent (locks-agents.ts) tells it what
 * to do in messages, each answered once.
 */
import { createLocks, type Grant, type Locks } from '../../src/locks/index.ts';
import { type LockName, lockOf } from './locks-names.ts';
import { exclusiveEntry, fencedWrite } from './locks-probe.ts';

export interface AgentTask {
  readonly id: number;
  readonly op: string;
  readonly args: Record<string, unknown>;
}

export interface AgentAnswer {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: { readonly code: string; readonly message: string; readonly reason?: string };
}

/** How a grant stands, looked at without a turn of the event loop in between. */
export interface Look {
  /** The code and reason that assertHeld() threw, or null. */
  readonly thrown: string | null;
  readonly aborted: boolean;
  readonly held: boolean;
}

const grants = new Map<string, Grant>();
let locks: Locks;
let port: number;

function look(grant: Grant): Look {
  let thrown: string | null = null;
  try {
    grant.assertHeld();
  } catch (error) {
    const { code, reason } = error as { code: string; reason?: string };
    thrown = `${code} ${reason}`;
  }
  return { thrown, aborted: grant.signal.aborted, held: grant.held };
}

/** Runs nothing at all for so long: no timer, no socket. */
function stallMs(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

function grantOf(as: unknown): Grant {
  const grant = grants.get(String(as));
  if (!grant) throw new Error(`there is no grant ${as}`);
  return grant;
}

const OPS: Record<string, (args: never) => Promise<unknown> | unknown> = {
  open(args: { port: number; options: Parameters<typeof createLocks>[0] }) {
    port = args.port;
    locks = createLocks(args.options);
  },
  async acquire({ as, lock, options }: { as: string; lock: LockName; options: object }) {
    const grant = await lockOf(locks, lock).acquire(options);
    grants.set(as, grant);
    return String(grant.token);
  },
  async release({ as }: { as: string }) {
    await grantOf(as).release();
  },
  async upgrade({ as, name }: { as: string; name: string }) {
    grants.set(as, await locks.readWrite(name).upgrade(grantOf(as)));
  },
  look: ({ as }: { as: string }) => look(grantOf(as)),
  /** Many calls that wait for one lock; answered when all of them stand in the queue. */
  async crowd({ lock, count }: { lock: LockName; count: number }) {
    let waiting = 0;
    const all = new Promise<void>((resolve) => {
      locks.on('waiting', ({ name }) => {
        if (lock.endsWith(` ${name}`) && ++waiting === count) resolve();
      });
    });
    for (let i = 0; i < count; i++)
      lockOf(locks, lock)
        .acquire()
        .catch(() => undefined);
    await all;
  },
  /** The event loop stands still for `ms`; then the first thing is a look at the grant. */
  stall({ as, ms }: { as: string; ms: number }): Look {
    const grant = grantOf(as);
    // Made before, as by code that passes it on: not only a signal that is asked for afterwards is aborted.
    const { signal } = grant;
    stallMs(ms);
    const seen = look(grant);
    return { ...seen, aborted: seen.aborted && signal.aborted };
  },
  /** Waits, without a turn of the event loop, until this process was stopped for `gapMs`; then looks and writes. */
  async stopped({ as, gapMs, resource }: { as: string; gapMs: number; resource: string }) {
    const grant = grantOf(as);
    grant.signal.addEventListener('abort', () => undefined);
    const endMs = performance.now() + 20_000;
    for (let lastMs = performance.now(); ; ) {
      stallMs(5);
      const nowMs = performance.now();
      if (nowMs - lastMs > gapMs) break;
      if (nowMs > endMs) throw new Error('was not stopped');
      lastMs = nowMs;
    }
    const seen = look(grant);
    return { ...seen, written: await fencedWrite(port, resource, grant.token, `pid ${process.pid}`) };
  },
  /** Takes several locks at once, again and again, and looks whether it is alone with each of them. How often it was not. */
  async contend({ sets, rounds }: { sets: string[][]; rounds: number }) {
    let crossed = 0;
    for (let round = 0; round < rounds; round++) {
      const names = sets[round % sets.length]!;
      await locks.multi(names).run(async () => {
        const entries = await Promise.all(names.map((name) => exclusiveEntry(port, `alone:${name}`)));
        await new Promise((resolve) => setImmediate(resolve));
        for (const leave of entries) if (!(await leave())) crossed++;
      });
    }
    return crossed;
  },
  /** Reads and writes in turn under a read-write lock, and looks whether a writer is ever in with anybody. */
  async readAndWrite({ name, rounds }: { name: string; rounds: number }) {
    let crossed = 0;
    const lock = locks.readWrite(name);
    for (let round = 0; round < rounds; round++) {
      const shared = (round + process.pid) % 3 !== 0;
      await (shared ? lock.read : lock.write).run(async () => {
        const leave = await exclusiveEntry(port, `alone:${name}`, shared);
        await new Promise((resolve) => setTimeout(resolve, 2));
        if (!(await leave())) crossed++;
      });
    }
    return crossed;
  },
  async close() {
    await locks.close();
  },
};

process.on('unhandledRejection', (reason) => process.send?.({ rejection: String((reason as Error)?.stack ?? reason) }));
process.on('disconnect', () => process.exit(0));
process.on('message', async ({ id, op, args }: AgentTask) => {
  const answer = (value: Omit<AgentAnswer, 'id'>): void => {
    process.send?.({ id, ...value } satisfies AgentAnswer);
  };
  try {
    answer({ value: await OPS[op]!(args as never) });
  } catch (error) {
    const { code, message, reason } = error as { code: string; message: string; reason?: string };
    answer({ error: { code, message, ...(reason === undefined ? {} : { reason }) } });
  }
});
