import { isId } from '../base/ids.ts';
import type { During } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Ledger, OrderFilter, Page } from '../ledger/port.ts';
import { BuyerPages } from './buyer-pages.ts';
import type { Order } from './present.ts';
import type { OrderView } from './seat-names.ts';

/** Pages of orders, newest first: those of buyers at a bounded pace, so that readers cannot take the event loop from buyers. */
export class OrderList {
  readonly #ledger: Pick<Ledger, 'listOrders' | 'lastAttempts'>;
  readonly #pages: BuyerPages;
  readonly #view: Pick<OrderView, 'show'>;

  constructor(runtime: Runtime, ledger: Pick<Ledger, 'listOrders' | 'lastAttempts'>, view: Pick<OrderView, 'show'>) {
    this.#ledger = ledger;
    this.#view = view;
    this.#pages = new BuyerPages(runtime, 'orders');
  }

  async page(filter: OrderFilter, page: Page): Promise<Order[]> {
    if (filter.saleId !== undefined && !isId(filter.saleId)) return [];
    const read = async (during: During): Promise<Order[]> => {
      const orders = await during(() => this.#ledger.listOrders(filter, page));
      const attempts = await during(() => this.#ledger.lastAttempts(orders.map(({ id }) => id)));
      return await Promise.all(during(() => orders.map((order) => this.#view.show(order, attempts.get(order.id)))));
    };
    // An operator's lists do not wait behind those of buyers.
    if (filter.buyer === undefined) return await read((piece) => piece());
    return await this.#pages.run(filter.buyer, read);
  }
}
