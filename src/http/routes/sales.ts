import type { FastifyInstance, FastifyRequest } from 'fastify';
import Type from 'typebox';
import { itemPatchOf, newItemOf, newSaleOf, salePatchOf } from '../../contract/convert.ts';
import * as S from '../../contract/schemas.ts';
import type { KeyedCall, SaleChange } from '../../ledger/port.ts';
import type { Fault } from '../../model/sale.ts';
import type { Caller } from '../../sales/manage.ts';
import type { SaleEvent } from '../../views/board.ts';
import type { HttpContext } from '../context.ts';
import { Keyed } from '../keyed.ts';
import { mountOf } from '../mount.ts';
import { HttpProblem } from '../problem.ts';
import { answerChange, publicRead } from '../reply.ts';
import { actorOf, pageOf } from '../request.ts';
import { NOT_MODIFIED, problems } from '../responses.ts';
import { eventText, lastEventId } from '../sse.ts';

const SALE_BODY_BYTES_MAX = 4 * 1024 * 1024;

interface OfSale {
  Params: { id: string };
}

interface OfItem {
  Params: { id: string; code: string };
}

const OF_ITEM = Type.Object({ id: S.GivenId, code: S.Code });
const BODY = ['malformed_json', 'body_too_large', 'unsupported_media_type', 'invalid_request'] as const;
const ADMIN = ['unauthenticated', 'forbidden'] as const;
const KEYED = ['idempotency_key_reused', 'idempotency_in_flight'] as const;

export function saleRoutes(app: FastifyInstance, context: HttpContext): void {
  const { shop, auth, streams } = context;
  const keyed = new Keyed(context);
  const tags = ['Sales'];
  const admin = { 'x-security': [{ admin: [] }], tags, querystring: S.NoQuery };
  const params = S.OfId;
  const headers = S.KeyHeaders;

  /** The ledger stores the key with the change, and answers repeats from there. */
  const change = (
    request: FastifyRequest,
    deed: Pick<KeyedCall, 'operation' | 'subject'>,
    run: (caller: Caller) => Promise<SaleChange>,
    body?: unknown,
  ): Promise<SaleChange> => {
    const who = auth.asAdmin(request);
    const call = keyed.callOf(who, request, deed, body);
    return keyed.inTurn(call, () => run({ by: actorOf(who, request), keyed: call }));
  };

  app.post<{ Body: S.NewSaleBody }>(
    '/v1/sales',
    {
      bodyLimit: SALE_BODY_BYTES_MAX,
      schema: {
        ...admin,
        summary: 'Create a sale',
        headers,
        body: S.NewSale,
        response: { 201: S.Sale, ...problems(...BODY, ...ADMIN, ...KEYED) },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const sale = faultless(newSaleOf(request.body));
      const deed = { operation: 'sale.create', subject: '' };
      // The same instant in another time zone is the same sale.
      const made = await change(request, deed, (caller) => shop.get().createSale(sale, caller), sale);
      if ('answer' in made) {
        const { id } = JSON.parse(made.answer) as { id: string };
        reply.header('location', `${mountOf(request)}${app.prefix}/v1/sales/${id}`);
      }
      return answerChange(reply, made, 201);
    },
  );

  app.get<{ Querystring: S.AskedPage }>(
    '/v1/sales',
    {
      schema: {
        tags,
        summary: 'List sales, newest first',
        querystring: S.SalesQuery,
        response: { 200: S.listOf(S.Sale), 304: NOT_MODIFIED, ...problems('invalid_request') },
      },
    },
    async (request, reply) => publicRead(request, reply, await shop.get().publicSales(pageOf(request.query))),
  );

  app.get<OfSale>(
    '/v1/sales/:id',
    {
      schema: {
        tags,
        summary: 'Get a sale with its counts (up to a second old)',
        params,
        querystring: S.NoQuery,
        response: { 200: S.Sale, 304: NOT_MODIFIED, ...problems('not_found', 'invalid_request') },
      },
    },
    async (request, reply) => {
      const found = await shop.get().publicSale(request.params.id);
      if (found === null) throw new HttpProblem('not_found', 'there is no such sale');
      return publicRead(request, reply, found);
    },
  );

  app.patch<OfSale & { Body: S.SalePatchBody }>(
    '/v1/sales/:id',
    {
      schema: {
        ...admin,
        summary: 'Change a sale; null takes a text away; lowering perBuyer takes no order away',
        params,
        body: S.SalePatch,
        response: { 200: S.Sale, ...problems(...BODY, ...ADMIN, 'not_found', 'version_conflict', 'sale_closed') },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const caller = { by: actorOf(auth.asAdmin(request), request), keyed: null };
      const patch = faultless(salePatchOf(request.body));
      return answerChange(reply, await shop.get().patchSale(request.params.id, patch, request.body.version, caller));
    },
  );

  app.delete<OfSale>(
    '/v1/sales/:id',
    {
      schema: {
        ...admin,
        summary: 'Delete a sale that has no order yet',
        params,
        response: {
          204: { type: 'null', description: 'Deleted' },
          ...problems(...ADMIN, 'not_found', 'sale_has_orders', ...BODY),
        },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const caller = { by: actorOf(auth.asAdmin(request), request) };
      const outcome = await shop.get().deleteSale(request.params.id, caller);
      if (outcome === 'not_found') throw new HttpProblem('not_found', 'there is no such sale');
      if (outcome === 'sale_has_orders') throw new HttpProblem('sale_has_orders');
      return reply.code(204).send();
    },
  );

  app.post<OfSale & { Body: S.NewItemBody }>(
    '/v1/sales/:id/items',
    {
      bodyLimit: SALE_BODY_BYTES_MAX,
      schema: {
        ...admin,
        summary: 'Add an item to a sale, even while it is open',
        params,
        headers,
        body: S.NewItem,
        response: { 201: S.Sale, ...problems(...BODY, ...ADMIN, 'not_found', 'sale_closed', ...KEYED) },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const { id } = request.params;
      const item = faultless(newItemOf(request.body));
      const deed = { operation: 'sale.add_item', subject: id };
      const made = await change(request, deed, (caller) => shop.get().addItem(id, item, caller));
      return answerChange(reply, made, 201);
    },
  );

  app.patch<OfItem & { Body: S.ItemPatchBody }>(
    '/v1/sales/:id/items/:code',
    {
      schema: {
        ...admin,
        summary: 'Change an item; a new price touches no existing order; null takes a text away',
        params: OF_ITEM,
        body: S.ItemPatch,
        response: { 200: S.Sale, ...problems(...BODY, ...ADMIN, 'not_found', 'version_conflict', 'sale_closed') },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const { id, code } = request.params;
      const caller = { by: actorOf(auth.asAdmin(request), request), keyed: null };
      const patch = faultless(itemPatchOf(request.body));
      return answerChange(reply, await shop.get().patchItem(id, code, patch, request.body.version, caller));
    },
  );

  app.post<OfItem & { Body: S.StockChangeBody }>(
    '/v1/sales/:id/items/:code/stock',
    {
      schema: {
        ...admin,
        summary: 'Add or remove units, even while the sale is open',
        params: OF_ITEM,
        headers,
        body: S.StockChange,
        response: {
          200: S.Sale,
          ...problems(...BODY, ...ADMIN, 'not_found', 'insufficient_free', 'sale_closed', ...KEYED),
        },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const { id, code } = request.params;
      const deed = { operation: 'sale.stock', subject: `${id}/${code}` };
      const add = (caller: Caller) => shop.get().addStock(id, code, request.body.add, caller);
      return answerChange(reply, await change(request, deed, add));
    },
  );

  const verbs = {
    pause: {
      summary: 'Pause a sale, effective immediately',
      run: (id: string, by: Caller) => shop.get().setPaused(id, true, by),
    },
    resume: { summary: 'Resume a sale', run: (id: string, by: Caller) => shop.get().setPaused(id, false, by) },
    close: { summary: 'Close a sale for good', run: (id: string, by: Caller) => shop.get().closeSale(id, by) },
  };
  for (const [verb, { summary, run }] of Object.entries(verbs)) {
    app.post<OfSale>(
      `/v1/sales/:id/${verb}`,
      {
        schema: {
          ...admin,
          summary,
          params,
          headers,
          body: S.Nothing,
          response: {
            200: S.Sale,
            ...problems(...BODY, ...ADMIN, 'not_found', 'sale_closed', ...KEYED),
          },
        },
        onRequest: async (request) => void auth.admin(request),
        preValidation: async (request) => {
          if (request.body === undefined) request.body = {};
        },
      },
      async (request, reply) => {
        const { id } = request.params;
        const deed = { operation: `sale.${verb}`, subject: id };
        return answerChange(reply, await change(request, deed, (caller) => run(id, caller)));
      },
    );
  }

  app.get<OfSale>(
    '/v1/sales/:id/events',
    {
      exposeHeadRoute: false,
      schema: {
        tags,
        summary: 'Follow a sale by server-sent events: `stock` (an item’s counts), `state` and `seats`',
        params,
        querystring: S.NoQuery,
        response: {
          200: { description: 'Events', content: { 'text/event-stream': { schema: Type.String() } } },
          ...problems('not_found', 'invalid_request'),
        },
      },
      onRequest: streams.alone,
    },
    (request, reply) =>
      streams.serve('public', request, reply, async (stream) => {
        const stop = await shop.get().streamSale(
          request.params.id,
          lastEventId(request),
          (events) => stream.write(textOf(events)),
          // The client connects again, and is told that there is no such sale.
          () => stream.end(),
        );
        if (stop === null) throw new HttpProblem('not_found', 'there is no such sale');
        return stop;
      }),
  );
}

function faultless<T>(converted: T | Fault[]): T {
  if (!Array.isArray(converted)) return converted;
  const [first] = converted as Fault[];
  throw new HttpProblem('invalid_request', `${first!.path}: ${first!.message}`, { errors: converted });
}

const texts = new WeakMap<readonly SaleEvent[], Buffer>();

/** Serialised events, made once for all readers that get the same ones. */
function textOf(events: readonly SaleEvent[]): Buffer {
  let text = texts.get(events);
  if (text === undefined) {
    const one = (event: SaleEvent): string => eventText(event.type, event.id, dataOf(event));
    text = Buffer.from(events.map(one).join(''));
    texts.set(events, text);
  }
  return text;
}

function dataOf(event: SaleEvent): unknown {
  switch (event.type) {
    case 'stock':
      return event.item;
    case 'state':
      return { state: event.state };
    case 'seats':
      return event.seats;
  }
}
