import type { LockClient } from './client/client.ts';
import { HeldError, NotOwnerError } from './client/errors.ts';
import { Grant } from './client/grant.ts';
import { Hold } from './client/hold.ts';
import { Lock } from './lock.ts';
import { type AcquireOptions, CHANGE_OPTIONS, termsOf } from './options.ts';
import type { OrderWatch } from './order.ts';

class ReadLock extends Lock {
  /** A writer may read. */
  protected override covers(hold: Hold): boolean {
    return hold.mode === 'read' || hold.mode === 'write';
  }
}

class WriteLock extends Lock {
  protected override selfWait(): string {
    return `readwrite "${this.name}" is held to read here, and writing would wait for that: use upgrade()`;
  }
}

/**
 * Many readers or one writer. Phase-fair: a waiting writer stops new readers, the readers behind it enter together when
 * it is done, and nobody waits for more than one turn of the other kind. Each reader has a lease of its own.
 */
export class ReadWriteLock {
  readonly name: string;
  readonly read: Lock;
  readonly write: Lock;
  readonly #client: LockClient;

  constructor(client: LockClient, order: OrderWatch, name: string) {
    this.name = name;
    this.#client = client;
    const wanted = { kind: 'readwrite', name, permits: 1, limit: 1 } as const;
    this.read = new ReadLock(client, order, { ...wanted, mode: 'read' });
    this.write = new WriteLock(client, order, { ...wanted, mode: 'write' });
  }

  /**
   * Turns a grant to write into one to read, without a moment in between; the readers that wait enter with it. The old
   * grant is done with; the new one has the same token.
   */
  async downgrade(
    grant: Grant,
    options: Pick<AcquireOptions, 'lease' | 'renew' | 'maxHold' | 'label'> = {},
  ): Promise<Grant> {
    return await this.#change(grant, 'write', 'read', options);
  }

  /**
   * Turns a grant to read into one to write, when no other reader is left; until then it keeps its read hold, and no new
   * reader enters. A second reader that tries meanwhile gets HeldError at once: the two would wait for each other. After
   * a refusal, a timeout or an abort the old grant still holds. The new grant has a new token.
   */
  async upgrade(grant: Grant, options: Omit<AcquireOptions, 'within' | 'replicas'> = {}): Promise<Grant> {
    return await this.#change(grant, 'read', 'write', options);
  }

  async #change(grant: Grant, from: 'read' | 'write', to: 'read' | 'write', options: AcquireOptions): Promise<Grant> {
    const hold = Grant.holdOf(grant);
    const mine = hold.kind === 'readwrite' && hold.name === this.name && hold.of === this.#client && hold.mode === from;
    if (!mine || Grant.isReleased(grant)) {
      throw new NotOwnerError(`not a grant to ${from} readwrite "${this.name}"`);
    }
    grant.assertHeld();
    if (hold.count > 1) throw new HeldError(`readwrite "${this.name}" is entered more than once here`);
    const wanted = { kind: 'readwrite', name: this.name, mode: to, permits: 1, limit: 1 } as const;
    const more = { ...options, label: options.label ?? hold.label };
    const call = to === 'write' ? 'upgrade' : 'downgrade';
    const terms = termsOf(this.#client, more, Infinity, call, CHANGE_OPTIONS);
    const end = await this.#client.take(wanted, terms, hold);
    if (!(end instanceof Hold))
      throw new HeldError(`readwrite "${this.name}" cannot be upgraded: there are other readers`);
    this.#client.retire(hold);
    Grant.retire(grant);
    return new Grant(this.#client, end);
  }

  /** Whether anybody reads or writes. */
  isLocked(): Promise<boolean> {
    return this.read.isLocked();
  }

  inspect(): ReturnType<Lock['inspect']> {
    return this.read.inspect();
  }

  forceRelease(): ReturnType<Lock['forceRelease']> {
    return this.read.forceRelease();
  }
}
