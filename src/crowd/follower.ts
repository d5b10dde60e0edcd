import type { Runtime } from '../base/runtime.ts';
import { codeOf, type Reply, retryAfterMs } from './client.ts';
import type { Followed, Following, OrderView } from './evidence.ts';
import type { Door, Fleet } from './fleet.ts';
import { orderOf } from './remote-shop.ts';

/** The first read, and the longest pause between two. */
const LOOK_MS_MIN = 250;
const LOOK_MS_MAX = 2_000;
const LOOK_GROWTH = 1.5;
/** One timer for all orders: a hundred thousand timers would cost more than the reads. */
const TICK_MS = 50;
/** A thousand reads a second: polling must not slow the shop down. */
const LOOKS_PER_TICK = 50;

interface FollowedOrder extends Followed {
  bearer: string;
  door: Door;
  sinceMs: number;
  pauseMs: number;
  dueMs: number;
}

export interface FollowerOptions {
  fleet: Fleet;
  /** Reads at the same time. */
  width: number;
  runtime: Runtime;
  /** Called when an order is decided. */
  decided: (order: OrderView) => void;
}

/** Polls orders that were answered 202, at a bounded rate and with their owners' tokens, until each is decided. */
export class Follower {
  readonly #on: FollowerOptions;
  readonly #orders = new Map<string, FollowedOrder>();
  /** Undecided orders that are not being read. After a read an order goes to the end, so that each gets its turn. */
  readonly #waiting = new Set<FollowedOrder>();
  /** Due, waiting for a free read. */
  #due: FollowedOrder[] = [];
  readonly #odd: Record<string, number> = {};
  readonly #stopTicks: () => void;
  #looking = 0;
  #emptied: (() => void) | null = null;

  constructor(options: FollowerOptions) {
    this.#on = options;
    this.#stopTicks = options.runtime.timers.every(TICK_MS, () => this.#tick());
  }

  /** Orders not decided yet. */
  get left(): number {
    return this.#waiting.size + this.#due.length + this.#looking;
  }

  /** All orders that were added. */
  get size(): number {
    return this.#orders.size;
  }

  /** Idempotent: several clicks of one key may get the same order. */
  add(id: string, bearer: string): void {
    if (this.#orders.has(id)) return;
    const sinceMs = this.#on.runtime.clock.monotonic();
    const entry: FollowedOrder = {
      id,
      bearer,
      door: this.#on.fleet.door(this.#orders.size),
      last: 'unheard',
      end: null,
      tookMs: null,
      sinceMs,
      pauseMs: LOOK_MS_MIN,
      dueMs: sinceMs + LOOK_MS_MIN,
    };
    this.#orders.set(id, entry);
    this.#waiting.add(entry);
  }

  /** Call after the last `add`. Waits until all orders are decided, for at most `boundMs`, or until interrupted. */
  async finish(boundMs: number, interrupt: AbortSignal): Promise<Following> {
    if (this.left > 0 && !interrupt.aborted) await this.#emptiedWithin(boundMs, interrupt);
    const waited = this.left === 0 || !interrupt.aborted;
    this.close();
    const orders = [...this.#orders.values()].map(({ id, last, end, tookMs }) => ({ id, last, end, tookMs }));
    return { orders, odd: { ...this.#odd }, boundMs, waited };
  }

  close(): void {
    this.#stopTicks();
    this.#due = [];
  }

  #emptiedWithin(boundMs: number, interrupt: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        cancel();
        interrupt.removeEventListener('abort', end);
        this.#emptied = null;
        resolve();
      };
      const cancel = this.#on.runtime.timers.after(boundMs, end);
      interrupt.addEventListener('abort', end);
      this.#emptied = end;
    });
  }

  #tick(): void {
    const nowMs = this.#on.runtime.clock.monotonic();
    for (const entry of this.#waiting) {
      if (this.#due.length >= LOOKS_PER_TICK) break;
      if (entry.dueMs > nowMs) continue;
      this.#waiting.delete(entry);
      this.#due.push(entry);
    }
    this.#lookOn();
  }

  #lookOn(): void {
    while (this.#looking < this.#on.width && this.#due.length > 0) {
      this.#looking++;
      void this.#look(this.#due.shift()!);
    }
  }

  async #look(entry: FollowedOrder): Promise<void> {
    const { clock } = this.#on.runtime;
    const reply = await entry.door.call('GET', `/v1/orders/${encodeURIComponent(entry.id)}`, { bearer: entry.bearer });
    this.#looking--;
    this.#lookOn();
    this.#note(entry, reply);
    if (entry.end !== null) {
      entry.tookMs = clock.monotonic() - entry.sinceMs;
      this.#on.decided(entry.end);
      if (this.left === 0) this.#emptied?.();
      return;
    }
    const put = reply.ok && (reply.status === 503 || reply.status === 429) ? retryAfterMs(reply) : 0;
    entry.dueMs = clock.monotonic() + Math.max(entry.pauseMs, put) * (0.75 + this.#on.runtime.random.fraction() / 2);
    entry.pauseMs = Math.min(entry.pauseMs * LOOK_GROWTH, LOOK_MS_MAX);
    this.#waiting.add(entry);
  }

  #note(entry: FollowedOrder, reply: Reply): void {
    // The server is down or busy: that says nothing about the order, so the earlier finding stands.
    if (!reply.ok || reply.status === 503 || reply.status === 429) return;
    const order = reply.status === 200 ? orderOf(reply.body) : null;
    if (order !== null && order.id === entry.id) {
      if (order.status === 'queued') entry.last = 'queued';
      else entry.end = order;
    } else if (reply.status === 404) {
      entry.last = 'missing';
    } else {
      const words =
        reply.status === 200 ? '200 without that order' : `${reply.status} ${codeOf(reply.body) ?? ''}`.trim();
      this.#odd[words] = (this.#odd[words] ?? 0) + 1;
    }
  }
}
