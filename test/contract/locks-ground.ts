import { expect } from 'vitest';
import type { Inspection, LockKind, Locks, LocksOptions } from '../../src/locks/index.ts';
import { until } from '../support/fault-wait.ts';

/** A place where locks live. */
export interface LocksWorld {
  /** Another client of this place: another process, as far as the locks can tell. */
  client(options?: LocksOptions): Locks;
  /** A client of another place, which knows nothing of this one. */
  elsewhere(): Locks;
  /** How `replicas: 1` is refused here: none are there, or in a cluster they cannot be waited for. */
  readonly withoutReplicas: 'lock_unavailable' | 'lock_replicas';
  /** Ends what is not a client: those are closed before. */
  end(): Promise<void>;
}

let names = 0;

/** What the tests of one contract share: two clients that stay, as many more as a test wants, and names nobody else has. */
export class Ground {
  #world!: LocksWorld;
  readonly #made = new Set<Locks>();
  /** Two clients that no test may close. */
  a!: Locks;
  b!: Locks;

  async set(world: LocksWorld): Promise<void> {
    this.#world = world;
    this.a = this.client();
    this.b = this.client();
    // Connected, scripts loaded: the first test must not pay for it within its bounds.
    await Promise.all([this.a, this.b].map((locks) => locks.mutex('warm').run(() => undefined)));
  }

  async clear(): Promise<void> {
    await Promise.all([...this.#made].map((locks) => locks.close()));
    await this.#world.end();
  }

  client(options?: LocksOptions): Locks {
    return this.#remember(this.#world.client(options));
  }

  get withoutReplicas(): LocksWorld['withoutReplicas'] {
    return this.#world.withoutReplicas;
  }

  elsewhere(): Locks {
    return this.#remember(this.#world.elsewhere());
  }

  #remember(locks: Locks): Locks {
    this.#made.add(locks);
    return locks;
  }

  name(what = 'door'): string {
    return `${what}-${++names}`;
  }

  /** A prefix of one's own: for tests that look at everything there is. */
  prefix(): string {
    return `contract-${++names}`;
  }
}

/** Makes `locks` wait for this name once, in vain: from then on it listens, and is told what happens to what it holds. */
export async function waitOnce(
  locks: Locks,
  other: Locks,
  kind: 'mutex' | 'fair' | 'readwrite',
  name: string,
): Promise<void> {
  const lockOf = (of: Locks) => (kind === 'readwrite' ? of.readWrite(name).write : of[kind](name));
  const controller = new AbortController();
  await using _held = await lockOf(other).acquire();
  const waiting = errorOf(lockOf(locks).acquire({ signal: controller.signal }));
  await queued(other, kind, name, 1);
  controller.abort();
  await waiting;
}

/** The error that `work` is rejected with. */
export async function errorOf(work: Promise<unknown>): Promise<Error & { code?: string; reason?: string }> {
  const end = await work.then(
    (value) => ({ value }),
    (error: unknown) => ({ error }),
  );
  if ('value' in end) throw new Error(`should have failed, but gave ${String(end.value)}`);
  return end.error as Error;
}

type ErrorClass = new (...args: never[]) => Error;

/** Rejected with an error of this class, code and perhaps reason. */
export async function fails(work: Promise<unknown>, type: ErrorClass, code: string, reason?: string): Promise<Error> {
  const error = await errorOf(work);
  expect(error).toBeInstanceOf(type);
  expect(error.name).toBe(type.name);
  expect(error.code).toBe(code);
  if (reason !== undefined) expect(error.reason).toBe(reason);
  return error;
}

/** How long `work` took, however it ended. */
export async function timeOf(work: Promise<unknown>): Promise<number> {
  const beganMs = performance.now();
  await work.then(
    () => undefined,
    () => undefined,
  );
  return performance.now() - beganMs;
}

/** Resolves when so many wait for it, by the word of the store. */
export async function queued(locks: Locks, kind: LockKind, name: string, count: number): Promise<Inspection> {
  return await until(`${count} wait for ${kind} "${name}"`, 5000, async () => {
    const seen = await locks.inspect(kind, name);
    return seen.waiting === count ? seen : null;
  });
}

/** Nobody holds it and nobody waits. Clean-up after an abort is sent behind the call's end, so that this may take a moment. */
export async function free(locks: Locks, kind: LockKind, name: string): Promise<void> {
  await until(`${kind} "${name}" is free`, 2000, async () => {
    const { holders, waiting } = await locks.inspect(kind, name);
    return holders.length === 0 && waiting === 0;
  });
}

export { sleep, until } from '../support/fault-wait.ts';
export { aborting, isPendingAfter } from '../support/locks-timing.ts';
