import type { Runtime } from '../../base/runtime.ts';
import { Tally } from '../../base/tally.ts';
import type { PaymentProvider } from '../../payments/port.ts';
import { AnswerCheck, type CheckedProvider } from './answers.ts';

/** Payments of one provider that are looked after at once. */
const AT_ONCE = 16;
/** … and that wait for their turn in memory; the ledger has the rest. */
const AHEAD_MAX = 256;
/** A provider that has answered no question for so long is silent. */
export const SILENT_MS = 2000;

/**
 * Whether providers answer. A question that nobody answers takes seconds: a thousand payments of a provider that hangs would
 * take minutes of them, again and again. Captures do not count: some wait for the buyer.
 */
export class ProviderWatch {
  readonly #runtime: Runtime;
  /** The first question since the last answer, by provider. */
  readonly #unansweredMs = new Map<string, number>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  /** How long it has been asked without an answer. */
  silentMs(provider: string): number {
    const sinceMs = this.#unansweredMs.get(provider);
    return sinceMs === undefined ? 0 : this.#runtime.clock.monotonic() - sinceMs;
  }

  isSilent(provider: string): boolean {
    return this.silentMs(provider) >= SILENT_MS;
  }

  /** The same provider, watched, and its answers checked. A failure is an answer, too: it comes soon. */
  over(provider: PaymentProvider): CheckedProvider {
    const { name } = provider;
    const check = new AnswerCheck(name, this.#runtime.log);
    const watched = async <T>(asked: () => Promise<T>): Promise<T> => {
      if (!this.#unansweredMs.has(name)) this.#unansweredMs.set(name, this.#runtime.clock.monotonic());
      try {
        return await asked();
      } finally {
        this.#unansweredMs.delete(name);
      }
    };
    return {
      ...(provider.partialRefunds !== undefined && { partialRefunds: provider.partialRefunds }),
      name,
      capture: async (request) => check.capture(await provider.capture(request), request.attemptId),
      query: async (id) => check.state('query', await watched(() => provider.query(id)), id),
      void: async (id) => check.state('void', await watched(() => provider.void(id)), id),
      refund: async (request) => check.refund(await watched(() => provider.refund(request)), request.attemptId),
    };
  }
}

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
 * that is silent is asked about one payment at a time; the others are not taken, and somebody postpones them.
 */
export class Lanes<D extends Due> {
  readonly #watch: Pick<ProviderWatch, 'isSilent'>;
  readonly #work: (attempt: D) => Promise<void>;
  readonly #lanes = new Map<string, Lane<D>>();
  readonly #underWay = new Tally();

  /** `work` handles its own failures. */
  constructor(watch: Pick<ProviderWatch, 'isSilent'>, work: (attempt: D) => Promise<void>) {
    this.#watch = watch;
    this.#work = work;
  }

  /**
   * `taken`: it will be looked after, or is already. `full`: later, the ledger has it. `silent`: its provider does not answer,
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

  /** Those that wait are left to the ledger; what is under way goes on. */
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
