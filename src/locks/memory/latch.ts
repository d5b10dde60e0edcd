import type { LatchState } from '../client/port.ts';
import type { Frame } from './frame.ts';

/** A count that goes down to 0, once for each id, and those who wait for that. */
export class LatchCell {
  #count = 0;
  #endMs = -Infinity;
  readonly #counted = new Set<string>();
  readonly #waiters = new Set<string>();

  /** There is such a latch: it was set, and not too long ago. */
  exists(nowMs: number): boolean {
    return nowMs < this.#endMs;
  }

  set(frame: Frame, count: number, keepMs: number): void {
    this.#count = count;
    this.#endMs = frame.nowMs + keepMs;
    this.#counted.clear();
    this.#wakeAll(frame);
  }

  down(frame: Frame, rid: string, by: number, keepMs: number): number {
    if (this.#count === 0 || this.#counted.has(rid)) return this.#count;
    this.#counted.add(rid);
    this.#count = Math.max(0, this.#count - by);
    this.#endMs = frame.nowMs + keepMs;
    if (this.#count === 0) this.#wakeAll(frame);
    return this.#count;
  }

  look(rid: string | null): LatchState {
    if (rid !== null && this.#count > 0) this.#waiters.add(rid);
    return { count: this.#count, exists: true };
  }

  leave(rid: string): void {
    this.#waiters.delete(rid);
  }

  #wakeAll(frame: Frame): void {
    for (const rid of this.#waiters) frame.tell('look', rid);
    this.#waiters.clear();
  }
}
