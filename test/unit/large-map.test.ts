import { describe, expect, it } from 'vitest';
import { LargeMap } from '../../src/gate/large-map.ts';

describe('a large map', () => {
  it('P10: is a map, whichever of its parts an entry is in, at its first bound and beyond', () => {
    const [ours, model] = [new LargeMap<number>(), new Map<string, number>()];
    const keyOf = (at: number): string => `buyer-${(at * 7919) % 600_011}`;
    const set = (at: number, value: number): void => {
      ours.set(keyOf(at), value);
      model.set(keyOf(at), value);
    };
    const drop = (at: number): void => {
      ours.delete(keyOf(at));
      model.delete(keyOf(at));
    };
    const compare = (upTo: number): void => {
      const differs: number[] = [];
      for (let at = 0; at < upTo; at++) if (ours.get(keyOf(at)) !== model.get(keyOf(at))) differs.push(at);
      expect(differs).toEqual([]);
    };
    for (const [from, to] of [
      [0, 262_143],
      [262_143, 262_144],
      [262_144, 262_145],
      [262_145, 560_000],
    ] as const) {
      for (let at = from; at < to; at++) set(at, at);
      // An existing entry keeps its place; a deleted one is added again elsewhere.
      for (const at of [0, 1, to - 2, to - 1]) set(at, -at - 1);
      for (const at of [1, 2, to - 2]) drop(at);
      for (const at of [2, to - 2]) set(at, at + 0.5);
      drop(599_999);
    }
    compare(560_010);
    for (let at = 0; at < 560_000; at += 2) drop(at);
    compare(560_010);
  });
});
