/**
 * The per-buyer limit as slots. A buyer has the places 1 … perBuyer in a sale; a unit takes the lowest free one.
 * Returns null if the buyer would hold more than `perBuyer` units. After the limit was lowered a buyer may sit on
 * slots above it: they count as units, and keep their place until released.
 */
export function takeSlots(
  taken: ReadonlySet<number> | readonly number[],
  quantity: number,
  perBuyer: number,
): number[] | null {
  const held = taken instanceof Set ? taken : new Set(taken as readonly number[]);
  if (held.size + quantity > perBuyer) return null;
  const slots: number[] = [];
  for (let slot = 1; slots.length < quantity; slot++) if (!held.has(slot)) slots.push(slot);
  return slots;
}
