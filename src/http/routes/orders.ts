import type { Socket } from 'node:net';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import Type from 'typebox';
import { isId } from '../../base/ids.ts';
import { Turn } from '../../base/turn.ts';
import * as S from '../../contract/schemas.ts';
import { hasEnded, type OrderStatus } from '../../model/order.ts';
import type { OrderRequest, OrderResult } from '../../orders/seat-orders.ts';
import { iso, type Order, presentOrder, type Sale } from '../../views/present.ts';
import type { OrderingIdentity } from '../auth.ts';
import { readsOfList } from '../buyer-limits.ts';
import { bodyBytesMax, type HttpContext } from '../context.ts';
import { mountOf } from '../mount.ts';
import { HttpProblem } from '../problem.ts';
import { refuse, sendProblem } from '../reply.ts';
import { actorOf, keyOf, page, pageOf } from '../request.ts';
import { problems } from '../responses.ts';
import { type EventStream, lastEventId } from '../sse.ts';

/** The client of a request: aborted once its connection is closed. */
class Client {
  readonly #socket: Socket;

  constructor(socket: Socket) {
    this.#socket = socket;
  }

  get aborted(): boolean {
    return this.#socket.destroyed;
  }
}

/** The caller, set once the token is verified. A symbol, so that it cannot clash with names of the host application. */
const WHO = Symbol('doorbuster.who');

declare module 'fastify' {
  interface FastifyRequest {
    [WHO]: OrderingIdentity | null;
  }
}

export function orderRoutes(app: FastifyInstance, { shop, auth, streams, buyerLimits, runtime }: HttpContext): void {
  const tags = ['Orders'];
  const params = S.OfId;
  const turn = new Turn(runtime.timers);
  app.decorateRequest(WHO, null);

  /** One after the other: each order of a page may be of another sale. */
  const salesOf = async (orders: readonly Order[]): Promise<Map<string, Sale>> => {
    const sales = new Map<string, Sale>();
    for (const saleId of new Set(orders.map((order) => order.saleId))) {
      const found = await shop.get().getSale(saleId);
      if (found !== null) sales.set(saleId, found.sale);
    }
    return sales;
  };

  app.post<{ Params: { id: string }; Body: S.NewOrderBody }>(
    '/v1/sales/:id/orders',
    {
      bodyLimit: bodyBytesMax(S.NewOrder),
      schema: {
        tags,
        'x-security': [{ buyer: [] }, { admin: [] }],
        summary: 'Place an order; 201 means that it is committed in the ledger',
        params,
        querystring: S.NoQuery,
        headers: Type.Object({ ...S.KeyHeader, ...S.BuyerHeader }),
        body: S.NewOrder,
        response: {
          201: S.Order,
          202: {
            ...S.Order,
            description: 'Queued (distributed only). Poll it or follow its events: it becomes `reserved` or `rejected`',
          },
          ...problems(
            'malformed_json',
            'unauthenticated',
            'forbidden',
            'not_found',
            'sale_not_open',
            'sale_closed',
            'sale_paused',
            'limit_reached',
            'seat_taken',
            'sold_out',
            'not_together',
            'idempotency_in_flight',
            'body_too_large',
            'unsupported_media_type',
            'invalid_request',
            'idempotency_key_reused',
            'rate_limited',
          ),
        },
      },
      // A callback and not a promise: this is the hot path.
      onRequest: (request, _reply, done) => {
        try {
          const who = auth.ordering(request);
          request[WHO] = who;
          buyerLimits.take('orders', who.buyer);
        } catch (error) {
          done(error as Error);
          return;
        }
        done();
      },
    },
    async (request, reply) => {
      const { item, quantity, seats, together } = request.body;
      const who = request[WHO]!;
      const asked: OrderRequest = {
        saleId: request.params.id,
        itemCode: item,
        buyer: who.buyer,
        quantity,
        seats,
        together,
        key: keyOf(request),
        by: who.admin === null ? undefined : actorOf(who, request),
        signal: new Client(request.raw.socket),
      };
      const tooMany = buyerLimits.tooManyPlaced(who.buyer);
      const result = tooMany === null ? await shop.get().place(asked) : await shop.get().placedBefore(asked);
      if (result === null) throw tooMany;
      if (result.ok && !result.replayed) buyerLimits.placed(who.buyer);
      // All refusals of one turn are sent together, like the orders of one commit: a write that wakes a sleeping client
      // costs ten times as much as one that does not (docs/internals/design-notes.md).
      if (!result.ok) await turn.end();
      if (!result.ok) return answerRefused(reply, result);
      const { order, replayed } = result;
      if (replayed) reply.header('idempotent-replayed', 'true');
      return reply
        .code(order.status === 'queued' ? 202 : 201)
        .header('location', `${mountOf(request)}${app.prefix}/v1/orders/${order.id}`)
        .send(order.seats === undefined ? presentOrder(order) : await shop.get().present(order));
    },
  );

  app.get<{ Params: { id: string } }>(
    '/v1/orders/:id',
    {
      schema: {
        tags,
        'x-security': [{ buyer: [] }, { admin: [] }],
        summary: 'Get an order, as its buyer or an admin',
        params,
        querystring: S.NoQuery,
        response: { 200: S.Order, ...problems('unauthenticated', 'not_found', 'invalid_request') },
      },
      onRequest: async (request) => buyerLimits.take('reads', auth.anyone(request).buyer),
    },
    async (request) => visibleOrder(request),
  );

  app.get<{ Querystring: S.AskedPage & { saleId?: string; status?: OrderStatus; buyer?: string } }>(
    '/v1/orders',
    {
      schema: {
        tags,
        'x-security': [{ buyer: [] }, { admin: [] }],
        summary: 'List orders, newest first: a buyer’s own, or all for an admin (JSON, or text/csv by Accept)',
        querystring: S.OrdersQuery,
        response: {
          200: {
            description: 'A page of orders',
            content: {
              'application/json': { schema: S.listOf(S.Order) },
              'text/csv': { schema: Type.String() },
            },
          },
          ...problems('unauthenticated', 'forbidden', 'invalid_request'),
        },
      },
      onRequest: async (request) =>
        buyerLimits.take('reads', auth.anyone(request).buyer, readsOfList(request.query.limit)),
    },
    async (request, reply) => {
      const { saleId, status, buyer, ...asked } = request.query;
      const who = auth.anyone(request);
      if (buyer !== undefined && who.buyer !== null && buyer !== who.buyer) {
        throw new HttpProblem('forbidden', 'only an admin may list another buyer’s orders');
      }
      const of = who.buyer ?? buyer;
      const filter = {
        ...(saleId !== undefined && { saleId }),
        ...(status !== undefined && { status }),
        ...(of !== undefined && { buyer: of }),
      };
      const found = await page(pageOf(asked), (wanted) => shop.get().listOrders(filter, wanted));
      if (wantsCsv(request)) return sendCsv(reply, found, await salesOf(found.data));
      return reply.header('content-type', 'application/json; charset=utf-8').send(found);
    },
  );

  app.get<{ Params: { id: string } }>(
    '/v1/orders/:id/events',
    {
      exposeHeadRoute: false,
      schema: {
        tags,
        'x-security': [{ buyer: [] }, { admin: [] }],
        summary: 'Follow an order by server-sent events: one `order` event per change, until the order ends',
        params,
        querystring: S.NoQuery,
        response: {
          200: { description: 'Events', content: { 'text/event-stream': { schema: Type.String() } } },
          ...problems('unauthenticated', 'not_found', 'invalid_request'),
        },
      },
      onRequest: [streams.alone, async (request) => buyerLimits.take('reads', auth.anyone(request).buyer)],
    },
    (request, reply) => {
      const { admin, buyer } = auth.anyone(request);
      const watch = async (stream: EventStream): Promise<() => void> => {
        await visibleOrder(request);
        // The version that the reader already has. With any other id the reader gets the current order.
        let seen = lastEventId(request);
        const stop = await shop.get().watchOrder(request.params.id, (order) => {
          const id = String(order.version);
          if (id !== seen) stream.send('order', id, order);
          seen = id;
          if (hasEnded(order.status)) stream.end();
        });
        if (stop === null) throw new HttpProblem('not_found', 'there is no such order');
        return stop;
      };
      return streams.serve('order', request, reply, watch, admin === null ? buyer : null);
    },
  );

  /** Another buyer's order is answered 404, so that nobody can find out whether it exists. */
  async function visibleOrder(request: FastifyRequest): Promise<Order> {
    const who = auth.anyone(request);
    const { id } = request.params as { id: string };
    const order = isId(id) ? await shop.get().getOrder(id) : null;
    const mine = order !== null && (order.buyer === who.buyer || (who.admin !== null && who.buyer === null));
    if (!mine) throw new HttpProblem('not_found', 'there is no such order');
    return order;
  }
}

function answerRefused(reply: FastifyReply, result: Exclude<OrderResult, { ok: true }>): FastifyReply {
  switch (result.code) {
    case 'sale_not_open':
    case 'sale_closed':
    case 'sale_paused': {
      const window = { opensAt: iso(result.opensAtMs), closesAt: iso(result.closesAtMs) };
      return sendProblem(reply, result.code, undefined, window);
    }
    case 'limit_reached': {
      const detail = result.perBuyer > 0 ? `at most ${result.perBuyer} for each buyer` : undefined;
      return sendProblem(reply, 'limit_reached', detail, { orders: result.orderIds });
    }
    case 'idempotency_in_flight':
      reply.header('retry-after', String(result.retryAfterSeconds));
      return refuse(reply, result.code);
    case 'seat_taken':
      return sendProblem(reply, result.code, undefined, { seats: result.seats });
    case 'invalid_request': {
      const { errors } = result;
      return sendProblem(reply, result.code, `${errors[0]!.path}: ${errors[0]!.message}`, { errors });
    }
    case 'not_found':
      throw new HttpProblem('not_found', 'there is no such sale, item or seat');
    default:
      return refuse(reply, result.code);
  }
}

/** True if Accept names text/csv with a quality no lower than that of JSON. */
function wantsCsv(request: FastifyRequest): boolean {
  const likes = (type: string): number => {
    for (const part of (request.headers.accept ?? '').toLowerCase().split(',')) {
      const [name, ...parameters] = part.split(';').map((text) => text.trim());
      if (name !== type) continue;
      const quality = parameters.find((text) => text.startsWith('q='));
      return quality === undefined ? 1 : Number(quality.slice(2)) || 0;
    }
    return 0;
  };
  const csv = likes('text/csv');
  return csv > 0 && csv >= likes('application/json');
}

const CSV_COLUMNS = [
  'id',
  'saleId',
  'buyer',
  'item',
  'quantity',
  'seats',
  'amount',
  'currency',
  'status',
  'reason',
  'expiresAt',
  'createdAt',
  'updatedAt',
  'version',
  'paymentState',
  'paymentProvider',
  'paymentReference',
  'refunded',
  'saleName',
  'itemName',
  'startsAt',
  'venue',
];

/** RFC 4180. The same page as the JSON list. The next cursor is in a header, because a row would look like an order. */
function sendCsv(
  reply: FastifyReply,
  { data, nextCursor }: { data: Order[]; nextCursor: string | null },
  sales: ReadonlyMap<string, Sale>,
): FastifyReply {
  const rows = data.map((order) => {
    const sale = sales.get(order.saleId);
    return [
      order.id,
      order.saleId,
      order.buyer,
      order.item,
      order.quantity,
      order.seats.join(' '),
      order.amount.amount,
      order.amount.currency,
      order.status,
      order.reason ?? '',
      order.expiresAt ?? '',
      order.createdAt,
      order.updatedAt,
      order.version,
      order.payment?.state ?? '',
      order.payment?.provider ?? '',
      order.payment?.reference ?? '',
      order.payment?.refunded?.amount ?? '',
      sale?.name ?? '',
      sale?.items.find(({ code }) => code === order.item)?.name ?? '',
      sale?.startsAt ?? '',
      sale?.venue ?? '',
    ]
      .map(csvField)
      .join(',');
  });
  if (nextCursor !== null) reply.header('doorbuster-next-cursor', nextCursor);
  return reply
    .header('content-type', 'text/csv; charset=utf-8')
    .send(`${[CSV_COLUMNS.join(','), ...rows].join('\r\n')}\r\n`);
}

/**
 * A quote keeps a spreadsheet from running a text as a formula. A field with a semicolon is quoted, too, because
 * spreadsheets separate fields by it where the comma is the decimal separator.
 */
function csvField(value: string | number): string {
  let text = String(value);
  if (typeof value === 'string' && /^[=+\-@＝＋－＠]/.test(text)) text = `'${text}`;
  return /[",;\t\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
