import type { Random } from '../../src/base/random.ts';
import type { Order, Sale } from '../../src/views/present.ts';
import { CrowdClient } from './crowd-client.ts';
import { allFaults, ledgerOrders, saleNow, undecided } from './crowd-judge.ts';
import { below, CrowdRecord, crowdOf, shuffled, type Try, type Wish } from './crowd-record.ts';
import type { TestShop } from './distributed.ts';
import { sleep, until } from './fault-wait.ts';
import { createSale, type TestServer } from './server.ts';

const TRIES_MAX = 60;
const RETRY_MS = 250;

export interface CrowdPlan {
  buyers: number;
  stock: number;
  perBuyer: number;
  /** Requests at once. */
  atOnce: number;
}

/**
 * A crowd against several API processes. Buyers choose any of them, and some click twice at the same time, at two processes. A
 * buyer who gets no answer or a 503 retries with the same key at another process. Every answer is recorded with the process
 * that gave it, because that process owes the decision of its 202s.
 */
export class DistributedCrowd {
  readonly record = new CrowdRecord();
  readonly shop: TestShop;
  readonly #random: Random;
  readonly #clients = new Map<TestServer, CrowdClient>();
  readonly #givenBy = new Map<string, Set<TestServer>>();
  readonly #dead = new Set<TestServer>();
  #late = 0;

  constructor(shop: TestShop, random: Random) {
    this.shop = shop;
    this.#random = random;
  }

  /** A server that is alive. */
  get server(): TestServer {
    return this.shop.servers.find((server) => !this.#dead.has(server))!;
  }

  /** Call it before killing a server: the 202s that it owed may then be lost. */
  died(server: TestServer): void {
    this.#dead.add(server);
  }

  createSale({ stock, perBuyer }: Pick<CrowdPlan, 'stock' | 'perBuyer'>): Promise<string> {
    return createSale(this.server, { stock, perBuyer });
  }

  async run(saleId: string, { buyers, perBuyer, atOnce }: CrowdPlan, name = 'buyer'): Promise<void> {
    const names = shuffled(
      this.#random,
      Array.from({ length: buyers }, (_, n) => `${name}-${n}`),
    );
    await crowdOf(names, atOnce, async (buyer) => {
      const quantity = 1 + below(this.#random, Math.min(perBuyer, 2));
      const key = this.#random.fraction() < 0.85 ? `${buyer} x${quantity}` : undefined;
      const wish = { saleId, buyer, quantity, key };
      const clicks = key !== undefined && this.#random.fraction() < 0.2 ? 2 : 1;
      await Promise.all(Array.from({ length: clicks }, () => this.#persist(wish)));
      // Some retry later with the same key.
      if (key !== undefined && this.#random.fraction() < 0.1) await this.#persist(wish);
    });
  }

  /** New buyers come, one order each, until told to stop. */
  async keepBuying(saleId: string, atOnce: number, stopped: () => boolean): Promise<void> {
    await crowdOf(this.#lateBuyers(), atOnce, async (buyer) => {
      await this.#persist({ saleId, buyer, key: 'k' });
      return !stopped();
    });
  }

  /** With a key, retries until there is an answer; without one, only if the request certainly had no effect. */
  async #persist(wish: Wish): Promise<Try> {
    for (let tries = 1; ; tries++) {
      const one = await this.#try(wish);
      const again = wish.key !== undefined && (one.status === 0 || one.status === 503);
      if (!again || tries === TRIES_MAX) return one;
      await sleep(RETRY_MS * (0.5 + Math.random()));
    }
  }

  async #try(wish: Wish): Promise<Try> {
    const living = this.shop.servers.filter((server) => !this.#dead.has(server));
    const server = living[Math.floor(Math.random() * living.length)]!;
    let client = this.#clients.get(server);
    if (!client) {
      client = new CrowdClient(server.url, 64);
      this.#clients.set(server, client);
    }
    const one = await this.record.place(client, wish);
    if (one.status === 202) {
      const givers = this.#givenBy.get(one.order!.id) ?? new Set();
      this.#givenBy.set(one.order!.id, givers.add(server));
    }
    return one;
  }

  /** Waits until every 202 that a living process owes is decided; returns the faults in words. */
  async verdict(saleId: string, perBuyer: number, withinMs = 60_000) {
    let orders: Order[] = [];
    let open: string[] = [];
    const owedByLiving = (id: string): boolean => [...this.#givenBy.get(id)!].some((server) => !this.#dead.has(server));
    const ended = await until('every queued order ends', withinMs, async () => {
      orders = await ledgerOrders(this.server, saleId).catch(() => []);
      open = undecided(this.record.tries, orders);
      return open.every((id) => !owedByLiving(id));
    }).catch(() => false);
    // The pipe is empty.
    const sale = await until('nothing is queued', withinMs, async () => {
      const now = await saleNow(this.server, saleId).catch(() => null);
      return now?.items.every(({ queued }) => queued === 0) ? now : null;
    });
    orders = await ledgerOrders(this.server, saleId);
    const faults = {
      ...allFaults(sale, orders, this.record.tries, perBuyer),
      undecided: ended ? [] : open.filter(owedByLiving).slice(0, 5),
      strange: this.record.strange,
    };
    return { faults, orders, sale, lostWithProcess: open.length };
  }

  /** New buyers order until the sale is sold out, to exactly the last unit. */
  async buyTheRest(saleId: string, withinMs = 30_000): Promise<Sale> {
    // The gate may still be being rebuilt.
    await until('the sale sells again', withinMs, async () => {
      const one = await this.#try({ saleId, buyer: `late-${this.#late++}`, key: 'k' });
      return one.status === 201 || one.code === 'sold_out';
    });
    await crowdOf(this.#lateBuyers(), 48, async (buyer) => {
      const one = await this.#persist({ saleId, buyer, key: 'k' });
      return one.code !== 'sold_out';
    });
    return until('nothing is queued', withinMs, async () => {
      const now = await saleNow(this.server, saleId);
      return now.items.every(({ queued }) => queued === 0) ? now : null;
    });
  }

  *#lateBuyers(): Generator<string> {
    for (;;) yield `late-${this.#late++}`;
  }

  /** The answers by status and code, as text. */
  summary(): string {
    const counts = new Map<string, number>();
    for (const { status, code, replayed } of this.record.tries) {
      const name = code ?? (status === 0 ? 'no answer' : `${status}${replayed ? ' replayed' : ''}`);
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    return [...counts]
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, n]) => `${name} ${n}`)
      .join(', ');
  }

  close(): void {
    for (const client of this.#clients.values()) client.close();
  }
}

export const NO_SHOP_FAULTS = {
  counts: [],
  oversold: [],
  overLimit: [],
  lost: [],
  keys: [],
  undecided: [],
  strange: [],
};
