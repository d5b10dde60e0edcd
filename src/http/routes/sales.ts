import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import Type from 'typebox';
import { newSaleOf, salePatchOf } from '../../contract/convert.ts';
import * as S from '../../contract/schemas.ts';
import type { Caller } from '../../sales/manage.ts';
import type { SaleEvent } from '../../views/board.ts';
import type { PublicAnswer } from '../../views/public-answer.ts';
import type { HttpContext } from '../context.ts';
import { mountOf } from '../mount.ts';
import { HttpProblem } from '../problem.ts';
import { answerChange, isKnown } from '../reply.ts';
import { actorOf, keyedBy, pageOf } from '../request.ts';
import { problems } from '../responses.ts';
import { eventText, lastEventId } from '../sse.ts';

const SALE_BODY_BYTES_MAX = 4 * 1024 * 1024;

interface OfSale {
  Params: { id: string };
}

const BODY = ['malformed_json', 'body_too_large', 'unsupported_media_type', 'invalid_request'] as const;
const ADMIN = ['unauthenticated', 'forbidden'] as const;

export function saleRoutes(app: FastifyInstance, { shop, auth, streams }: HttpContext): void {
  const tags = ['Sales'];
  const admin = { 'x-security': [{ admin: [] }], tags, querystring: S.NoQuery };
  const params = S.OfId;
  const headers = S.KeyHeaders;

  const callerOf = (request: FastifyRequest): Caller => {
    const who = auth.asAdmin(request);
    return { by: actorOf(who, request), keyed: keyedBy(who, request) };
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
        response: { 201: S.Sale, ...problems(...BODY, ...ADMIN, 'idempotency_key_reused') },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const sale = newSaleOf(request.body);
      if (Array.isArray(sale)) {
        throw new HttpProblem('invalid_request', `${sale[0]!.path}: ${sale[0]!.message}`, { errors: sale });
      }
      const change = await shop.get().createSale(sale, callerOf(request));
      if ('answer' in change) {
        const { id } = JSON.parse(change.answer) as { id: string };
        reply.header('location', `${mountOf(request)}${app.prefix}/v1/sales/${id}`);
      }
      return answerChange(reply, change, 201);
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
        summary: 'Change a sale; lowering perBuyer takes no order away',
        params,
        body: S.SalePatch,
        response: { 200: S.Sale, ...problems(...BODY, ...ADMIN, 'not_found', 'version_conflict', 'sale_closed') },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const caller = { by: actorOf(auth.asAdmin(request), request), keyed: null };
      return answerChange(
        reply,
        await shop.get().patchSale(request.params.id, salePatchOf(request.body), request.body.version, caller),
      );
    },
  );

  app.post<{ Params: { id: string; code: string }; Body: S.StockChangeBody }>(
    '/v1/sales/:id/items/:code/stock',
    {
      schema: {
        ...admin,
        summary: 'Add or remove units, even while the sale is open',
        params: Type.Object({ id: S.GivenId, code: S.Code }),
        headers,
        body: S.StockChange,
        response: {
          200: S.Sale,
          ...problems(...BODY, ...ADMIN, 'not_found', 'insufficient_free', 'sale_closed', 'idempotency_key_reused'),
        },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const { id, code } = request.params;
      return answerChange(reply, await shop.get().addStock(id, code, request.body.add, callerOf(request)));
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
            ...problems(...BODY, ...ADMIN, 'not_found', 'sale_closed', 'idempotency_key_reused'),
          },
        },
        onRequest: async (request) => void auth.admin(request),
        preValidation: async (request) => {
          if (request.body === undefined) request.body = {};
        },
      },
      async (request, reply) => {
        return answerChange(reply, await run(request.params.id, callerOf(request)));
      },
    );
  }

  app.get<OfSale>(
    '/v1/sales/:id/events',
    {
      exposeHeadRoute: false,
      schema: {
        tags,
        summary: 'Follow a sale by server-sent events: `stock` (an item’s counts) and `state`',
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
        const stop = await shop
          .get()
          .streamSale(request.params.id, lastEventId(request), (events) => stream.write(textOf(events)));
        if (stop === null) throw new HttpProblem('not_found', 'there is no such sale');
        return stop;
      }),
  );
}

const texts = new WeakMap<readonly SaleEvent[], Buffer>();

/** Serialised events, made once for all readers that get the same ones. */
function textOf(events: readonly SaleEvent[]): Buffer {
  let text = texts.get(events);
  if (text === undefined) {
    const one = (event: SaleEvent): string =>
      eventText(event.type, event.id, event.type === 'stock' ? event.item : { state: event.state });
    text = Buffer.from(events.map(one).join(''));
    texts.set(events, text);
  }
  return text;
}

const NOT_MODIFIED = Type.Null({ description: 'Not modified' });

/** With an ETag and a second of caching, so that a cache in front of us serves a crowd that reloads. */
function publicRead(request: FastifyRequest, reply: FastifyReply, { body, tag }: PublicAnswer): FastifyReply {
  reply.header('etag', tag).header('cache-control', 'public, max-age=1');
  if (isKnown(request, tag)) return reply.code(304).send();
  return reply.header('content-type', 'application/json; charset=utf-8').send(body);
}
