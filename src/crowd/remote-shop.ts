import type { Runtime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import { type Caller, type Client, codeOf, detailOf, unansweredWords } from './client.ts';
import type { Evidence, OrderView, SaleView } from './evidence.ts';
import type { Fleet } from './fleet.ts';
import { cannotStart, listPath, Reads } from './reads.ts';

const ORDERS = '/v1/orders';

/** Public counts may lag by up to a second (docs/reference/api.md). */
const COUNTS_LAG_MS = 1_000;
const SETTLE_TRIES_MAX = 3;
/** Orders whose answer was lost may still be queued, so the counts get longer to settle. */
const SETTLE_QUEUED_TRIES_MAX = 10;
const TOP_UP_TRIES_MAX = 3;

/** The shop over HTTP, as an admin. */
export class RemoteShop {
  readonly #fleet: Fleet;
  readonly #shop: Caller;
  readonly #saleId: string;
  readonly #adminKey: string;
  readonly #runtime: Runtime;
  readonly #reads: Reads;

  constructor(fleet: Fleet, options: { saleId: string; adminKey: string }, runtime: Runtime) {
    this.#fleet = fleet;
    this.#shop = fleet.door();
    this.#saleId = options.saleId;
    this.#adminKey = options.adminKey;
    this.#runtime = runtime;
    this.#reads = new Reads(this.#shop, options.adminKey, runtime);
  }

  /**
   * Checks before the crowd enters that every address answers, that the sale exists, and that the admin key is valid. A server
   * may die later; one that never answered is a wrong address.
   */
  async enter(): Promise<SaleView> {
    const [first, ...others] = this.#fleet.clients as [Client, ...Client[]];
    const sale = await this.#enterBy(first);
    for (const other of others) await this.#enterBy(other);
    return sale;
  }

  async #enterBy(client: Client): Promise<SaleView> {
    const { url } = client;
    const reply = await client.call('GET', this.#salePath());
    if (!reply.ok) throw cannotStart(unansweredWords(url, reply.reason));
    if (reply.status === 404 && codeOf(reply.body) === 'not_found')
      throw cannotStart(`there is no sale ${this.#saleId} at ${url}`);
    const sale = reply.status === 200 ? saleOf(reply.body) : null;
    if (sale === null) throw cannotStart(`${url} does not answer like a Doorbuster server (${detailOf(reply)})`);
    const list = listPath(ORDERS, { saleId: this.#saleId }, 1, null);
    await this.#reads.mustAccept(client, list, 'the list of orders cannot be read');
    return sale;
  }

  /** Adds stock until `free` units of the item are free; returns the sale then, and how many were added. */
  async topUp(sale: SaleView, item: string, free: number): Promise<{ sale: SaleView; added: number }> {
    let now = sale;
    let added = 0;
    // Repeat if the counts were old, or somebody bought meanwhile.
    for (let tries = 0; tries < TOP_UP_TRIES_MAX; tries++) {
      const add = free - now.items.find(({ code }) => code === item)!.free;
      if (add <= 0) break;
      const reply = await this.#shop.call('POST', `${this.#salePath()}/items/${encodeURIComponent(item)}/stock`, {
        bearer: this.#adminKey,
        key: `top-up-${this.#runtime.random.uuid()}`,
        body: { add },
      });
      const changed = reply.ok && reply.status === 200 ? saleOf(reply.body) : null;
      if (changed === null) throw cannotStart(`the sale cannot be topped up (${detailOf(reply)})`);
      added += add;
      now = changed;
    }
    return { sale: now, added };
  }

  /**
   * Reads the sale and the list of its orders until they agree. If they never do, either something is wrong, or others are still
   * ordering (`quiet` is false). `patient`: wait longer for queued orders.
   */
  async settled(patient: boolean): Promise<Pick<Evidence, 'after' | 'orders' | 'quiet'>> {
    for (let tries = 1; ; tries++) {
      const first = await this.#sale();
      const orders = await this.#orders();
      const after = await this.#sale();
      const quiet = JSON.stringify(first.items) === JSON.stringify(after.items);
      const queued = after.items.some((item) => item.queued > 0);
      const triesMax = queued && patient ? SETTLE_QUEUED_TRIES_MAX : SETTLE_TRIES_MAX;
      if ((quiet && !queued && agree(after, orders)) || tries >= triesMax) return { after, orders, quiet };
      await sleep(this.#runtime.timers, COUNTS_LAG_MS);
    }
  }

  async #sale(): Promise<SaleView> {
    return this.#reads.one(this.#salePath(), saleOf);
  }

  #orders(): Promise<OrderView[]> {
    return this.#reads.all(ORDERS, { saleId: this.#saleId }, orderOf);
  }

  #salePath(): string {
    return `/v1/sales/${encodeURIComponent(this.#saleId)}`;
  }
}

function agree(sale: SaleView, orders: readonly OrderView[]): boolean {
  if (orders.some(({ status }) => status === 'queued')) return false;
  return sale.items.every((item) => {
    const units = (status: string): number =>
      orders.reduce(
        (sum, order) => sum + (order.item === item.code && order.status === status ? order.quantity : 0),
        0,
      );
    return item.reserved === units('reserved') && item.sold === units('paid');
  });
}

/** Keeps only the members that the verdict needs, because a list may be long. Null if it is not an order. */
export function orderOf(body: unknown): OrderView | null {
  const { id, buyer, item, quantity, status, reason } = (body ?? {}) as Partial<OrderView>;
  const texts = [id, buyer, item, status].every((value) => typeof value === 'string');
  if (!texts || !Number.isInteger(quantity)) return null;
  return { id, buyer, item, quantity, status, reason: typeof reason === 'string' ? reason : null } as OrderView;
}

const COUNTS = ['total', 'free', 'queued', 'reserved', 'sold', 'blocked'] as const;

function saleOf(body: unknown): SaleView | null {
  const sale = (body ?? {}) as Partial<SaleView>;
  if (typeof sale.id !== 'string' || !Number.isInteger(sale.perBuyer) || !Array.isArray(sale.items)) return null;
  if (sale.items.some((item) => COUNTS.some((count) => !Number.isInteger(item[count])))) return null;
  const { id, name, state, perBuyer, items } = sale as SaleView;
  return {
    id,
    name,
    state,
    perBuyer,
    items: items.map(({ code, kind, total, free, queued, reserved, sold, blocked }) => ({
      code,
      kind,
      total,
      free,
      queued,
      reserved,
      sold,
      blocked,
    })),
  };
}
