import { InFlight } from '../../base/in-flight.ts';
import type { ProviderWatch } from './provider.ts';

/** Payments of one provider that are worked on at once. */
const AT_ONCE = 16;
/** … and that are worked on or wait in memory; the rest waits in the ledger. */
const AHEAD_MAX = 256;

/** Something that has to be asked of a provider: a payment, or a refund of a part of one. */
export interface Due {
  readonly id: string;
  readonly provider: string;
  readonly state: string;
}

interface Lane<D> {
  readonly ahead: D[];
  /** Ids of those that wait and of those that are under way. */
  readonly known: Set<string>;
  underWay: number;
}

/**
 * Due payments, a lane for each provider: one that is slow, or does not answer at all, holds up its own payments only. One
 * that is silent is asked about one payment at a time; the others are not taken, and the caller postpones them.
 */
export class Lanes<D extends Due> {
  readonly #watch: Pick<ProviderWatch, 'isSilent'>;
  readonly #work: (attempt: D) => Promise<void>;
  readonly #lanes = new Map<string, Lane<D>>();
  readonly #underWay = new InFlight();

  /** `work` handles its own failures. */
  constructor(watch: Pick<ProviderWatch, 'isSilent'>, work: (attempt: D) => Promise<void>) {
    this.#watch = watch;
    this.#work = work;
  }

  /**
   * `taken`: it waits in the lane or is being worked on. `full`: there is no room now. `silent`: its provider does not answer,
   * and is being asked about another one.
   */
  take(attempt: D): 'taken' | 'full' | 'silent' {
    const lane = this.#laneOf(attempt.provider);
    if (lane.known.has(attempt.id)) return 'taken';
    // Late money looks for its goods first, and needs no provider for that.
    if (attempt.state !== 'late' && this.#watch.isSilent(attempt.provider)) {
      this.#drop(lane);
      if (lane.underWay > 0) return 'silent';
    }
    if (lane.known.size >= AHEAD_MAX) return 'full';
    lane.known.add(attempt.id);
    lane.ahead.push(attempt);
    this.#fill(lane);
    return 'taken';
  }

  /** Forgets those that wait, which are still in the ledger; what is under way goes on. */
  clear(): void {
    for (const lane of this.#lanes.values()) this.#drop(lane);
  }

  /** Resolves when nothing is under way. */
  idle(): Promise<void> {
    return this.#underWay.idle();
  }

  #laneOf(provider: string): Lane<D> {
    let lane = this.#lanes.get(provider);
    if (lane === undefined) {
      lane = { ahead: [], known: new Set(), underWay: 0 };
      this.#lanes.set(provider, lane);
    }
    return lane;
  }

  #drop(lane: Lane<D>): void {
    for (const { id } of lane.ahead.splice(0)) lane.known.delete(id);
  }

  #fill(lane: Lane<D>): void {
    while (lane.underWay < AT_ONCE) {
      const attempt = lane.ahead.shift();
      if (attempt === undefined) return;
      lane.underWay++;
      void this.#underWay.during(this.#work(attempt), () => {
        lane.underWay--;
        lane.known.delete(attempt.id);
        this.#fill(lane);
      });
    }
  }
}
