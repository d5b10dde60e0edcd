/** Integer minor units (cents, fen); never a float. */
export interface Money {
  amount: number;
  currency: string;
}

export const AMOUNT_MAX = 10 ** 12;

/** 100 units at the highest price are 10^14 minor units: exact in a double. */
export function times(price: Money, quantity: number): Money {
  return { amount: price.amount * quantity, currency: price.currency };
}
