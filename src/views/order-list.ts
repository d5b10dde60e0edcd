import { FewOfEach } from '../base/few.ts';
import { isId } from '../base/ids.ts';
import { type During, Paced } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Ledger, OrderFilter, Page } from '../ledger/port.ts';
import { type Order, presentOrder } from './present.ts';

const WAITING_MAX = 16;
/**
 * Lists of buyers, all together: 200 orders hold the event loop as long as ten orders that are placed. Writing them as JSON and
 * reading what a database sends, which is not seen here, takes as long again: with a fifth of the event loop here they
 * take less than a half in all.
 */
const PACE = { pauseFactor: 4, atOnce: 8, waitingMax: 64, what: 'lists of orders are being read' };

/** Pages of orders, newest first: those of buyers at a bounded pace, so that readers cannot take the event loop from buyers. */
export class OrderList {
  readonly #ledger: Pick<Ledger, 'listOrders' | 'lastAttempts'>;
  /** A filter that matches nothing has the ledger look through all orders of a buyer: one at a time for each. */
  readonly #ofBuyer = new FewOfEach(1, WAITING_MAX, 'lists of this buyer are being read');
  readonly #ofAll: Paced;

  constructor(runtime: Runtime, ledger: Pick<Ledger, 'listOrders' | 'lastAttempts'>) {
    this.#ledger = ledger;
    this.#ofAll = new Paced(runtime, PACE);
  }

  async page(filter: OrderFilter, page: Page): Promise<Order[]> {
    if (filter.saleId !== undefined && !isId(filter.saleId)) return [];
    const read = async (during: During): Promise<Order[]> => {
      const orders = await during(() => this.#ledger.listOrders(filter, page));
      const attempts = await during(() => this.#ledger.lastAttempts(orders.map(({ id }) => id)));
      return during(() => orders.map((order) => presentOrder(order, attempts.get(order.id))));
    };
    // An operator's lists do not wait behind those of buyers.
    if (filter.buyer === undefined) return await read((piece) => piece());
    return await this.#ofBuyer.run(filter.buyer, () => this.#ofAll.run(read));
  }
}
