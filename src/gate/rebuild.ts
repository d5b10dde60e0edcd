import { backOffMs } from '../base/back-off.ts';
import { messageOf, unavailable } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep, within } from '../base/timers.ts';
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
/** A gate that is well is shut for a wish only if what it admitted is decided this soon. */
const CALM_MS_MAX = 2000;
/** After a wish the sale is open for so many times as long as it was shut, before it is shut for the next. */
const REST_FACTOR = 3;
const REST_MS_MAX = 3000;
/** How long whoever could not take a sale away waits until its gate is open again. */
const REOPEN_MS_MAX = 5000;

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

/** Whoever asks for the same sale while it is being built or waits may raise the first two. */
interface Task {
  above: number;
  urgent: boolean;
  /**
   * Only a wish: the gate in force may go on selling. It is left alone while orders in the pipe are not decided, since a rebuild
   * might reject them.
   */
  wish: boolean;
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
 * A rebuild that an admin wishes (an item was added or repriced) waits until the pipe is seen to move, so that it shuts the gate for
 * a moment only and rejects nothing, and leaves time for orders between two of them (P10).
 *
 * A process that is stopped anywhere in this and resumed later either goes on as if nothing had happened, or finds a
 * higher epoch in force.
 */
export class Rebuilder {
  readonly #on: RebuildDependencies;
  readonly #running = new Map<string, Task & { done: Promise<void> }>();
  #busy = 0;
  readonly #waiting: { readonly task: Task; readonly go: () => void }[] = [];
  /** Sales that were just shut for a wish, and until when they are open for sure. */
  readonly #resting = new Map<string, number>();
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
  rebuild(saleId: string, above = 0, urgent = true, wish = false): Promise<void> {
    const running = this.#running.get(saleId);
    if (running) {
      running.above = Math.max(running.above, above);
      running.urgent ||= urgent;
      running.wish &&= wish;
      return running.done;
    }
    return this.#run(saleId, { above, urgent, wish }, (task) => this.#until(saleId, task));
  }

  /** One at a time for each sale: whoever asks for a rebuild meanwhile joins it. */
  #run<T>(saleId: string, asked: Task, work: (task: Task) => Promise<T>): Promise<T> {
    const { promise: done, resolve } = Promise.withResolvers<void>();
    const task = Object.assign(asked, { done });
    this.#running.set(saleId, task);
    return work(task).finally(() => {
      this.#running.delete(saleId);
      resolve();
    });
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
      const sale = await this.#changedSince(snapshot);
      // It was deleted since the snapshot: this gate must never open.
      if (sale === null) await gate.remove(saleId);
      return sale;
    });
    rebuilt(saleId, runtime.clock.monotonic() - sinceMs);
    return { epoch: snapshot.epoch, orders: content.orders };
  }

  /** Tells the gate that is in place what it cannot know from its snapshot; what else it has to be told. Null: there is no such sale. */
  async #changedSince(snapshot: SaleSnapshot): Promise<Latest | null> {
    await this.#releaseSince(snapshot);
    await this.#moveSince(snapshot);
    return await this.#latest(snapshot.saleId);
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
        if (task.wish) await this.#rest(saleId);
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
    const inForce = await gate.epochOf(saleId);
    if (inForce !== null && inForce > above) return true;
    if (await this.#isEmptied(saleId, above)) return false;
    // First: without a ledger no gate can be built, and the one in force should go on selling.
    await ledger.probe();
    const wish = task.wish && inForce !== null;
    if (wish && !(await this.#drain(saleId, task, CALM_MS_MAX))) {
      throw unavailable('orders in the pipe are not decided soon enough to shut the gate for this');
    }
    const shutMs = inForce === null ? sinceMs : runtime.clock.monotonic();
    await gate.shut(saleId);
    const drained = await this.#drain(saleId, task);
    if (this.#closed) return true;
    // Nobody can buy from a finished sale: better that the orders in its pipe reach the ledger than that they are rejected.
    if (!drained && above === 0 && !(await this.#mayAdmit(saleId))) return false;
    if (!drained) await this.#logLeft(saleId);
    const built = await this.build(saleId, above, shutMs);
    if (built === null) return false;
    const pauseMs = Math.round(runtime.clock.monotonic() - shutMs);
    if (wish) this.#restFor(saleId, Math.min(REST_FACTOR * pauseMs, REST_MS_MAX));
    runtime.log.info({ saleId, ...built, drained, pauseMs }, 'the gate of a sale was built from the ledger');
    return true;
  }

  /** Whether all that was in the pipe is decided. Gives up its slot meanwhile: waiting may take long, and costs little. */
  async #drain(saleId: string, task: Task, drainMsMax = this.#on.drainMsMax): Promise<boolean> {
    const { pipe, drainIdleMsMax } = this.#on;
    if (await pipe.caughtUp(saleChannel(saleId), 0)) return true;
    this.#leaveSlot();
    try {
      return await pipe.caughtUp(saleChannel(saleId), drainMsMax, drainIdleMsMax);
    } finally {
      await this.#slot(task);
    }
  }

  /** Ten wishes in a row do not keep the gate shut; those that come meanwhile need no rebuild of their own. */
  async #rest(saleId: string): Promise<void> {
    const { clock, timers } = this.#on.runtime;
    const restMs = (this.#resting.get(saleId) ?? 0) - clock.monotonic();
    if (restMs > 0) await sleep(timers, restMs);
  }

  #restFor(saleId: string, restMs: number): void {
    const nowMs = this.#on.runtime.clock.monotonic();
    for (const [other, untilMs] of this.#resting) if (untilMs <= nowMs) this.#resting.delete(other);
    this.#resting.set(saleId, nowMs + restMs);
  }

  /**
   * Takes a sale and its gate away, if `decide` does so in the ledger (true): no order is admitted from before that question on. The
   * gate is shut and drained, the epoch raised, and a gate of that epoch put in place that is not open: none of an older snapshot can
   * replace it, and one of a newer snapshot has another epoch in the ledger, which `decide` compares. If the sale stays, its gate is
   * open again when this resolves, or as soon as it can be. Null: it was not decided.
   */
  async takeAway(saleId: string, decide: (epoch: number) => Promise<boolean>): Promise<boolean | null> {
    await this.#running.get(saleId)?.done;
    if (this.#running.has(saleId)) throw unavailable('the gate of this sale is being rebuilt');
    const task: Task = { above: 0, urgent: true, wish: false };
    let taken: boolean | null = null;
    try {
      taken = await this.#run(saleId, task, () => this.#takeAway(saleId, decide));
      return taken;
    } finally {
      if (!taken) await within(this.#on.runtime.timers, this.rebuild(saleId, task.above), REOPEN_MS_MAX);
    }
  }

  async #takeAway(saleId: string, decide: (epoch: number) => Promise<boolean>): Promise<boolean | null> {
    const { gate, ledger, pipe, lock, drainIdleMsMax, rebuilding } = this.#on;
    const grant = await lock(saleId);
    if (grant === null) throw unavailable('the gate of this sale is being rebuilt');
    try {
      await ledger.probe();
      await gate.shut(saleId);
      if (!(await pipe.caughtUp(saleChannel(saleId), CALM_MS_MAX, drainIdleMsMax))) return null;
      const snapshot = await ledger.rebuildSnapshot(saleId, 0, await rebuilding());
      if (snapshot === null) return null;
      if (!snapshot.mayAdmit) {
        if (!(await decide(snapshot.epoch))) return false;
        await gate.remove(saleId);
        return true;
      }
      let taken: boolean | null = null;
      await gate.install(snapshot, async () => {
        taken = await decide(snapshot.epoch);
        if (taken) {
          await gate.remove(saleId);
          return null;
        }
        return await this.#changedSince(snapshot);
      });
      return taken;
    } finally {
      await grant.release().catch(() => undefined);
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
