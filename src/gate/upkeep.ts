import { messageOf } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { drain, each, NOTHING_MORE, type Round, sweep } from '../base/sweep.ts';
import {
  type GateTask,
  KEY_KEPT_MS,
  type KeyLedger,
  RELEASES_KEPT_MS,
  type ReleaseLedger,
  type SaleLedger,
  type SeatLedger,
} from '../ledger/port.ts';
import { mayAdmit } from '../model/sale.ts';
import type { KeptGate, SharedGate } from './port.ts';
import type { Rebuilder } from './rebuild.ts';

const ROUND_MS = 1000;
const ROUND_MS_MAX = 2000;
/** Whoever made a change tells the gate itself within this time, or does not. */
const TASK_MS = 1000;
const TIDY_EVERY_MS = 60_000;
/** Lowering a total takes no longer: an older hold of the house was left behind. */
const HOUSE_MS_MAX = 60_000;
const LOOK_AT_ONCE = 50;
/** Sales that the gate is told about, or asked about in more than one step. */
const TELL_AT_ONCE = 8;
const FAILURES_MAX = 3;

export interface GateUpkeepDependencies {
  runtime: Runtime;
  /** One that ends with this process has no list to lose, and no holds of the house that outlive their maker. */
  gate: KeptGate & Partial<Pick<SharedGate, 'enlist' | 'houseHolds'>>;
  ledger: SaleLedger & KeyLedger & ReleaseLedger & Pick<SeatLedger, 'seatMovesSince'>;
  rebuilder: Pick<Rebuilder, 'apply' | 'rebuild'>;
  /** Runs `work` in one process of the cluster at a time; `alone`: there is no other process that could take over. */
  lead: (work: (signal: AbortSignal, alone: boolean) => Promise<void>) => { stop(): Promise<void> };
  /** The gate was told of a change whose maker did not tell it. */
  told?: (saleId: string) => void;
  /** The first failure in a row. */
  failed?: (error: unknown) => void;
}

/**
 * What a gate needs and no request brings about, once a second, in one process of the cluster at a time: stale gates are
 * rebuilt, also when nobody buys; changes whose maker died are told to the gate; and once a minute old keys are pruned,
 * units that the house left behind come back, and finished sales leave the gate. All of this may be done twice: that one
 * process leads only saves work. In a cluster the gate of one sale may be out while others are well: each step is done
 * for all the others, and the round fails at its end.
 */
export class GateUpkeep {
  readonly #on: GateUpkeepDependencies;
  #leader: { stop(): Promise<void> } | null = null;
  #tidiedMs = Number.NEGATIVE_INFINITY;
  #told = false;

  constructor(dependencies: GateUpkeepDependencies) {
    this.#on = dependencies;
  }

  start(): void {
    this.#leader = this.#on.lead((signal, alone) => this.#lead(signal, alone));
  }

  /**
   * After FAILURES_MAX failed rounds another process may lead, and this one stands in line again. It does not throw: after a
   * failed job it would wait for up to a minute, and what fails may be one sale of many.
   */
  async #lead(signal: AbortSignal, alone: boolean): Promise<void> {
    const { runtime, failed } = this.#on;
    const { timers, log } = runtime;
    const round = async (): Promise<Round> => {
      const done = await this.round(signal);
      this.#told = false;
      return done;
    };
    await sweep(timers, round, {
      signal,
      pauseMs: ROUND_MS,
      pauseMsMax: ROUND_MS_MAX,
      ...(!alone && { failuresMax: FAILURES_MAX }),
      failed: (error) => {
        failed?.(error);
        // Once for an outage, however often this process leads meanwhile.
        if (!this.#told) log.warn({ reason: messageOf(error) }, 'gate upkeep failed; it is tried again');
        this.#told = true;
      },
    }).catch(() => undefined);
  }

  async round(signal?: AbortSignal): Promise<Round> {
    const { runtime, ledger, gate } = this.#on;
    const open = await ledger.openSaleIds();
    const steps = [() => this.#rebuildStale(open, signal), () => this.#finishTasks(TASK_MS, false, signal)];
    if (runtime.clock.monotonic() - this.#tidiedMs >= TIDY_EVERY_MS) {
      this.#tidiedMs = runtime.clock.monotonic();
      steps.push(
        // The list may be lost where the sales are not: in a cluster it is on another server.
        async () => gate.enlist?.(open),
        () => this.#finishTasks(TIDY_EVERY_MS, true, signal),
        () => gate.pruneKeys(KEY_KEPT_MS),
        () => drain(runtime.timers, () => ledger.pruneKeys(KEY_KEPT_MS), signal),
        () => drain(runtime.timers, () => ledger.pruneReleases(RELEASES_KEPT_MS), signal),
        () => each(open, TELL_AT_ONCE, (saleId) => this.#dropHouseHolds(saleId), signal),
        () => this.#retireFinished(signal),
      );
    }
    await each(steps, 1, (step) => step(), signal);
    return NOTHING_MORE;
  }

  #rebuildStale(saleIds: string[], signal?: AbortSignal): Promise<void> {
    const { gate, rebuilder } = this.#on;
    const look = async (saleId: string): Promise<void> => {
      if ((await gate.epochOf(saleId)) === null) void rebuilder.rebuild(saleId, 0, false);
    };
    return each(saleIds, LOOK_AT_ONCE, look, signal);
  }

  /**
   * Changes that nobody confirmed: their maker died, or lost the answer to its COMMIT. One whose sale has no open gate waits
   * for it: a gate that is being built may have been read before the change, and can be told when it is there. One that added or
   * repriced an item waits for a gate that knows it. `withoutGate`: they are so old that a sale which cannot admit any more gets none.
   */
  async #finishTasks(olderMs: number, withoutGate: boolean, signal?: AbortSignal): Promise<void> {
    const { gate, ledger, rebuilder, told } = this.#on;
    // The gate is told what the ledger has now: once for all changes of a sale.
    const bySale = Map.groupBy(await ledger.unfinishedTasks(olderMs), ({ saleId }) => saleId);
    const finish = async ([saleId, tasks]: [string, GateTask[]]): Promise<void> => {
      const sale = await ledger.getSale(saleId);
      // A task is written with its sale: one that is missing was deleted, with nothing in its pipe.
      if (sale === null) await gate.remove(saleId);
      else {
        const epoch = await gate.epochOf(saleId);
        const comes = mayAdmit(sale) && (epoch ?? 0) <= sale.itemsEpoch;
        if (comes) void rebuilder.rebuild(saleId, sale.itemsEpoch, false, true);
        if (comes || (epoch === null && !withoutGate)) return;
        await rebuilder.apply(saleId);
      }
      told?.(saleId);
      for (const { auditId } of tasks) await ledger.finishTask(auditId);
    };
    await each([...bySale], TELL_AT_ONCE, finish, signal);
  }

  /**
   * The process that took units or seats for the house died, or Redis was out when it gave them back. What the ledger has done with
   * them is told first: a seat that is blocked by now, or has an order, must not be free for an instant.
   */
  async #dropHouseHolds(saleId: string): Promise<void> {
    const { gate, ledger, runtime, rebuilder } = this.#on;
    const old = ((await gate.houseHolds?.(saleId)) ?? []).filter(({ ageMs }) => ageMs >= HOUSE_MS_MAX);
    if (old.length === 0) return;
    await rebuilder.apply(saleId);
    const revs = new Map(old.map(({ itemId }) => [itemId, 0]));
    for await (const page of ledger.seatMovesSince(saleId, revs)) {
      for (const move of page) await gate.moveSeats(saleId, move);
    }
    for (const { holdId, itemId } of old) {
      runtime.log.warn({ saleId, holdId }, 'units or seats that were taken for the house are given back');
      await gate.dropHouseHold(saleId, itemId, holdId);
    }
  }

  /** Sales that cannot admit any more leave the gate, each in one step, once nothing of theirs is in the pipe. */
  async #retireFinished(signal?: AbortSignal): Promise<void> {
    const { gate, ledger, rebuilder } = this.#on;
    const kept = await gate.saleIds();
    // Read second: a sale is in the ledger before it is in the gate, so that one made meanwhile is not taken for finished.
    const open = new Set(await ledger.openSaleIds());
    const retire = async (saleId: string): Promise<void> => {
      // The gate has to know that the sale is over: until then it stays, and answers for the keys of orders in the pipe.
      if (!(await rebuilder.apply(saleId))) return;
      if ((await gate.retire(saleId)) === 'stale') void rebuilder.rebuild(saleId, 0, false);
    };
    const over = kept.filter((saleId) => !open.has(saleId));
    await each(over, TELL_AT_ONCE, retire, signal);
  }

  async stop(): Promise<void> {
    await this.#leader?.stop();
  }
}
