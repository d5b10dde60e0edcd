import { backOffMs } from '../base/back-off.ts';
import { messageOf } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import type { Rebuilding, ReleaseLedger, SaleLedger, SeatLedger, Upkeep } from '../ledger/port.ts';
import { saleChannel } from '../model/channel.ts';
import type { OrderMessage } from '../model/order.ts';
import { mayAdmit } from '../model/sale.ts';
import type { SaleSnapshot, SnapshotPage } from '../model/snapshot.ts';
import type { Pipe } from '../pipe/port.ts';
import { applyLatest, type Gate, type Latest, type SharedGate } from './port.ts';

const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 2000;
/** Gates built at the same time: after Redis has lost everything there may be thousands to build. */
const AT_ONCE_MAX = 8;

export interface RebuildDependencies {
  runtime: Runtime;
  /** One that ends with this process keeps no note about finished sales. */
  gate: Gate & Partial<Pick<SharedGate, 'emptiedAt' | 'setEmptied'>>;
  pipe: Pick<Pipe<OrderMessage>, 'caughtUp' | 'depthOf'>;
  ledger: SaleLedger & ReleaseLedger & Upkeep & Pick<SeatLedger, 'blockedSeats' | 'seatMovesSince'>;
  /** Null: another process is building this gate. The lock only saves work: the ledger's epoch is the fence. */
  lock: (saleId: string) => Promise<{ release(): Promise<unknown> } | null>;
  /** How long to wait for orders in the pipe while some of them are being decided: later they can only be rejected. */
  drainMsMax: number;
  /** How long to wait for them while none is decided: there may be nobody who carries them. */
  drainIdleMsMax: number;
  /** For the audit. */
  rebuilding: () => Promise<Rebuilding>;
  /** How long orders of the sale were refused. */
  rebuilt: (saleId: string, pauseMs: number) => void;
}

/** Whoever asks for the same sale while it is being built or waits may raise both. */
interface Task {
  above: number;
  urgent: boolean;
}

interface Built {
  readonly epoch: number;
  /** Live orders that the gate was built with. */
  readonly orders: number;
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
 * Builds stale gates from the ledger, in both deployments and without an operator:
 *
 *   1. one process takes the sale's lock;
 *   2. it closes admission, and waits while the pipe carries what was admitted to the ledger: until nothing is left, nothing
 *      has been decided for a while, or a bound is reached;
 *   3. one transaction of the ledger raises the epoch and reads the sale. From that commit on an older admission can only end
 *      as `gate_rebuilt`, whoever carries it;
 *   4. the gate is built for that epoch, from pages of orders that are read as they are needed, and put in place unless a
 *      higher epoch is in force by then;
 *   5. the gate is told what the ledger has changed since step 3: units that came back, orders that were moved to other seats,
 *      and absolute values, of which it ignores older ones. Only then it opens.
 *
 * A sale that cannot admit any more gets no gate. Its epoch is raised all the same once its pipe is empty, and a shared gate
 * notes that: from then on the ledger can answer for every key of the sale. Until then nobody can (P5).
 *
 * A process that is stopped anywhere in this and resumed later either goes on as if nothing had happened, or finds a
 * higher epoch in force.
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

  /** Sales whose gates this process is building, or waits for. */
  get size(): number {
    return this.#running.size;
  }

  /**
   * Resolves when a gate with an epoch above `above` is in force, or when the sale cannot admit any more; retries while the
   * gate's store or the ledger is out.
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

  /** One try of the steps 3 to 5, whatever gate is in force. Null: the sale cannot admit any more, and needs no gate. */
  async build(saleId: string, above = 0, sinceMs = this.#on.runtime.clock.monotonic()): Promise<Built | null> {
    const { runtime, gate, ledger, rebuilding, rebuilt } = this.#on;
    const snapshot = await ledger.rebuildSnapshot(saleId, above, await rebuilding());
    if (snapshot === null) return null;
    if (!snapshot.mayAdmit) {
      // A gate of this process alone leaves nothing behind: its orders are decided, or can only be rejected.
      if (gate.setEmptied) await gate.setEmptied(saleId, snapshot.epoch);
      else await gate.remove(saleId);
      return null;
    }
    const content = new Counted(snapshot.content);
    await gate.install({ ...snapshot, content }, async () => {
      await this.#releaseSince(snapshot);
      await this.#moveSince(snapshot);
      return await this.#latest(saleId);
    });
    rebuilt(saleId, runtime.clock.monotonic() - sinceMs);
    return { epoch: snapshot.epoch, orders: content.orders };
  }

  /** Units that came back while the gate was being built: whoever gave them back told the gate before it. */
  async #releaseSince({ saleId, items }: SaleSnapshot): Promise<void> {
    const { gate, ledger } = this.#on;
    const revs = new Map(items.map(({ id, rev }) => [id, rev]));
    for await (const page of ledger.releasesSince(saleId, revs)) {
      await Promise.all(page.map(({ orderId, buyer }) => gate.release(saleId, { orderId, buyer })));
    }
  }

  /** Orders that were moved to other seats meanwhile: a page may have been read before that. */
  async #moveSince({ saleId, items }: SaleSnapshot): Promise<void> {
    const { gate, ledger } = this.#on;
    const revs = new Map(items.filter(({ seats }) => seats !== undefined).map(({ id, rev }) => [id, rev]));
    if (revs.size === 0) return;
    for await (const page of ledger.seatMovesSince(saleId, revs)) {
      for (const move of page) await gate.moveSeats(saleId, move);
    }
  }

  /** What the ledger has now. */
  async #latest(saleId: string): Promise<Latest | null> {
    const { ledger } = this.#on;
    const sale = await ledger.getSale(saleId);
    if (sale === null || !sale.items.some(({ kind }) => kind === 'seated')) return sale;
    return { ...sale, blockedSeats: await ledger.blockedSeats(saleId) };
  }

  async #until(saleId: string, task: Task): Promise<void> {
    const { runtime, lock } = this.#on;
    let failures = 0;
    let told = false;
    const sinceMs = runtime.clock.monotonic();
    while (!this.#closed) {
      try {
        if (await this.#isInForce(saleId, task.above)) return;
        await this.#slot(task);
        try {
          const grant = await lock(saleId);
          if (grant !== null) {
            try {
              const { above } = task;
              if (!(await this.#once(saleId, task, sinceMs))) return;
              // Somebody asked for a higher epoch meanwhile.
              if (task.above > above) continue;
              if (await this.#isInForce(saleId, above)) return;
              // The gate is lost already. Without the pause below, a Redis that forgets at once would keep this loop spinning.
            } finally {
              await grant.release().catch(() => undefined);
            }
          }
        } finally {
          this.#leaveSlot();
        }
        failures = 0;
      } catch (error) {
        // Once for each sale: an outage may be long, and the sales many.
        if (!told) runtime.log.warn({ saleId, reason: messageOf(error) }, 'the gate of a sale cannot be rebuilt yet');
        told = true;
        failures++;
      }
      await sleep(runtime.timers, backOffMs(failures, RETRY_MS_MIN, RETRY_MS_MAX));
    }
  }

  /** Waits until fewer than AT_ONCE_MAX gates are being built. */
  async #slot(task: Task): Promise<void> {
    if (this.#busy < AT_ONCE_MAX) this.#busy++;
    else await new Promise<void>((go) => this.#waiting.push({ task, go }));
  }

  /** An urgent task gets the slot first. Read now: a task may have become urgent while it waited. */
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
    const { runtime, gate, ledger } = this.#on;
    const { above } = task;
    // Another process may have built it while we waited for the lock.
    if (await this.#isInForce(saleId, above)) return true;
    if (await this.#isEmptied(saleId, above)) return false;
    // First: without a ledger no gate can be built, and the one in force should go on selling.
    await ledger.probe();
    await gate.shut(saleId);
    const drained = await this.#drain(saleId, task);
    if (this.#closed) return true;
    // Nobody can buy from a finished sale: better that the orders in its pipe reach the ledger than that they are rejected.
    if (!drained && above === 0 && !(await this.#mayAdmit(saleId))) return false;
    if (!drained) await this.#logLeft(saleId);
    const built = await this.build(saleId, above, sinceMs);
    if (built === null) return false;
    const pauseMs = Math.round(runtime.clock.monotonic() - sinceMs);
    runtime.log.info({ saleId, ...built, drained, pauseMs }, 'the gate of a sale was built from the ledger');
    return true;
  }

  /** Whether all that was in the pipe is decided. Gives up its slot meanwhile: waiting may take long, and costs little. */
  async #drain(saleId: string, task: Task): Promise<boolean> {
    const { pipe, drainMsMax, drainIdleMsMax } = this.#on;
    if (await pipe.caughtUp(saleChannel(saleId), 0)) return true;
    this.#leaveSlot();
    try {
      return await pipe.caughtUp(saleChannel(saleId), drainMsMax, drainIdleMsMax);
    } finally {
      await this.#slot(task);
    }
  }

  async #logLeft(saleId: string): Promise<void> {
    const { runtime, pipe } = this.#on;
    const orders = await pipe.depthOf(saleChannel(saleId)).catch(() => null);
    runtime.log.error({ saleId, orders }, 'orders in the pipe are not waited for any longer: they end gate_rebuilt');
  }

  /** A finished sale whose ledger knows every order that will ever be: there is nothing to build, and no epoch to raise. */
  async #isEmptied(saleId: string, above: number): Promise<boolean> {
    const emptied = (await this.#on.gate.emptiedAt?.(saleId)) ?? null;
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
    const latest = await this.#latest(saleId);
    if (latest === null) return false;
    await applyLatest(this.#on.gate, saleId, latest);
    return true;
  }

  close(): void {
    this.#closed = true;
  }
}
