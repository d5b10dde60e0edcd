import type { OrderRecord } from '../model/order.ts';
import type { PaymentAttempt } from '../model/payment.ts';
import type { SaleSeats } from '../model/sale-seats.ts';
import { type Order, presentOrder } from './present.ts';

/** The seats of a sale that has this item; null: there is no such sale any more. */
export type SeatsOfItem = (saleId: string, itemId: string) => Promise<SaleSeats | null>;

/** Orders as anybody sees them, with the names of their seats. */
export class OrderView {
  readonly #seatsOf: SeatsOfItem;

  constructor(seatsOf: SeatsOfItem) {
    this.#seatsOf = seatsOf;
  }

  /**
   * An order of a counted item at once. Orders with seats always come later, also if their map is at hand: two views of one order
   * that are asked for one after the other come in that order.
   */
  show(order: OrderRecord, attempt: PaymentAttempt | null = null): Order | Promise<Order> {
    return order.seats === undefined ? presentOrder(order, attempt) : this.#named(order, order.seats, attempt);
  }

  async #named(order: OrderRecord, numbers: readonly number[], attempt: PaymentAttempt | null): Promise<Order> {
    const sale = await this.#seatsOf(order.saleId, order.itemId);
    return presentOrder(order, attempt, sale === null ? [] : sale.names(order.itemId, numbers));
  }
}
