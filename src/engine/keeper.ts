import { messageOf } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { drain, NOTHING_MORE, type Round, sweep } from '../base/sweep.ts';
import type { SharedGate } from '../gate/port.ts';
import { KEY_KEPT_MS, type Ledger, RELEASES_KEPT_MS } from '../ledger/port.ts';
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
const FAILURES_MAX = 3;

export interface KeeperDependencies {
  runtime: Runtime;
  gate: SharedGate;
  ledger: Ledger;
  locks: Locks;
  rebuilder: Rebuilder;
}

export interface TaskDependencies {
  gate: Pick<SharedGate, 'epochOf'>;
  ledger: Ledger;
  rebuilder: Pick<Rebuilder, 'apply' | 'rebuild'>;
}

/**
 * What somebody must see to and nobody asks for, done by one process of the cluster at a time, once a second: sales whose
 * gate is stale are rebuilt, also when nobody buys; changes whose maker died are told to the gate; and now and then old
 * keys are forgotten, units that the house left behind come back, and finished sales leave Redis. Everything here may be
 * done twice: that one leads saves work.
 */
export class Keeper {
  readonly #on: KeeperDependencies;
  #leader: Leader | null = null;
  #tidiedMs = Number.NEGATIVE_INFINITY;

  constructor(dependencies: KeeperDependencies) {
    this.#on = dependencies;
  }

  start(): void {
    const { locks, runtime } = this.#on;
    this.#leader = locks.leader('keeper', async ({ signal }) => {
      await sweep(runtime.timers, () => this.round(signal), {
        signal,
        pauseMs: ROUND_MS,
        pauseMsMax: ROUND_MS_MAX,
        // Another may be able to: it leads, and this process stands in line again.
        failuresMax: FAILURES_MAX,
        failed: (error) => runtime.log.warn({ reason: messageOf(error) }, 'a round of the keeper failed; it tries on'),
      });
    });
  }

  async round(signal?: AbortSignal): Promise<Round> {
    const { runtime, ledger, gate } = this.#on;
    const open = await ledger.openSaleIds();
    await this.#lookAtGates(open);
    await Keeper.finishTasks(this.#on, TASK_MS, false);
    if (runtime.clock.monotonic() - this.#tidiedMs < TIDY_EVERY_MS) return NOTHING_MORE;
    this.#tidiedMs = runtime.clock.monotonic();
    // The list may be lost where the sales are not: in a cluster it is on another server.
    await gate.enlist(open);
    await Keeper.finishTasks(this.#on, TIDY_EVERY_MS, true);
    await this.#prune(signal);
    for (const saleId of open) await this.#dropHouseHolds(saleId);
    await this.#letGo();
    return NOTHING_MORE;
  }

  async #lookAtGates(saleIds: string[]): Promise<void> {
    const { gate, rebuilder } = this.#on;
    for (let from = 0; from < saleIds.length; from += LOOK_AT_ONCE) {
      const some = saleIds.slice(from, from + LOOK_AT_ONCE);
      const epochs = await Promise.all(some.map((saleId) => gate.epochOf(saleId)));
      for (const [at, epoch] of epochs.entries()) if (epoch === null) void rebuilder.rebuild(some[at]!, 0, false);
    }
  }

  /**
   * Changes that nobody confirmed. One whose sale has no open gate waits for it: a gate that is being built may have
   * looked before the change, and can be told when it is there. If no gate will come, it waits until surely none does.
   * For any deployment: one whose gate is in its own process may lose the answer to a COMMIT just the same.
   */
  static async finishTasks(on: TaskDependencies, olderMs: number, withoutGate: boolean): Promise<void> {
    const { gate, ledger, rebuilder } = on;
    for (const { auditId, saleId } of await ledger.unfinishedTasks(olderMs)) {
      if ((await gate.epochOf(saleId)) === null) {
        const sale = await ledger.getSale(saleId);
        const comes = sale !== null && mayAdmit(sale);
        if (comes) void rebuilder.rebuild(saleId, 0, false);
        if (comes || !withoutGate) continue;
      }
      await rebuilder.apply(saleId);
      await ledger.finishTask(auditId);
    }
  }

  async #prune(signal?: AbortSignal): Promise<void> {
    const { runtime, ledger, gate } = this.#on;
    await gate.pruneKeys(KEY_KEPT_MS);
    await drain(runtime.timers, () => ledger.pruneKeys(KEY_KEPT_MS), signal);
    await drain(runtime.timers, () => ledger.pruneReleases(RELEASES_KEPT_MS), signal);
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
  async #letGo(): Promise<void> {
    const { gate, ledger, rebuilder } = this.#on;
    const kept = await gate.saleIds();
    // After that: a sale is in the ledger before it has keys, so that one made meanwhile is not taken for a finished one.
    const open = new Set(await ledger.openSaleIds());
    for (const saleId of kept) {
      if (open.has(saleId)) continue;
      // The gate has to know that the sale is over: it stays open until then, and answers for keys of what is in the pipe.
      if (!(await rebuilder.apply(saleId))) continue;
      if ((await gate.retire(saleId)) === 'stale') void rebuilder.rebuild(saleId, 0, false);
    }
  }

  async stop(): Promise<void> {
    await this.#leader?.stop();
  }
}
