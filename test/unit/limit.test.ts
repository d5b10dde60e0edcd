import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { takeSlots } from '../../src/model/limit.ts';
import { seeded } from '../property/seed.ts';

describe('takeSlots (P2)', () => {
  it.each([
    { taken: [], quantity: 1, perBuyer: 1, slots: [1] },
    { taken: [], quantity: 3, perBuyer: 3, slots: [1, 2, 3] },
    { taken: [], quantity: 4, perBuyer: 3, slots: null },
    { taken: [1], quantity: 1, perBuyer: 1, slots: null },
    { taken: [1], quantity: 1, perBuyer: 2, slots: [2] },
    { taken: [2], quantity: 1, perBuyer: 2, slots: [1] },
    { taken: [2], quantity: 2, perBuyer: 3, slots: [1, 3] },
    // The limit was lowered: a slot above it still counts, and is kept.
    { taken: [3], quantity: 1, perBuyer: 2, slots: [1] },
    { taken: [3], quantity: 2, perBuyer: 2, slots: null },
    { taken: [1, 2, 3], quantity: 1, perBuyer: 2, slots: null },
    { taken: [2, 100], quantity: 98, perBuyer: 100, slots: [1, ...Array.from({ length: 97 }, (_, i) => i + 3)] },
  ])('$taken and $quantity of $perBuyer: $slots', ({ taken, quantity, perBuyer, slots }) => {
    expect(takeSlots(taken, quantity, perBuyer)).toEqual(slots);
    expect(takeSlots(new Set(taken), quantity, perBuyer)).toEqual(slots);
  });

  it('P2: gives distinct free slots within the limit, or refuses exactly when it would be exceeded', () => {
    const limit = fc.integer({ min: 1, max: 100 });
    fc.assert(
      fc.property(fc.uniqueArray(limit, { maxLength: 30 }), limit, limit, (taken, quantity, perBuyer) => {
        const slots = takeSlots(taken, quantity, perBuyer);
        if (taken.length + quantity > perBuyer) {
          expect(slots).toBeNull();
          return;
        }
        expect(new Set([...slots!, ...taken]).size).toBe(taken.length + quantity);
        expect(slots).toHaveLength(quantity);
        expect(slots!.every((slot) => slot >= 1 && slot <= perBuyer)).toBe(true);
      }),
      seeded('takeSlots', { short: 500, long: 20_000 }),
    );
  });
});
