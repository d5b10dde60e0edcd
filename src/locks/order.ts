import type { Emitter } from './client/events.ts';
import type { Address } from './client/port.ts';
import { framesAround } from './context.ts';

const EDGES_MAX = 10_000;

/**
 * Notices locks that are taken in crossed order: B while A is held here, A while B is held there. Both wait for ever if that
 * happens at the same moment, which tests hardly ever meet; the warning does not need that moment.
 */
export class OrderWatch {
  /** `first\nsecond` → where it was taken so for the first time. */
  readonly #edges = new Map<string, string>();
  readonly #told = new Set<string>();
  readonly #emitter: Emitter;
  readonly #warn: (first: string, second: string, here: string, there: string) => void;

  constructor(emitter: Emitter, warn: (first: string, second: string, here: string, there: string) => void) {
    this.#emitter = emitter;
    this.#warn = warn;
  }

  /** To be called before `wanted` is asked for, inside run(fn). */
  note(place: string, wanted: Address): void {
    const second = `${wanted.kind} ${wanted.name}`;
    for (const frame of framesAround()) {
      for (const hold of frame.holds) {
        const first = `${hold.kind} ${hold.name}`;
        if (first !== second) this.#edge(place, first, second);
      }
    }
  }

  /** `second` is about to be taken while `first` is held. */
  noteAfter(place: string, first: Address, second: Address): void {
    this.#edge(place, `${first.kind} ${first.name}`, `${second.kind} ${second.name}`);
  }

  #edge(place: string, first: string, second: string): void {
    const edge = `${place}\n${first}\n${second}`;
    const known = this.#edges.has(edge);
    const there = this.#edges.get(`${place}\n${second}\n${first}`);
    if (known && there === undefined) return;
    const here = known ? this.#edges.get(edge)! : (new Error('taken here').stack ?? '');
    if (!known && this.#edges.size < EDGES_MAX) this.#edges.set(edge, here);
    if (there === undefined) return;
    const pair = [first, second].sort().join('\n');
    if (this.#told.has(pair)) return;
    this.#told.add(pair);
    this.#warn(first, second, here, there);
    this.#emitter.tell('crossed', { first, second, here, there });
  }
}
