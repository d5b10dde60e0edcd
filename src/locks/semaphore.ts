import { checkedCount, refuseUnknown } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import type { Grant } from './client/grant.ts';
import type { Hold } from './client/hold.ts';
import { Lock } from './lock.ts';
import { type AcquireOptions, PERMIT_OPTIONS, withoutWait } from './options.ts';
import type { OrderWatch } from './order.ts';

const TRY_OPTIONS = withoutWait(PERMIT_OPTIONS);

export interface PermitOptions extends Omit<AcquireOptions, 'within'> {
  /** How many. Default 1. */
  permits?: number;
}

/**
 * At most `permits` at a time. First come, first served: small requests do not overtake a large one. The permits
 * of a holder that died come back when its lease ends. Not re-entrant: each acquire takes permits.
 */
export class Semaphore {
  readonly name: string;
  /** The size, unless `resize` stored another one for everybody. */
  readonly permits: number;
  readonly #client: LockClient;
  readonly #order: OrderWatch;

  constructor(client: LockClient, order: OrderWatch, name: string, permits: number) {
    this.name = name;
    this.permits = permits;
    this.#client = client;
    this.#order = order;
  }

  #lock(permits: number): Lock {
    const wanted = { kind: 'semaphore', name: this.name, mode: 'write', limit: this.permits } as const;
    return new PermitLock(this.#client, this.#order, { ...wanted, permits: checkedCount(permits, 'permits', 1) });
  }

  async tryAcquire(options: Omit<PermitOptions, 'wait'> = {}): Promise<Grant | null> {
    refuseUnknown(options, TRY_OPTIONS, 'tryAcquire');
    const { permits = 1, ...rest } = options;
    return await this.#lock(permits).tryAcquire(rest);
  }

  async acquire(options: PermitOptions = {}): Promise<Grant> {
    refuseUnknown(options, PERMIT_OPTIONS, 'acquire');
    const { permits = 1, ...rest } = options;
    return await this.#lock(permits).acquire(rest);
  }

  async run<T>(fn: (grant: Grant) => Promise<T> | T, options: PermitOptions = {}): Promise<T> {
    refuseUnknown(options, PERMIT_OPTIONS, 'run');
    const { permits = 1, ...rest } = options;
    return await this.#lock(permits).run(fn, rest);
  }

  /** Sets the size for everybody, until it is set again; null goes back to what each caller says. Holders keep their permits. */
  async resize(permits: number | null): Promise<void> {
    const limit = permits === null ? null : checkedCount(permits, 'permits', 0);
    await this.#client.open.resize(this.name, limit, this.permits, this.#client.settings.handOverMs);
  }

  /** Permits that are free now, as the store sees it; negative after it was made smaller. */
  async available(): Promise<number> {
    const { holders, limit } = await this.inspect();
    return (limit ?? this.permits) - holders.reduce((sum, each) => sum + each.permits, 0);
  }

  inspect(): ReturnType<Lock['inspect']> {
    return this.#lock(1).inspect();
  }

  forceRelease(): ReturnType<Lock['forceRelease']> {
    return this.#lock(1).forceRelease();
  }
}

class PermitLock extends Lock {
  protected override reenters(_hold: Hold): boolean {
    return false;
  }
}
