import { backOffMs } from '../base/back-off.ts';
import { invariant } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Channels } from './channels.ts';
import type { Handled, Pipe } from './port.ts';

/** Bounds one transaction, so that a burst does not become one commit that everybody waits for. */
const BATCH_MAX = 512;
const AGAIN_MS_MIN = 25;
const AGAIN_MS_MAX = 2000;

/** There are no dead letters here: whoever handles a batch decides every message of it, or rejects the whole. */
// biome-ignore lint/suspicious/noConfusingVoidType: who decides everything has nothing to return
type HandleAll<M> = (batch: M[]) => Promise<Handled<M> | void>;

/**
 * The in-process pipe. Whoever decides calls `push` inside the decision itself, as the gate does inside an admission: there is no
 * instant in which stock is taken and no message exists. A batch is cut at the next turn of the event loop, so all requests that
 * arrived in one turn share one commit, and a lone request waits for nobody. The pipe does not survive the process: what is lost was
 * never answered 201.
 *
 * All channels share one queue, so that a channel has caught up when all have.
 */
export class MemoryPipe<M> implements Pipe<M> {
  readonly #channels: Channels<M>;
  readonly #runtime: Runtime;
  #waiting: M[] = [];
  #inHand: M[] = [];
  #handling: Promise<void> | null = null;
  #scheduled = false;
  #stopped = false;
  #handle: HandleAll<M> | null = null;
  /** How many messages have entered and left the queue. A waiter is resolved when `left` reaches its mark. */
  #entered = 0;
  #left = 0;
  #waiters: { mark: number; resolve: () => void; moved: () => void }[] = [];
  #endRest: (() => void) | null = null;

  constructor(channels: Channels<M>, runtime: Runtime) {
    this.#channels = channels;
    this.#runtime = runtime;
  }

  get depth(): number {
    return this.#waiting.length + this.#inHand.length;
  }

  /** Whether whoever decides must refuse: the ledger does not keep up. */
  get isFull(): boolean {
    return this.depth >= this.#channels.bound;
  }

  push(message: M): void {
    this.#waiting.push(message);
    this.#entered++;
    this.#schedule();
  }

  consume(handle: HandleAll<M>): void {
    this.#handle = handle;
    if (this.#waiting.length > 0) this.#schedule();
  }

  async drained(): Promise<void> {
    while (this.depth > 0) await this.caughtUp();
  }

  caughtUp(_channel?: string, withinMs = Infinity, idleMs = Infinity): Promise<boolean> {
    if (this.depth === 0) return Promise.resolve(true);
    if (withinMs <= 0) return Promise.resolve(false);
    return new Promise((resolve) => {
      const giveUpIn = (ms: number): (() => void) | null =>
        ms === Infinity ? null : this.#runtime.timers.after(ms, () => settle(false));
      const settle = (caughtUp: boolean): void => {
        late?.();
        idle?.();
        if (!caughtUp) this.#waiters = this.#waiters.filter((one) => one !== waiter);
        resolve(caughtUp);
      };
      const moved = (): void => {
        idle?.();
        idle = giveUpIn(idleMs);
      };
      const late = giveUpIn(withinMs);
      let idle = giveUpIn(idleMs);
      const waiter = { mark: this.#entered, resolve: () => settle(true), moved };
      this.#waiters.push(waiter);
    });
  }

  async depthOf(channel: string): Promise<number> {
    const all = [...this.#waiting, ...this.#inHand];
    return all.reduce((count, message) => (this.#channels.channelOf(message) === channel ? count + 1 : count), 0);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#endRest?.();
    await this.#handling;
  }

  #schedule(): void {
    if (this.#scheduled || this.#handling !== null || this.#handle === null || this.#stopped) return;
    this.#scheduled = true;
    this.#runtime.timers.nextTurn(() => {
      this.#scheduled = false;
      if (!this.#stopped) this.#handling = this.#turn();
    });
  }

  async #turn(): Promise<void> {
    const batch = this.#waiting.length <= BATCH_MAX ? this.#waiting : this.#waiting.slice(0, BATCH_MAX);
    this.#waiting = this.#waiting.length <= BATCH_MAX ? [] : this.#waiting.slice(BATCH_MAX);
    this.#inHand = batch;
    const decided = await this.#handOver(batch);
    this.#inHand = [];
    this.#handling = null;
    if (!decided) {
      this.#waiting = [...batch, ...this.#waiting];
      return;
    }
    this.#left += batch.length;
    for (const { moved } of this.#waiters) moved();
    while (this.#waiters.length > 0 && this.#waiters[0]!.mark <= this.#left) this.#waiters.shift()!.resolve();
    if (this.#waiting.length > 0) this.#schedule();
  }

  /** Hands a batch over until it is decided. False: the pipe was stopped first. */
  async #handOver(batch: M[]): Promise<boolean> {
    for (let failures = 0; ; failures++) {
      try {
        const handled = await this.#handle!(batch);
        if (!handled) return true;
        await handled.told;
        invariant(handled.undeliverable.length === 0, 'in memory nothing is undeliverable');
        return true;
      } catch (error) {
        const { kind } = this.#channels;
        this.#runtime.log.error({ err: error, [kind]: batch.length }, 'a batch is handed over again');
      }
      if (this.#stopped) return false;
      await new Promise<void>((resolve) => {
        const cancel = this.#runtime.timers.after(backOffMs(failures, AGAIN_MS_MIN, AGAIN_MS_MAX), resolve);
        this.#endRest = () => {
          cancel();
          resolve();
        };
      });
      this.#endRest = null;
      if (this.#stopped) return false;
    }
  }
}
