import { QUEUE_MS } from './frame.ts';

export interface Place {
  readonly rid: string;
  readonly ticket: number;
  readonly permits: number;
  /** It left from the middle: it stays in the row until its turn comes or the row is packed. */
  left: boolean;
}

/** Below this many, packing the row is not worth it. */
const PACK_MIN = 32;

/** By ticket, and the same ticket by id, as a sorted set has it. */
function isBefore(a: Place, b: Place): boolean {
  return a.ticket < b.ticket || (a.ticket === b.ticket && a.rid < b.rid);
}

/**
 * Request ids by ticket. New tickets are the largest, so that joining is nearly always at the end; only one who joins again
 * with an old ticket moves the others. Joining at the end, popping and leaving take constant time, spread over the calls.
 */
export class WaitQueue {
  readonly #places = new Map<string, Place>();
  #row: Place[] = [];
  #begin = 0;
  /** Goes by itself at this moment, unless somebody joins (again). */
  #endMs = Infinity;

  get size(): number {
    return this.#places.size;
  }

  ticketOf(rid: string): number | undefined {
    return this.#places.get(rid)?.ticket;
  }

  /** Whoever is in it already keeps that place. */
  join(nowMs: number, rid: string, ticket: number, permits = 1): void {
    this.#endMs = nowMs + QUEUE_MS;
    if (this.#places.has(rid)) return;
    const place: Place = { rid, ticket, permits, left: false };
    this.#places.set(rid, place);
    const last = this.#row.at(-1);
    if (!last || this.#row.length === this.#begin || isBefore(last, place)) {
      this.#row.push(place);
      return;
    }
    let from = this.#begin;
    let to = this.#row.length;
    while (from < to) {
      const middle = (from + to) >>> 1;
      if (isBefore(this.#row[middle]!, place)) from = middle + 1;
      else to = middle;
    }
    this.#row.splice(from, 0, place);
  }

  get first(): Place | undefined {
    while (this.#row[this.#begin]?.left) this.#begin += 1;
    return this.#row[this.#begin];
  }

  pop(): Place | undefined {
    const { first } = this;
    if (first) this.leave(first.rid);
    return first;
  }

  leave(rid: string): boolean {
    const place = this.#places.get(rid);
    if (!place) return false;
    place.left = true;
    this.#places.delete(rid);
    if (this.#row.length > PACK_MIN && this.#row.length > 2 * this.#places.size) this.#pack();
    return true;
  }

  #pack(): void {
    this.#row = [...this];
    this.#begin = 0;
  }

  clear(): void {
    this.#places.clear();
    this.#row = [];
    this.#begin = 0;
  }

  prune(nowMs: number): void {
    if (nowMs >= this.#endMs && this.size > 0) this.clear();
  }

  /** In the order they will be served. */
  *[Symbol.iterator](): Generator<Place> {
    for (let i = this.#begin; i < this.#row.length; i++) if (!this.#row[i]!.left) yield this.#row[i]!;
  }

  /** At most `most`, in the order they will be served. */
  take(most: number): Place[] {
    const places: Place[] = [];
    for (const place of this) {
      if (places.length === most) break;
      places.push(place);
    }
    return places;
  }
}
