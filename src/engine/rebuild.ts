import { messageOf } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import { applyLatest, type SharedGate } from '../gate/port.ts';
import type { Rebuilding, ReleaseLedger, SaleLedger, Upkeep } from '../ledger/port.ts';
import type { Locks } from '../locks/locks.ts';
import { mayAdmit } from '../model/sale.ts';
import type { SaleSnapshot, SnapshotPage } from '../model/snapshot.ts';
import type { Pipe } from '../pipe/port.ts';

const RETRY_MS = 250;
const RETRY_MS_MAX = 2000;
/** What was admitted may reach the ledger before its epoch is raised; but not if nobody is there to bring it. */
const DRAIN_IDLE_MS_MAX = 3000;
/** Renewed while it works: who is stopped in the middle loses the lock, and the ledger's epoch is the fence. */
const LEASE_MS = 10_000;
/** Gates built at the same time: after Redis has lost everything there may be thousands to build. */
const AT_ONCE_MAX = 8;

export interface RebuildDependencies {
  runtime: Runtime;
  gate: SharedGate;
  pipe: Pipe;
  ledger: SaleLedger & ReleaseLedger & Upkeep;
  locks: Locks;
  /** How long to wait for what is in the pipe, while some of it is being decided: later it can only be rejected. */
  drainMsMax: number;
  /** For the audit. */
  rebuilding: () => Promise<Rebuilding>;
  /** How long orders of the sale were refused. */
  rebuilt: (saleId: string, pauseMs: number) => void;
  /** The gate is in place and not open yet; what it was built from may be older than units that came back since. */
  inPlace: (snapshot: SaleSnapshot) => Promise<void>;
}

/** Whoever asks for the same sale while it is under way or waits may raise both. */
interface Task {
  above: number;
  urgent: boolean;
}

/** Counts the live orders that pass. */
class Counted implements AsyncIterable<SnapshotPage> {
  readonly #content: SaleSnapshot['content'];
  orders = 0;

  constructor(content: SaleSnapshot['content']) {
    this.#content = content;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<SnapshotPage> {
    for await (const page of this.#content) {
      this.orders += page.holds.length;
      yield page;
    }
  }
}

/**
 * Builds gates that are stale, anywhere in the cluster, with nobody's hand on it:
 *
 *   1. one process takes the sale's lock: that saves work, and nothing rests on it;
 *   2. closes admission, and waits while the pipe brings what was admitted to the ledger: until nothing is left, nothing was
 *      decided for 3 s, or a bound is reached;
 *   3. in one transaction of the ledger the epoch is raised, and the sale is read. From that commit on an admission of before can
 *      only end as `gate_rebuilt`, whoever carries it;
 *   4. the gate is built under the names of that epoch, from pages of orders that are read as they are needed, and put in place,
 *      if no higher one is in force by then;
 *   5. what was changed in the ledger since step 3 is told to it: absolute values, of which older ones are ignored. Only
 *      then it opens.
 *
 * A sale that cannot admit any more gets no gate. Its epoch is raised all the same once its pipe is empty, and that is noted:
 * from then on the ledger can answer for every key of it. Until then nobody can (P5).
 *
 * Stopped anywhere and woken up later, it either goes on as if nothing had happened, or finds a higher epoch in its way.
 */
export class Rebuilder {
  readonly #on: RebuildDependencies;
  readonly #running = new Map<string, Task & { done: Promise<void> }>();
  #busy = 0;
  readonly #waiting: { readonly task: Task; readonly go: () => void }[] = [];
  #closed = false;

  constructor(dependencies: RebuildDependencies) {
    this.#on = dependencies;
  }

  /** Sales whose gates are being built by this process, or waited for. */
  get size(): number {
    return this.#running.size;
  }

  /**
   * Has the sale's gate in force, with an epoch above `above`. Resolves when that is so, or when the sale cannot admit any
   * more; goes on trying while Redis or the ledger are out.
   */
  rebuild(saleId: string, above = 0, urgent = true): Promise<void> {
    const running = this.#running.get(saleId);
    if (running) {
      running.above = Math.max(running.above, above);
      running.urgent ||= urgent;
      return running.done;
    }
    const task = { above, urgent, done: Promise.resolve() };
    this.#running.set(saleId, task);
    task.done = this.#until(saleId, task).finally(() => this.#running.delete(saleId));
    return task.done;
  }

  async #until(saleId: string, task: Task): Promise<void> {
    const { runtime, locks } = this.#on;
    let retryMs = RETRY_MS;
    let told = false;
    const sinceMs = runtime.clock.monotonic();
    while (!this.#closed) {
      try {
        if (await this.#isInForce(saleId, task.above)) return;
        await this.#slot(task);
        try {
          const grant = await locks.mutex(`rebuild:${saleId}`).tryAcquire({ lease: LEASE_MS, renew: true });
          if (grant !== null) {
            try {
              const { above } = task;
              if (!(await this.#once(saleId, task, sinceMs))) return;
              // Somebody asked for a higher one meanwhile.
              if (task.above > above) continue;
              if (await this.#isInForce(saleId, above)) return;
              // The gate is lost already. Without a pause, a Redis that forgets at once would be built for in a tight loop.
            } finally {
              await grant.release().catch(() => undefined);
            }
          }
        } finally {
          this.#leaveSlot();
        }
        retryMs = RETRY_MS;
      } catch (error) {
        // Once for each: an outage may be long, and the sales many.
        if (!told) runtime.log.warn({ saleId, reason: messageOf(error) }, 'the gate of a sale cannot be rebuilt yet');
        told = true;
        retryMs = Math.min(retryMs * 2, RETRY_MS_MAX);
      }
      await sleep(runtime.timers, retryMs);
    }
  }

  /** What somebody waits for goes before what is only tidied up. */
  async #slot(task: Task): Promise<void> {
    if (this.#busy < AT_ONCE_MAX) this.#busy++;
    else await new Promise<void>((go) => this.#waiting.push({ task, go }));
  }

  /** The slot goes to the next who waits. Which task is urgent is read now: it may have become so while it waited. */
  #leaveSlot(): void {
    const urgent = this.#waiting.findIndex(({ task }) => task.urgent);
    const [next] = this.#waiting.splice(Math.max(urgent, 0), 1);
    if (next) next.go();
    else this.#busy--;
  }

  async #isInForce(saleId: string, above: number): Promise<boolean> {
    const inForce = await this.#on.gate.epochOf(saleId);
    return inForce !== null && inForce > above;
  }

  /** False: the sale cannot admit any more, and needs no gate. */
  async #once(saleId: string, task: Task, sinceMs: number): Promise<boolean> {
    const { runtime, gate, ledger, rebuilt, inPlace } = this.#on;
    const { above } = task;
    // Somebody else may have done it while we waited for the lock.
    if (await this.#isInForce(saleId, above)) return true;
    if (await this.#isEmptied(saleId, above)) return false;
    // First: without a ledger no gate can be built, and the one in force had better go on.
    await ledger.probe();
    await gate.shut(saleId);
    const drained = await this.#drain(saleId, task);
    if (this.#closed) return true;
    // Nobody can buy from a finished sale: what is in its pipe had better reach the ledger than be rejected.
    if (!drained && above === 0 && !(await this.#mayAdmit(saleId))) return false;
    if (!drained) await this.#sayLeft(saleId);
    const snapshot = await ledger.rebuildSnapshot(saleId, above, await this.#on.rebuilding());
    if (snapshot === null) return false;
    if (!snapshot.mayAdmit) {
      await gate.setEmptied(saleId, snapshot.epoch);
      return false;
    }
    const content = new Counted(snapshot.content);
    await gate.install({ ...snapshot, content }, async () => {
      await inPlace(snapshot);
      return await ledger.getSale(saleId);
    });
    const pauseMs = runtime.clock.monotonic() - sinceMs;
    rebuilt(saleId, pauseMs);
    runtime.log.info(
      { saleId, epoch: snapshot.epoch, orders: content.orders, drained, pauseMs: Math.round(pauseMs) },
      'the gate of a sale was built from the ledger',
    );
    return true;
  }

  /** Whether all that was in the pipe is decided. Its slot is another's meanwhile: this may take long, and costs little. */
  async #drain(saleId: string, task: Task): Promise<boolean> {
    const { pipe, drainMsMax } = this.#on;
    if (await pipe.caughtUp(saleId, 0)) return true;
    this.#leaveSlot();
    try {
      return await pipe.caughtUp(saleId, drainMsMax, DRAIN_IDLE_MS_MAX);
    } finally {
      await this.#slot(task);
    }
  }

  async #sayLeft(saleId: string): Promise<void> {
    const { runtime, pipe } = this.#on;
    const orders = await pipe.depthOf(saleId).catch(() => null);
    runtime.log.error({ saleId, orders }, 'orders in the pipe are not waited for any longer: they end gate_rebuilt');
  }

  /** A finished sale whose ledger knows all that will ever become an order: there is nothing to build, and nothing to raise. */
  async #isEmptied(saleId: string, above: number): Promise<boolean> {
    const emptied = await this.#on.gate.emptiedAt(saleId);
    if (emptied === null || emptied <= above) return false;
    const sale = await this.#on.ledger.getSale(saleId);
    return sale !== null && !mayAdmit(sale) && sale.items.every(({ epoch }) => epoch <= emptied);
  }

  async #mayAdmit(saleId: string): Promise<boolean> {
    const sale = await this.#on.ledger.getSale(saleId);
    return sale !== null && mayAdmit(sale);
  }

  /** Tells the gate what the ledger has now. False: there is no such sale. */
  async apply(saleId: string): Promise<boolean> {
    const { gate, ledger } = this.#on;
    const sale = await ledger.getSale(saleId);
    if (sale === null) return false;
    await applyLatest(gate, saleId, sale);
    return true;
  }

  close(): void {
    this.#closed = true;
  }
}
