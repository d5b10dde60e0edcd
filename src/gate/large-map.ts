/** Up to here one Map is faster, and doubling its table stops the event loop for less than 20 ms. */
const FIRST_MAX = 262_144;
/** A power of two. With ten million entries, a part holds about 20 000. */
const PARTS = 512;

/**
 * A map with string keys in which every operation is short, however many entries there are. A single Map doubles its table at
 * once: with four million entries that stops the event loop for more than a second. So all but the first entries are divided
 * among many maps by a hash of the key, and each doubles its own small table. Keeps no order.
 */
export class LargeMap<V> {
  readonly #first = new Map<string, V>();
  #parts: Map<string, V>[] | null = null;
  #moving: MapIterator<[string, V]> | null = null;

  get(key: string): V | undefined {
    if (this.#parts === null) return this.#first.get(key);
    const found = this.#first.size === 0 ? undefined : this.#first.get(key);
    return found === undefined ? this.#partOf(this.#parts, key).get(key) : found;
  }

  set(key: string, value: V): void {
    if (this.#parts === null) {
      this.#first.set(key, value);
      if (this.#first.size >= FIRST_MAX) this.#parts = Array.from({ length: PARTS }, () => new Map());
      return;
    }
    if (this.#first.size > 0) {
      this.#moveOne(this.#parts);
      this.#moveOne(this.#parts);
      if (this.#first.has(key)) {
        this.#first.set(key, value);
        return;
      }
    }
    this.#partOf(this.#parts, key).set(key, value);
  }

  delete(key: string): void {
    if (!this.#first.delete(key) && this.#parts !== null) this.#partOf(this.#parts, key).delete(key);
  }

  /** Moves the first entries to the other maps bit by bit; after that a lookup needs one map only. */
  #moveOne(parts: readonly Map<string, V>[]): void {
    this.#moving ??= this.#first.entries();
    const { done, value } = this.#moving.next();
    if (done) return;
    this.#first.delete(value[0]);
    this.#partOf(parts, value[0]).set(value[0], value[1]);
  }

  #partOf(parts: readonly Map<string, V>[], key: string): Map<string, V> {
    let hash = 0x811c9dc5;
    for (let at = 0; at < key.length; at++) hash = Math.imul(hash ^ key.charCodeAt(at), 0x01000193);
    return parts[(hash ^ (hash >>> 15)) & (PARTS - 1)]!;
  }
}
