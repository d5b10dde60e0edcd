import type { LockClient } from './client.ts';
import { type LossReason, NotOwnerError, UnavailableError } from './errors.ts';
import { eventOf } from './events.ts';
import { Hold } from './hold.ts';
import { marginMs } from './margin.ts';
import type { Address } from './port.ts';
import { Renewals } from './renewals.ts';
import type { Waiter } from './waiter.ts';
import { describe, type Terms, wantedOf } from './wanted.ts';

/** What this process holds. A hold is over here before it can be over at the store. */
export class Holding {
  readonly #client: LockClient;
  readonly #renewals: Renewals;
  readonly #holds = new Map<string, Hold>();

  constructor(client: LockClient) {
    this.#client = client;
    this.#renewals = new Renewals(client.runtime, {
      renew: (hold, leaseMs) => this.#renew(hold, leaseMs, ''),
      onOld: (hold) => this.#listen(hold),
    });
  }

  get count(): number {
    return this.#holds.size;
  }

  has(rid: string): boolean {
    return this.#holds.has(rid);
  }

  of({ kind, name }: Address): Hold[] {
    return [...this.#holds.values()].filter((hold) => hold.kind === kind && hold.name === name && hold.isHeld());
  }

  add(waiter: Waiter, token: number, sentMs: number, leaseMs: number): Hold {
    const hold = new Hold(this.#client, waiter, token, sentMs, leaseMs);
    this.#holds.set(hold.rid, hold);
    this.#renewals.add(hold);
    return hold;
  }

  /** A holder learns at once that its lock was taken by force, which may be long before the next renewal. */
  #listen(hold: Hold): void {
    const { store } = this.#client;
    if (store.hears(hold)) return;
    store.listen(hold).then(
      // It may have been taken before we could hear.
      () => this.verify(hold),
      () => undefined,
    );
  }

  /** A hand-over lasts only `handOverMs`: turns it into a full lease, unless it was given back in the same turn. */
  confirm(hold: Hold, terms: Terms): void {
    this.#client.runtime.timers.nextTurn(() => {
      if (hold.state === 'held')
        void this.#renew(hold, Math.min(terms.leaseMs, terms.maxHoldMs), this.#client.infoOf(terms.label));
    });
  }

  /** True: it holds for `leaseMs` from now, or until maxHold. False: it is lost, or could not be asked. */
  async #renew(hold: Hold, wantedMs: number, info: string, exactly = false): Promise<boolean> {
    const sentMs = this.#client.nowMs();
    // With the margin on top the deadline comes to lie at maxHold itself, and there is nothing more to renew.
    const leaseMs = Math.min(wantedMs, hold.untilMs - sentMs + marginMs(hold.leaseMs));
    const deadlineMs = Math.min(sentMs + leaseMs - marginMs(leaseMs), hold.untilMs);
    const number = ++hold.renewals;
    if (exactly) {
      hold.lastExact = number;
      // Shorter than before: in force from now on, whether or not the reply arrives.
      if (deadlineMs < hold.deadlineMs) this.#renewals.move(hold, deadlineMs);
    }
    hold.renewing = true;
    try {
      const { kind, name, rid, mode } = hold;
      const renewed = await this.#client.store.renew({
        exactly,
        kind,
        name,
        rid,
        mode,
        leaseMs: Math.max(1, Math.ceil(leaseMs)),
        info,
      });
      // Released or lost meanwhile: the reply concerns nobody, and is no loss.
      if (hold.state !== 'held') return false;
      if (!renewed) {
        // While it changes into another hold, the store knows it by one id or the other.
        if (!hold.changing) hold.lose('refused');
        return false;
      }
      // Unless one that was sent after it may have made the lease shorter.
      if (number >= hold.lastExact)
        this.#renewals.move(hold, exactly ? deadlineMs : Math.max(deadlineMs, hold.deadlineMs));
      return true;
    } catch (error) {
      if (!(error instanceof UnavailableError))
        this.#client.runtime.log.warn({ err: error, name: hold.name }, 'renewing a lock');
      return false;
    } finally {
      hold.renewing = false;
    }
  }

  /** Asks whether a hold still stands, without making a fixed lease longer. */
  async verify(hold: Hold): Promise<void> {
    const leftMs = hold.deadlineMs - this.#client.nowMs();
    const leaseMs = hold.renews ? hold.leaseMs : leftMs + marginMs(hold.leaseMs);
    if (leftMs > 0 && hold.state === 'held') await this.#renew(hold, leaseMs, '');
  }

  async extend(hold: Hold, leaseMs: number): Promise<void> {
    if (await this.#renew(hold, leaseMs, '', true)) {
      hold.leaseMs = leaseMs;
      return;
    }
    if (hold.loss) throw hold.loss;
    if (hold.state === 'released') throw new NotOwnerError(`${describe(hold)} was released`);
    throw new UnavailableError(`${describe(hold)} could not be extended`);
  }

  onLost(hold: Hold, reason: LossReason): void {
    const { givingBack, runtime, emitter } = this.#client;
    this.#holds.delete(hold.rid);
    // A renewal whose reply did not come in time may have been carried out: it would keep the lock for nobody.
    if (hold.renewals > 0 && !hold.changing && (reason === 'expired' || reason === 'max_hold')) {
      void givingBack.cleanUp({ ...wantedOf(hold), rid: hold.rid, ambiguous: true }, hold.leaseMs);
    }
    const heldMs = this.#client.nowMs() - hold.sinceMs;
    runtime.log.warn({ kind: hold.kind, name: hold.name, reason, heldMs }, 'a lock was lost');
    if (emitter.hears('lost')) emitter.tell('lost', { ...eventOf(hold), token: hold.token, heldMs, reason });
  }

  /** Taken away by `forceRelease`. */
  forced(rid: string): void {
    this.#holds.get(rid)?.lose('forced');
  }

  /** Given up by our own will: no timers, no loss. */
  drop(hold: Hold): void {
    const { emitter } = this.#client;
    hold.state = 'released';
    hold.disarm?.();
    this.#holds.delete(hold.rid);
    if (emitter.hears('released')) {
      const heldMs = this.#client.nowMs() - hold.sinceMs;
      emitter.tell('released', { ...eventOf(hold), token: hold.token, heldMs });
    }
  }

  /** The store may have forgotten: asks about everything that is held. */
  interrupted(): void {
    for (const hold of this.#holds.values()) if (!hold.renewing) void this.verify(hold);
  }

  close(): void {
    for (const hold of this.#holds.values()) {
      hold.lose('closed');
      void this.#client.givingBack.cleanUp({ ...wantedOf(hold), rid: hold.rid, ambiguous: hold.ambiguous }, 0);
    }
    this.#renewals.close();
  }
}
