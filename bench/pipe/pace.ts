// How a crowd comes: all at once, or so many a second; and when what happened to each order.
import { nowMs } from './child.ts';

/** What is placed, by its number: the same numbers in every process of a measurement. */
export type Place = (n: number) => Promise<void>;

export interface Flood {
  readonly from: number;
  readonly count: number;
  /** Buyers who ask at a time; each has one order under way. */
  readonly parallel: number;
}

export interface Drip {
  readonly from: number;
  readonly count: number;
  readonly perSecond: number;
}

/** Resolves when the last one has its verdict, with when the first was sent. */
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
/** What the gate of one process takes, and a little less: after a stall of this machine the late ones do not come all at once. */
const UNDER_WAY_MAX = 1000;

/** So many a second, whatever becomes of those before. */
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

/** When the orders of a range came to which stage, the first time. */
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

/** Random names: buyers do not come in the order of any index. */
export function buyerOf(n: number): string {
  return `buyer-${Math.random().toString(36).slice(2, 14)}-${n}`;
}

export function keyOf(n: number): string {
  return `key-${n}`;
}

export function numberOf(key: string | null): number {
  return Number(key!.slice('key-'.length));
}
