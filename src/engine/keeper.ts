import { messageOf } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { drain, each, NOTHING_MORE, type Round, sweep } from '../base/sweep.ts';
import type { SharedGate } from '../gate/port.ts';
import {
  type GateTask,
  KEY_KEPT_MS,
  type KeyLedger,
  RELEASES_KEPT_MS,
  type ReleaseLedger,
  type SaleLedger,
} from '../ledger/port.ts';
import type { Leader } from '../locks/leader.ts';
import type { Locks } from '../locks/locks.ts';
import { mayAdmit } from '../model/sale.ts';
import type { Rebuilder } from './rebuild.ts';

const ROUND_MS = 1000;
const ROUND_MS_MAX = 2000;
/** Whoever made a change tells the gate itself, within this time. */
export const TASK_MS = 1000;
const TIDY_EVERY_MS = 60_000;
/** Lowering a total takes no longer: a hold of the house that is older was left behind. */
const HOUSE_MS_MAX = 60_000;
const LOOK_AT_ONCE = 50;
/** Sales that the gate is told about, or asked about in more than one step. */
const TELL_AT_ONCE = 8;
const FAILURES_MAX = 3;

export interface KeeperDependencies {
  runtime: Runtime;
  gate: SharedGate;
  ledger: SaleLedger & KeyLedger & ReleaseLedger;
  locks: Locks;
  rebuilder: Rebuilder;
}

export interface TaskDependencies {
  gate: Pick<SharedGate, 'epochOf'>;
  ledger: SaleLedger & KeyLedger & ReleaseLedger;
  rebuilder: Pick<Rebuilder, 'apply' | 'rebuild'>;
}

/**
 * What somebody must see to and nobody asks for, done by one process of the cluster at a time, once a second: sales whose
 * gate is stale are rebuilt, also when nobody buys; changes whose maker died are told to the gate; and now and then old
 * keys are forgotten, units that the house left behind come back, and finished sales leave Redis. Everything here may be
 * done twice: that one leads saves work. In a cluster the gate of one sale may be out while others are well: each step is
 * done for all the others, and the round fails at its end.
 */
export class Keeper {
  readonly #on: KeeperDependencies;
  #leader: Leader | null = null;
  #tidiedMs = Number.NEGATIVE_INFINITY;
  #told = false;

  constructor(dependencies: KeeperDependencies) {
    this.#on = dependencies;
  }

  start(): void {
    this.#leader = this.#on.locks.leader('keeper', ({ signal }) => this.#lead(signal));
  }

  /**
   * Where rounds fail again and again another process may be able to: it leads, and this one stands in line again. That is
   * no failure of the job, after which this process would wait for up to a minute: what fails may be one sale of many.
   */
  async #lead(signal: AbortSignal): Promise<void> {
    const { timers, log } = this.#on.runtime;
    const round = async (): Promise<Round> => {
      const done = await this.round(signal);
      this.#told = false;
      return done;
    };
    await sweep(timers, round, {
      signal,
      pauseMs: ROUND_MS,
      pauseMsMax: ROUND_MS_MAX,
      failuresMax: FAILURES_MAX,
      failed: (error) => {
        // Once for an outage, however often this process leads meanwhile.
        if (!this.#told) log.warn({ reason: messageOf(error) }, 'a round of the keeper failed; it tries on');
        this.#told = true;
      },
    }).catch(() => undefined);
  }

  async round(signal?: AbortSignal): Promise<Round> {
    const { runtime, ledger, gate } = this.#on;
    const open = await ledger.openSaleIds();
    const steps = [() => this.#lookAtGates(open, signal), () => Keeper.finishTasks(this.#on, TASK_MS, false, signal)];
    if (runtime.clock.monotonic() - this.#tidiedMs >= TIDY_EVERY_MS) {
      this.#tidiedMs = runtime.clock.monotonic();
      steps.push(
        // The list may be lost where the sales are not: in a cluster it is on another server.
        () => gate.enlist(open),
        () => Keeper.finishTasks(this.#on, TIDY_EVERY_MS, true, signal),
        () => gate.pruneKeys(KEY_KEPT_MS),
        () => drain(runtime.timers, () => ledger.pruneKeys(KEY_KEPT_MS), signal),
        () => drain(runtime.timers, () => ledger.pruneReleases(RELEASES_KEPT_MS), signal),
        () => each(open, TELL_AT_ONCE, (saleId) => this.#dropHouseHolds(saleId), signal),
        () => this.#letGo(signal),
      );
    }
    await each(steps, 1, (step) => step(), signal);
    return NOTHING_MORE;
  }

  #lookAtGates(saleIds: string[], signal?: AbortSignal): Promise<void> {
    const { gate, rebuilder } = this.#on;
    const look = async (saleId: string): Promise<void> => {
      if ((await gate.epochOf(saleId)) === null) void rebuilder.rebuild(saleId, 0, false);
    };
    return each(saleIds, LOOK_AT_ONCE, look, signal);
  }

  /**
   * Changes that nobody confirmed. One whose sale has no open gate waits for it: a gate that is being built may have
   * looked before the change, and can be told when it is there. If no gate will come, it waits until surely none does.
   * For any deployment: one whose gate is in its own process may lose the answer to a COMMIT just the same.
   */
  static async finishTasks(
    on: TaskDependencies,
    olderMs: number,
    withoutGate: boolean,
    signal?: AbortSignal,
  ): Promise<void> {
    const { gate, ledger, rebuilder } = on;
    // The gate is told what the ledger has now: once for all changes of a sale.
    const bySale = Map.groupBy(await ledger.unfinishedTasks(olderMs), ({ saleId }) => saleId);
    const finish = async ([saleId, tasks]: [string, GateTask[]]): Promise<void> => {
      if ((await gate.epochOf(saleId)) === null) {
        const sale = await ledger.getSale(saleId);
        const comes = sale !== null && mayAdmit(sale);
        if (comes) void rebuilder.rebuild(saleId, 0, false);
        if (comes || !withoutGate) return;
      }
      await rebuilder.apply(saleId);
      for (const { auditId } of tasks) await ledger.finishTask(auditId);
    };
    await each([...bySale], TELL_AT_ONCE, finish, signal);
  }

  /** Whoever took units out to lower a total has died, or Redis was out when it gave them back. */
  async #dropHouseHolds(saleId: string): Promise<void> {
    const { gate, ledger, runtime } = this.#on;
    for (const { holdId, itemId, ageMs } of await gate.houseHolds(saleId)) {
      if (ageMs < HOUSE_MS_MAX) continue;
      const item = (await ledger.getSale(saleId))?.items.find(({ id }) => id === itemId);
      runtime.log.warn({ saleId, holdId }, 'units that were taken out to lower a total are given back');
      await gate.dropHouseHold(saleId, itemId, holdId, item && { total: item.total, rev: item.rev });
    }
  }

  /** Sales that cannot admit any more leave Redis, in one step, once nothing of theirs is in the pipe. */
  async #letGo(signal?: AbortSignal): Promise<void> {
    const { gate, ledger, rebuilder } = this.#on;
    const kept = await gate.saleIds();
    // After that: a sale is in the ledger before it has keys, so that one made meanwhile is not taken for a finished one.
    const open = new Set(await ledger.openSaleIds());
    const letGo = async (saleId: string): Promise<void> => {
      // The gate has to know that the sale is over: it stays open until then, and answers for keys of what is in the pipe.
      if (!(await rebuilder.apply(saleId))) return;
      if ((await gate.retire(saleId)) === 'stale') void rebuilder.rebuild(saleId, 0, false);
    };
    const over = kept.filter((saleId) => !open.has(saleId));
    await each(over, TELL_AT_ONCE, letGo, signal);
  }

  async stop(): Promise<void> {
    await this.#leader?.stop();
  }
}
