import { LargeMap } from './large-map.ts';
import type { BoundTo } from './port.ts';

interface BoundKey extends BoundTo {
  readonly name: string;
  readonly boundAtMs: number;
}

/** Keys that were bound in a row, and so at about the same time. */
interface Group {
  oldestMs: number;
  keys: BoundKey[];
}

const GROUP_MAX = 1000;

/**
 * The keys of a sale, by name and by age. No single step takes longer with more keys: neither binding a key nor one step of
 * pruning. Keys may be bound in any order of time; mostly they come oldest first, and then pruning looks at few keys that stay.
 */
export class BoundKeys {
  readonly #byName = new LargeMap<BoundKey>();
  /** A key that was freed or bound again stays in its group until the group is pruned. */
  #groups: Group[] = [];

  get(name: string): BoundTo | undefined {
    return this.#byName.get(name);
  }

  bind(name: string, orderId: string, fingerprint: string, boundAtMs: number): void {
    const key: BoundKey = { name, orderId, fingerprint, boundAtMs };
    this.#byName.set(name, key);
    const last = this.#groups[this.#groups.length - 1];
    if (last === undefined || last.keys.length >= GROUP_MAX) {
      this.#groups.push({ oldestMs: boundAtMs, keys: [key] });
    } else {
      last.keys.push(key);
      if (boundAtMs < last.oldestMs) last.oldestMs = boundAtMs;
    }
  }

  /** Frees a key if it is bound to this order. */
  free(name: string, orderId: string): void {
    if (this.#byName.get(name)?.orderId === orderId) this.#byName.delete(name);
  }

  /**
   * Forgets keys that were bound before an instant, unless `keeps` says otherwise. Yields after each step of up to a thousand keys
   * with the number it looked at; in between, others may bind and free keys.
   */
  *prune(beforeMs: number, keeps: (orderId: string) => boolean): Generator<number> {
    // Groups that are added meanwhile are young.
    for (const group of this.#groups.slice()) {
      if (group.oldestMs >= beforeMs) continue;
      const { keys } = group;
      group.oldestMs = Infinity;
      group.keys = keys.filter((key) => {
        if (this.#byName.get(key.name) !== key) return false;
        if (key.boundAtMs < beforeMs && !keeps(key.orderId)) {
          this.#byName.delete(key.name);
          return false;
        }
        if (key.boundAtMs < group.oldestMs) group.oldestMs = key.boundAtMs;
        return true;
      });
      yield keys.length;
    }
    this.#groups = this.#groups.filter(({ keys }) => keys.length > 0);
  }
}
