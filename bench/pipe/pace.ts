// How a crowd arrives: all at once, or at a rate; and when each order reached which stage.
import { nowMs } from './child.ts';

/** Places order number `n`; the numbers mean the same in every process of a measurement. */
export type Place = (n: number) => Promise<void>;

export interface Flood {
  readonly from: number;
  readonly count: number;
  /** Concurrent buyers, with one order at a time each. */
  readonly parallel: number;
}

export interface Drip {
  readonly from: number;
  readonly count: number;
  readonly perSecond: number;
}

/** Resolves when the last order is decided, to the time at which the first was sent. */
export async function flood({ from, count, parallel }: Flood, place: Place): Promise<number> {
  let next = from;
  const buyer = async (): Promise<void> => {
    while (next < from + count) await place(next++);
  };
  const startedMs = nowMs();
  await Promise.all(Array.from({ length: parallel }, buyer));
  return startedMs;
}

const TICK_MS = 1;
/** A little below what the gate of one process accepts at a time, so that a stall of the machine does not cause refusals. */
const UNDER_WAY_MAX = 1000;

/** Places orders at a fixed rate, whether or not earlier ones are decided. */
export async function drip({ from, count, perSecond }: Drip, place: Place): Promise<void> {
  let [placed, underWay] = [0, 0];
  let failure: { error: unknown } | null = null;
  const one = async (n: number): Promise<void> => {
    underWay++;
    try {
      await place(n);
    } catch (error) {
      failure ??= { error };
    }
    underWay--;
  };
  const startedMs = nowMs();
  while (placed < count || underWay > 0) {
    const due = Math.min(Math.floor(((nowMs() - startedMs) * perSecond) / 1000) + 1, count);
    while (placed < due && underWay < UNDER_WAY_MAX) void one(from + placed++);
    await new Promise((resolve) => setTimeout(resolve, TICK_MS));
    if (failure !== null) throw (failure as { error: unknown }).error;
  }
}

export type Stage = 'sent' | 'verdict' | 'relayed' | 'arrived' | 'handed' | 'committed' | 'told';
export type Times = Partial<Record<Stage, Float64Array>>;

/** Records when each order of a range first reached each stage. */
export class Track {
  #from = 0;
  #count = 0;
  #times: Times = {};

  get on(): boolean {
    return this.#count > 0;
  }

  start({ from, count }: { readonly from: number; readonly count: number }): void {
    this.#from = from;
    this.#count = count;
    this.#times = {};
  }

  mark(stage: Stage, n: number, atMs: number): void {
    const at = n - this.#from;
    if (at < 0 || at >= this.#count) return;
    this.#times[stage] ??= new Float64Array(this.#count).fill(Number.NaN);
    const times = this.#times[stage];
    if (Number.isNaN(times[at])) times[at] = atMs;
  }

  stop(): Times {
    this.#count = 0;
    return this.#times;
  }
}

// An order of this benchmark

export const FIRST_ID = 10_000_000;
export const ITEM = 'voucher';
export const FINGERPRINT = 'voucher x1';

export function orderId(n: number): string {
  return String(FIRST_ID + n);
}

/** Random names, so that buyers do not come in the order of any index. */
export function buyerOf(n: number): string {
  return `buyer-${Math.random().toString(36).slice(2, 14)}-${n}`;
}

export function keyOf(n: number): string {
  return `key-${n}`;
}

export function numberOf(key: string | null): number {
  return Number(key!.slice('key-'.length));
}
