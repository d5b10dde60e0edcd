import type { IncomingMessage, ServerResponse } from 'node:http';
import Type from 'typebox';
import { parseAdminKeys, readConfig } from '../base/config.ts';
import { TerminalError } from '../base/errors.ts';
import { digestOf } from '../base/idempotency.ts';
import { isId } from '../base/ids.ts';
import type { Logger } from '../base/logger.ts';
import { type Runtime, systemRuntime } from '../base/runtime.ts';
import { itemPatchOf, newItemOf, newSaleOf, salePatchOf } from '../contract/convert.ts';
import * as S from '../contract/schemas.ts';
import { faults } from '../contract/validate.ts';
import { openShop } from '../engine/open.ts';
import type { Readiness, Shop } from '../engine/shop.ts';
import { HTTP_DEFAULTS, type HttpOptions } from '../http/context.ts';
import { PROBLEM_TYPE, problem } from '../http/problem.ts';
import type { Page, SaleChange } from '../ledger/port.ts';
import { actor } from '../model/actor.ts';
import type { Money } from '../model/money.ts';
import type { OrderRecord, OrderStatus } from '../model/order.ts';
import { BOUNDS, type Described, type DescribedPatch, type Fault } from '../model/sale.ts';
import type { SeatRowDefinition } from '../model/seat-map.ts';
import { KEY_PATTERN } from '../model/text.ts';
import type { EndResult } from '../orders/life/cancel.ts';
import type { PayResult } from '../orders/life/pay.ts';
import type { OrderResult } from '../orders/seat-orders.ts';
import type { PaymentProvider } from '../payments/port.ts';
import type { SaleEvent } from '../views/board.ts';
import type { ShopEvents } from '../views/events.ts';
import { type Consistency, iso, type Order, presentReport, type Sale } from '../views/present.ts';
import type { Listed } from '../views/social-pages.ts';
import { checkEvent, checkedOptions } from './options.ts';
import { type MoveResult, movedOrder, type Seats, type SeatsResult, seatsResult } from './seats.ts';
import { type SocialLibrary, socialLibrary } from './social.ts';

export interface DoorbusterOptions {
  /** The data folder of an embedded shop. One process uses it at a time. */
  data?: string;
  /** The ledger's database: `mysql:`, `mariadb:` or `postgres:`. Without `redis` the shop is one process. */
  database?: string;
  /** With `database`: a shop of many processes. `redis:`, `rediss:`, `redis+sentinel:` or `redis+cluster:`. */
  redis?: string;
  /** With `redis`: a broker that carries orders to the workers, `amqp:` or `kafka:`. Default: Redis Streams. */
  pipe?: string;
  /** With `redis`: the prefix of every key. Default `doorbuster`. */
  redisPrefix?: string;
  /** With `redis`: how long an order waits for its commit before it is left `queued`. Default 2 000 ms. */
  answerWithinMs?: number;
  /** With `redis`: run a worker, which writes orders to the ledger, in this process. Default true. */
  worker?: boolean;
  /** With `redis`: who decides likes, Redis (`counted`, the default) or the database (docs/guides/likes.md). */
  likes?: 'counted' | 'direct';
  /** Bring the schema of a shared database up to date. Without it, an old schema is refused. */
  migrate?: boolean;
  /** Your payment providers (docs/guides/payments.md). */
  providers?: PaymentProvider[];
  /** Allow webhooks to private addresses (docs/guides/webhooks.md). */
  webhooksPrivate?: boolean;
  /** Enable the sandbox payment provider, which takes no money. */
  sandbox?: boolean;
  /** For `handler()`: the admin key, or `alice:key1,bob:key2`. */
  adminKey?: string;
  /** For `handler()`: the secret that signs buyers' tokens. */
  authSecret?: string;
  /** For `handler()` and the Fastify plugin: overrides of the server's defaults (docs/reference/config.md). */
  http?: Partial<HttpSettings>;
  /** A pino logger. Default: no log. */
  log?: Logger;
}

export type HttpSettings = Omit<HttpOptions, 'authSecrets' | 'adminKeys' | 'demo'> & { trustProxy: boolean | string };

type Instant = string | number | Date;

/** Has either `stock` or `seats`. */
export interface NewItemInput extends Described {
  code: string;
  name: string;
  price: Money;
  stock?: number;
  seats?: SeatRowDefinition[];
}

export interface NewSaleInput extends Described {
  name: string;
  opensAt: Instant;
  closesAt: Instant;
  perBuyer?: number;
  payWithin?: number;
  /** When the event begins that it sells tickets for. No order depends on it. */
  startsAt?: Instant;
  venue?: string;
  items: NewItemInput[];
}

/** Null takes a text away. */
export interface SalePatchInput extends DescribedPatch {
  version: number;
  name?: string;
  opensAt?: Instant;
  closesAt?: Instant;
  perBuyer?: number;
  payWithin?: number;
  startsAt?: Instant | null;
  venue?: string | null;
}

/** Null takes a text away. */
export interface ItemPatchInput extends DescribedPatch {
  /** The sale's. */
  version: number;
  name?: string;
  /** Of orders that are placed from now on. */
  price?: Money;
  onSale?: boolean;
}

export interface PlaceInput {
  sale: string;
  buyer: string;
  /** May be left out if seats are named. */
  item?: string;
  /** Default 1, or the number of named seats. */
  quantity?: number;
  /** These very seats of one item, all or none: `Stalls/A/12`. */
  seats?: string[];
  /** Of a seated item: the best free seats that are all neighbours. */
  together?: boolean;
  /** An Idempotency-Key: the same key never buys twice. */
  key?: string;
}

export type OrderRefusal =
  | { ok: false; code: 'invalid_request'; errors: Fault[] }
  | { ok: false; code: 'sale_not_open' | 'sale_closed' | 'sale_paused'; opensAt: string; closesAt: string }
  | { ok: false; code: 'limit_reached'; orders: string[] }
  | { ok: false; code: 'seat_taken'; seats: string[] }
  | {
      ok: false;
      code: 'sold_out' | 'not_found' | 'not_together' | 'idempotency_key_reused' | 'idempotency_in_flight';
    };

export type Placed = { ok: true; order: Order; replayed: boolean } | OrderRefusal;

export type Paid =
  | { ok: true; state: 'paid'; order: Order }
  | { ok: true; state: 'pending'; order: Order; redirectUrl: string | null }
  | { ok: false; code: 'payment_failed'; order: Order; reason: string }
  | { ok: false; code: 'invalid_request'; errors: Fault[] }
  | {
      ok: false;
      code: 'order_not_payable' | 'payment_in_progress' | 'payment_blocked' | 'amount_mismatch' | 'not_found';
      order: Order | null;
    };

export type Ended =
  | { ok: true; order: Order }
  | {
      ok: false;
      code:
        | 'order_not_cancellable'
        | 'order_not_refundable'
        | 'payment_in_progress'
        | 'amount_mismatch'
        | 'idempotency_key_reused'
        | 'not_found';
      order: Order | null;
    }
  | { ok: false; code: 'invalid_request'; errors: Fault[] };

export type SaleResult =
  | { ok: true; sale: Sale }
  | {
      ok: false;
      code: 'not_found' | 'version_conflict' | 'insufficient_free' | 'sale_closed' | 'idempotency_key_reused';
    }
  | { ok: false; code: 'invalid_request'; errors: Fault[] };

export type SaleDeleteResult = { ok: true } | { ok: false; code: 'not_found' | 'sale_has_orders' };

/** A shop in this process. Refusals are values (`ok: false` and a code); failures, such as a full disk, are thrown. */
export interface Doorbuster extends AsyncDisposable, SocialLibrary {
  readonly sales: {
    create(sale: NewSaleInput): Promise<SaleResult>;
    get(saleId: string): Promise<Sale | null>;
    list(page?: { limit?: number; cursor?: string }): Promise<Listed<Sale>>;
    patch(saleId: string, patch: SalePatchInput): Promise<SaleResult>;
    /** Orders for it are taken when this resolves. */
    addItem(saleId: string, item: NewItemInput): Promise<SaleResult>;
    patchItem(saleId: string, item: string, patch: ItemPatchInput): Promise<SaleResult>;
    addStock(saleId: string, item: string, add: number): Promise<SaleResult>;
    pause(saleId: string): Promise<SaleResult>;
    resume(saleId: string): Promise<SaleResult>;
    close(saleId: string): Promise<SaleResult>;
    /** Only a sale that never had an order can be deleted. */
    delete(saleId: string): Promise<SaleDeleteResult>;
    /** The state of every seat, up to a second old. Null: there is no such sale. */
    seats(saleId: string): Promise<Seats | null>;
    /** Keeps seats back, or makes them free again: all or none. */
    blockSeats(saleId: string, seats: string[]): Promise<SeatsResult>;
    unblockSeats(saleId: string, seats: string[]): Promise<SeatsResult>;
    /** Calls `hear` with the sale's state and counts, and then with every change. Null: there is no such sale. */
    watch(saleId: string, hear: (event: SaleEvent) => void): Promise<(() => void) | null>;
  };
  readonly orders: {
    place(order: PlaceInput): Promise<Placed>;
    /** Pays with one of the shop's providers. Captures once, however often it is called. */
    pay(orderId: string, payment: { method: string; token?: string }): Promise<Paid>;
    /** Records a payment that you took yourself. The same reference again has no effect. */
    confirm(orderId: string, taken: { reference: string; amount: Money }): Promise<Paid>;
    cancel(orderId: string): Promise<Ended>;
    /**
     * Refunds the money, then frees the units. With `amount`, refunds a part, and the order stays paid. The same `key` never
     * refunds twice.
     */
    refund(orderId: string, part?: { amount?: Money; key?: string }): Promise<Ended>;
    /** Moves a reserved or paid order to other seats of its item: all or none. */
    move(orderId: string, seats: string[]): Promise<MoveResult>;
    /** Lets the order and its buyer pay again after too many declined payments. Null: there is no such order. */
    unblockPayments(orderId: string): Promise<Order | null>;
    get(orderId: string): Promise<Order | null>;
    list(filter?: {
      saleId?: string;
      buyer?: string;
      status?: OrderStatus;
      limit?: number;
      cursor?: string;
    }): Promise<Listed<Order>>;
  };
  on<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void;
  off<E extends keyof ShopEvents>(event: E, listener: (...args: ShopEvents[E]) => void): void;
  readiness(): Readiness;
  /**
   * Finds stuck stock and unsettled payments, in one sale or in all; without a sale also wrong counts of likes and comments. `from`: the
   * `next` of a report that is not null; then the rest of the counts is checked.
   */
  check(saleId?: string, from?: string): Promise<Consistency>;
  /** All HTTP routes as a listener for node:http or Express. Needs `adminKey` and `authSecret`. */
  handler(): (request: IncomingMessage, response: ServerResponse) => void;
  /** Refuses new calls, finishes those in flight, and closes the ledger. */
  close(): Promise<void>;
}

/** The engine behind a `Doorbuster`, for our Fastify plugin; not part of the public API. */
const engines = new WeakMap<Doorbuster, { shop: Shop; runtime: Runtime; options: DoorbusterOptions }>();

export function engineOf(shop: Doorbuster): { shop: Shop; runtime: Runtime; options: DoorbusterOptions } {
  const engine = engines.get(shop);
  if (engine === undefined) throw new TerminalError('bad_config', 'the given shop was not created by createDoorbuster');
  return engine;
}

const ACTOR = actor('library', 'app');
const CALLER = { by: ACTOR, keyed: null };

export async function createDoorbuster(given: DoorbusterOptions): Promise<Doorbuster> {
  const options = checkedOptions(given ?? {});
  const { data, database, redis, pipe, redisPrefix, answerWithinMs, likes, worker = true, migrate = false } = options;
  if (typeof (data ?? database) !== 'string' || (data ?? database) === '') {
    throw new TerminalError(
      'bad_config',
      'createDoorbuster needs { data }, a folder for the ledger, or { database }, the address of a database',
    );
  }
  const runtime = systemRuntime(options.log);
  // Checked like the server's settings.
  const flags = { data, 'database-url': database, 'redis-url': redis, 'pipe-url': pipe, 'redis-prefix': redisPrefix };
  const config = readConfig({ ...flags, likes, 'answer-within-ms': answerWithinMs?.toString() }, {});
  const { sandbox = false, providers = [], webhooksPrivate = false } = options;
  const settings = { ...config, paymentsSandbox: sandbox, webhooksPrivate };
  const shop = await openShop(settings, { worker, migrate, providers }, runtime);

  const changed = async (change: SaleChange): Promise<SaleResult> => {
    switch (change.outcome) {
      case 'changed':
        return { ok: true, sale: (await shop.getSaleNow(change.sale.id))! };
      case 'invalid_request':
        return { ok: false, code: 'invalid_request', errors: [{ path: change.path, message: change.message }] };
      case 'replayed':
        return { ok: true, sale: JSON.parse(change.answer) as Sale };
      default:
        return { ok: false, code: change.outcome };
    }
  };
  /** The current order, with its payment. */
  const now = async (order: OrderRecord): Promise<Order> => (await shop.getOrder(order.id)) ?? shop.present(order);
  const paid = async (result: PayResult): Promise<Paid> => {
    if (!result.ok) {
      if (result.code === 'unknown_method') {
        const errors = [{ path: '/method', message: 'is no payment provider of this shop' }];
        return { ok: false, code: 'invalid_request', errors };
      }
      const order = 'order' in result && result.order ? await now(result.order) : null;
      if (result.code === 'payment_failed')
        return { ok: false, code: result.code, order: order!, reason: result.reason };
      return { ok: false, code: result.code, order };
    }
    const order = await shop.present(result.order, result.attempt);
    if (result.state === 'paid') return { ok: true, state: 'paid', order };
    return { ok: true, state: 'pending', order, redirectUrl: result.redirectUrl };
  };
  const ended = async (result: EndResult): Promise<Ended> => {
    if (result.ok) return { ok: true, order: await now(result.order) };
    return { ok: false, code: result.code, order: 'order' in result && result.order ? await now(result.order) : null };
  };
  const listed = <T extends { id: string }>(rows: T[], limit: number): Listed<T> => ({
    data: rows.slice(0, limit),
    nextCursor: rows.length > limit ? rows[limit - 1]!.id : null,
  });
  let listener: Promise<(request: IncomingMessage, response: ServerResponse) => void> | null = null;
  let closeHttp = async (): Promise<void> => {};
  let closed: Promise<void> | null = null;

  const doorbuster: Doorbuster = {
    sales: {
      async create(input) {
        const body = withTimes(input) as S.NewSaleBody;
        const sale = faultless(S.NewSale, body) ?? newSaleOf(body);
        if (Array.isArray(sale)) return { ok: false, code: 'invalid_request', errors: sale };
        return changed(await shop.createSale(sale, CALLER));
      },
      get: (saleId) => shop.getSaleNow(saleId),
      async list(page) {
        const { limit, before } = pageOf(page ?? {});
        return listed(await shop.listSales({ limit: limit + 1, before }), limit);
      },
      async patch(saleId, input) {
        const body = withTimes(input) as S.SalePatchBody;
        const patch = faultless(S.SalePatch, body) ?? salePatchOf(body);
        if (Array.isArray(patch)) return { ok: false, code: 'invalid_request', errors: patch };
        return changed(await shop.patchSale(saleId, patch, body.version, CALLER));
      },
      async addItem(saleId, input) {
        const item = faultless(S.NewItem, input) ?? newItemOf(input as S.NewItemBody);
        if (Array.isArray(item)) return { ok: false, code: 'invalid_request', errors: item };
        return changed(await shop.addItem(saleId, item, CALLER));
      },
      async patchItem(saleId, item, input) {
        const patch = faultless(S.ItemPatch, input) ?? itemPatchOf(input as S.ItemPatchBody);
        if (Array.isArray(patch)) return { ok: false, code: 'invalid_request', errors: patch };
        return changed(await shop.patchItem(saleId, item, patch, input.version, CALLER));
      },
      async addStock(saleId, item, add) {
        const errors = faultless(S.StockChange, { add });
        if (errors) return { ok: false, code: 'invalid_request', errors };
        return changed(await shop.addStock(saleId, item, add, CALLER));
      },
      pause: async (saleId) => changed(await shop.setPaused(saleId, true, CALLER)),
      resume: async (saleId) => changed(await shop.setPaused(saleId, false, CALLER)),
      close: async (saleId) => changed(await shop.closeSale(saleId, CALLER)),
      async delete(saleId) {
        const outcome = await shop.deleteSale(saleId, CALLER);
        return outcome === 'deleted' ? { ok: true } : { ok: false, code: outcome };
      },
      async seats(saleId) {
        const answer = await shop.publicSeats(saleId);
        return answer && (JSON.parse(answer.body.toString()) as Seats);
      },
      blockSeats: (saleId, seats) => seatsResult(shop, saleId, seats, true, CALLER, changed),
      unblockSeats: (saleId, seats) => seatsResult(shop, saleId, seats, false, CALLER, changed),
      watch: (saleId, hear) => shop.watchSale(saleId, null, hear),
    },
    orders: {
      async place({ sale, buyer, item, quantity, seats, together, key }) {
        const wish = { sale, buyer, item, quantity, seats, together, key };
        const errors = faultless(
          PlaceBody,
          Object.fromEntries(Object.entries(wish).filter(([, one]) => one !== undefined)),
        );
        if (errors) return { ok: false, code: 'invalid_request', errors };
        const request = { saleId: sale, itemCode: item, buyer, quantity, seats, together, key: key ?? null };
        const result = await shop.place(request);
        if (!result.ok) return presentRefused(result);
        return { ok: true, order: await shop.present(result.order), replayed: result.replayed };
      },
      async pay(orderId, { method, token }) {
        const errors = faultless(S.PayOrder, { method, ...(token !== undefined && { token }) });
        if (errors) return { ok: false, code: 'invalid_request', errors };
        return await paid(await shop.payOrder(orderId, { method, token: token ?? null }, ACTOR));
      },
      async confirm(orderId, { reference, amount }) {
        const errors = faultless(S.ConfirmOrder, { reference, amount });
        if (errors) return { ok: false, code: 'invalid_request', errors };
        return await paid(await shop.confirmOrder(orderId, reference, amount, ACTOR));
      },
      cancel: async (orderId) => await ended(await shop.cancelOrder(orderId, ACTOR)),
      async refund(orderId, { amount, key } = {}) {
        const errors = faultless(RefundBody, { ...(amount && { amount }), ...(key !== undefined && { key }) });
        if (errors) return { ok: false, code: 'invalid_request', errors };
        const madeWith = key === undefined ? null : digestOf('library', 'refund', orderId, key);
        return await ended(await shop.refundOrder(orderId, ACTOR, { amount: amount ?? null, madeWith }));
      },
      move: (orderId, seats) => movedOrder(shop, orderId, seats, ACTOR),
      unblockPayments: (orderId) => shop.unblockPayments(orderId, ACTOR),
      get: (orderId) => shop.getOrder(orderId),
      async list({ limit: asked, cursor, ...filter } = {}) {
        const page = { ...(asked !== undefined && { limit: asked }), ...(cursor !== undefined && { cursor }) };
        const { limit, before } = pageOf(page);
        return listed(await shop.listOrders(filter, { limit: limit + 1, before }), limit);
      },
    },
    ...socialLibrary(shop.social, ACTOR),
    on(event, hear) {
      checkEvent(event, hear);
      shop.on(event, hear);
    },
    off: (event, hear) => shop.off(event, hear),
    readiness: () => shop.readiness(),
    check: async (saleId, from) => presentReport(await shop.check(saleId ?? null, from ?? null)),
    handler() {
      const http = httpOptions(options);
      listener ??= (async () => {
        // Loaded on demand: the engine does not need HTTP.
        const { createServer } = await import('../http/server.ts');
        const trustProxy = options.http?.trustProxy ?? false;
        const app = await createServer({ shop: sourceOf(shop), http, runtime, trustProxy });
        await app.ready();
        closeHttp = () => app.close();
        return (request, response) => app.routing(request, response);
      })();
      const ready = listener;
      return (request, response) => {
        if (alreadyRead(request)) answerAlreadyRead(response, runtime);
        else void ready.then((listen) => listen(request, response));
      };
    },
    close() {
      shop.stop();
      closed ??= closeHttp().then(() => shop.close());
      return closed;
    },
    [Symbol.asyncDispose]: () => doorbuster.close(),
  };
  engines.set(doorbuster, { shop, runtime, options });
  return doorbuster;
}

export function sourceOf(shop: Shop) {
  return {
    get: () => shop,
    readiness: () => shop.readiness(),
    closing: () => shop.closing,
    blockedMs: () => shop.blockedMs,
  };
}

export function httpOptions(options: DoorbusterOptions) {
  const { adminKey, authSecret } = options;
  if (!adminKey || !authSecret) {
    const missing = Object.entries({ adminKey, authSecret }).filter(([, value]) => !value);
    const words = missing.map(([name, value]) => `${name} is ${value === undefined ? 'undefined' : 'empty'}`);
    throw new TerminalError(
      'bad_config',
      `serving HTTP needs createDoorbuster({ adminKey, authSecret }): ${words.join(', ')}`,
    );
  }
  const { trustProxy: _, ...given } = options.http ?? {};
  return {
    ...HTTP_DEFAULTS,
    ...given,
    adminKeys: parseAdminKeys(adminKey),
    authSecrets: authSecret.split(',').map((s) => s.trim()),
  };
}

const PlaceBody = Type.Object({
  sale: Type.String(),
  buyer: S.Buyer,
  item: Type.Optional(Type.String()),
  quantity: Type.Optional(Type.Integer({ minimum: 1, maximum: BOUNDS.quantityMax })),
  seats: S.NewOrder.properties.seats,
  together: S.NewOrder.properties.together,
  key: Type.Optional(Type.String({ pattern: KEY_PATTERN })),
});

const RefundBody = Type.Object({
  ...S.RefundOrder.properties,
  key: Type.Optional(Type.String({ pattern: KEY_PATTERN })),
});

/** True if a parser in front of us (express.json) has read the body: we would wait for it for ever. */
function alreadyRead(request: IncomingMessage): boolean {
  const sent = request.headers['content-length'] ?? request.headers['transfer-encoding'] ?? '0';
  return sent !== '0' && request.readableEnded;
}

function answerAlreadyRead(response: ServerResponse, { log }: Runtime): void {
  const detail =
    'the body was read before shop.handler() saw it: mount the shop before express.json() and other parsers';
  log.error(detail);
  response.writeHead(500, { 'content-type': PROBLEM_TYPE }).end(problem('internal', detail));
}

function faultless(schema: object, value: unknown): Fault[] | null {
  const found = faults(schema, value);
  return found.length > 0 ? found : null;
}

/** The schemas describe JSON: turns a Date or a number of milliseconds into ISO 8601. */
function withTimes<T extends { opensAt?: Instant; closesAt?: Instant; startsAt?: Instant | null }>(input: T): object {
  return {
    ...input,
    ...(input.startsAt != null && { startsAt: timeText(input.startsAt) }),
    ...(input.opensAt !== undefined && { opensAt: timeText(input.opensAt) }),
    ...(input.closesAt !== undefined && { closesAt: timeText(input.closesAt) }),
  };
}

/** Leaves an invalid value for the schema to refuse. */
function timeText(at: Instant): unknown {
  if (typeof at !== 'number' && !(at instanceof Date)) return at;
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? 'not a time' : date.toISOString();
}

function pageOf({ limit = 50, cursor }: { limit?: number; cursor?: string }): Page {
  if (!Number.isInteger(limit) || limit < 1 || limit > 200) {
    throw new TerminalError('invalid_request', 'limit must be a whole number from 1 to 200');
  }
  if (cursor !== undefined && !isId(cursor))
    throw new TerminalError('invalid_request', 'cursor must be the nextCursor of an earlier page');
  return { limit, before: cursor ?? null };
}

function presentRefused(result: Exclude<OrderResult, { ok: true }>): OrderRefusal {
  switch (result.code) {
    case 'sale_not_open':
    case 'sale_closed':
    case 'sale_paused':
      return { ok: false, code: result.code, opensAt: iso(result.opensAtMs), closesAt: iso(result.closesAtMs) };
    case 'limit_reached':
      return { ok: false, code: result.code, orders: result.orderIds };
    case 'seat_taken':
    case 'invalid_request':
      return result;
    default:
      return { ok: false, code: result.code };
  }
}
