import type { FastifyInstance, FastifyRequest } from 'fastify';
import Type, { type Static } from 'typebox';
import { digestOf } from '../../base/idempotency.ts';
import { isId } from '../../base/ids.ts';
import * as S from '../../contract/schemas.ts';
import type { Actor, KeyedCall, WebhookDelivery, WebhookEndpoint } from '../../ledger/port.ts';
import { DELIVERY_STATES, WEBHOOK_BOUNDS, WEBHOOK_EVENTS, type WebhookEvent } from '../../model/webhook.ts';
import { iso } from '../../views/present.ts';
import type { HttpContext } from '../context.ts';
import { Keyed } from '../keyed.ts';
import { HttpProblem, invalid } from '../problem.ts';
import { actorOf, page, pageOf } from '../request.ts';
import { problems } from '../responses.ts';

const Event = Type.Unsafe<WebhookEvent>({ type: 'string', enum: [...WEBHOOK_EVENTS] });

const NewWebhook = Type.Object(
  {
    url: Type.String({
      minLength: 1,
      maxLength: WEBHOOK_BOUNDS.urlLengthMax,
      format: 'uri',
      description:
        'http: or https:, without user, password or fragment; the address must be public unless WEBHOOKS_PRIVATE=on (demo: on)',
    }),
    events: Type.Array(Event, { minItems: 1, maxItems: WEBHOOK_EVENTS.length, uniqueItems: true }),
  },
  {
    additionalProperties: false,
    // A loopback address, because people try it out with a server on their own machine.
    examples: [{ url: 'http://127.0.0.1:3000/hooks/doorbuster', events: ['order.paid', 'order.refunded'] }],
  },
);

const Webhook = Type.Object({
  id: S.Id,
  url: Type.String(),
  events: Type.Array(Event),
  state: Type.Unsafe<'active' | 'gone'>({
    type: 'string',
    enum: ['active', 'gone'],
    description: '`gone`: the endpoint answered 410, and gets nothing any more',
  }),
  reason: nullable(Type.String({ description: 'Why it is gone' })),
  createdAt: S.Time,
});

const CreatedWebhook = Type.Object({
  ...Webhook.properties,
  secret: Type.String({ description: 'Signs what is sent. Shown only in this response: store it' }),
});

const Delivery = Type.Object({
  id: S.Id,
  eventId: Type.String({ description: 'The `id` in the body that is sent: the same at every attempt' }),
  type: Event,
  orderId: S.Id,
  state: Type.Unsafe<string>({ type: 'string', enum: [...DELIVERY_STATES] }),
  tries: Type.Integer({ minimum: 0 }),
  lastStatus: Type.Unsafe<number | null>({
    type: ['integer', 'null'],
    description: 'HTTP status of the last answer, if there was one',
  }),
  lastError: nullable(Type.String()),
  nextAt: nullable(
    Type.String({
      description: 'The next attempt; null while pending: an older event of the order must be delivered first',
    }),
  ),
  createdAt: S.Time,
  doneAt: nullable(Type.String()),
});

const BODY = ['malformed_json', 'body_too_large', 'unsupported_media_type', 'invalid_request'] as const;
const KEYED = ['idempotency_key_reused', 'idempotency_in_flight'] as const;
const ADMIN = ['unauthenticated', 'forbidden'] as const;

/** Webhook endpoints of the shop's own systems, and their deliveries: for admins. */
export function webhookRoutes(app: FastifyInstance, context: HttpContext): void {
  const { shop, auth } = context;
  const keyed = new Keyed(context);
  const params = S.OfId;
  const headers = S.KeyHeaders;
  const ops = { tags: ['Operations'], 'x-security': [{ admin: [] }] };
  const onRequest = async (request: FastifyRequest): Promise<void> => void auth.admin(request);

  app.get<{ Querystring: S.AskedPage }>(
    '/v1/ops/webhooks',
    {
      schema: {
        ...ops,
        summary: 'List webhook endpoints, newest first',
        querystring: S.SalesQuery,
        response: { 200: S.listOf(Webhook), ...problems(...ADMIN, 'invalid_request') },
      },
      onRequest,
    },
    (request) =>
      page(pageOf(request.query), async (asked) => (await shop.get().webhooks.endpoints.list(asked)).map(present)),
  );

  app.post<{ Body: Static<typeof NewWebhook> }>(
    '/v1/ops/webhooks',
    {
      schema: {
        ...ops,
        summary: 'Create a webhook endpoint, which receives order events from now on; its secret is shown once',
        headers,
        querystring: S.NoQuery,
        body: NewWebhook,
        response: { 201: CreatedWebhook, ...problems(...ADMIN, ...KEYED, ...BODY) },
      },
      onRequest,
    },
    (request, reply) =>
      keyed.run(request, reply, {
        operation: 'webhook.create',
        subject: '',
        see: async () => adminOf(request),
        act: (by, call) => shop.get().webhooks.endpoints.create(request.body, by, call && madeWith(call)),
        answer: async (result) => {
          if (result.ok) return { status: 201, body: { ...present(result.endpoint), secret: result.endpoint.secret } };
          if (result.code === 'idempotency_key_reused') throw new HttpProblem(result.code);
          throw invalid('/url', result.message);
        },
      }),
  );

  app.delete<{ Params: { id: string } }>(
    '/v1/ops/webhooks/:id',
    {
      schema: {
        ...ops,
        summary: 'Delete a webhook endpoint and its deliveries',
        params,
        querystring: S.NoQuery,
        response: { 204: { type: 'null', description: 'Deleted' }, ...problems(...ADMIN, 'not_found', ...BODY) },
      },
      onRequest,
    },
    async (request, reply) => {
      if (!(await shop.get().webhooks.endpoints.delete(request.params.id, adminOf(request)))) throw unknown('webhook');
      return reply.code(204).send();
    },
  );

  app.get<{ Params: { id: string }; Querystring: S.AskedPage }>(
    '/v1/ops/webhooks/:id/deliveries',
    {
      schema: {
        ...ops,
        summary: 'List an endpoint’s deliveries, newest first; kept for 7 days after they are done',
        params,
        querystring: S.SalesQuery,
        response: { 200: S.listOf(Delivery), ...problems(...ADMIN, 'not_found', 'invalid_request') },
      },
      onRequest,
    },
    (request) =>
      page(pageOf(request.query), async (asked) => {
        const deliveries = await shop.get().webhooks.endpoints.deliveries(request.params.id, asked);
        if (deliveries === null) throw unknown('webhook');
        return deliveries.map(presentDelivery);
      }),
  );

  app.post<{ Params: { id: string } }>(
    '/v1/ops/webhooks/deliveries/:id/redeliver',
    {
      schema: {
        ...ops,
        summary: 'Send a delivery again, with the same event id',
        params,
        headers,
        querystring: S.NoQuery,
        body: S.Nothing,
        response: {
          202: { ...S.Nothing, description: 'On its way' },
          ...problems(...ADMIN, 'not_found', 'webhook_gone', ...KEYED, ...BODY),
        },
      },
      onRequest,
      preValidation: async (request) => {
        if (request.body === undefined) request.body = {};
      },
    },
    (request, reply) =>
      keyed.run(request, reply, {
        operation: 'webhook.redeliver',
        subject: request.params.id,
        see: async () => {
          if (!isId(request.params.id)) throw unknown('delivery');
          return adminOf(request);
        },
        act: (by) => shop.get().webhooks.endpoints.redeliver(request.params.id, by),
        answer: async (outcome) => {
          if (outcome === 'unknown') throw unknown('delivery');
          if (outcome === 'gone') throw new HttpProblem('webhook_gone');
          return { status: 202, body: {} };
        },
      }),
  );

  function adminOf(request: FastifyRequest): Actor {
    return actorOf(auth.asAdmin(request), request);
  }
}

/** Identifies the call by its key, so that a retry after a lost answer creates no second endpoint. */
function madeWith({ caller, actingFor, key }: KeyedCall): string {
  return actingFor === null ? digestOf(caller, key) : digestOf(caller, key, actingFor);
}

function present({ id, url, events, state, reason, createdAtMs }: WebhookEndpoint) {
  return { id, url, events: [...events], state, reason, createdAt: iso(createdAtMs) };
}

function presentDelivery(delivery: WebhookDelivery) {
  const { id, eventId, type, orderId, state, tries, lastStatus, lastError, nextAtMs, createdAtMs, doneAtMs } = delivery;
  return {
    id,
    eventId,
    type,
    orderId,
    state,
    tries,
    lastStatus,
    lastError,
    nextAt: nextAtMs === null ? null : iso(nextAtMs),
    createdAt: iso(createdAtMs),
    doneAt: doneAtMs === null ? null : iso(doneAtMs),
  };
}

function unknown(what: string): HttpProblem {
  return new HttpProblem('not_found', `there is no such ${what}`);
}

/** Not a union, as in contract/schemas.ts: the serialiser would try each branch. */
function nullable(of: Type.TString) {
  return Type.Unsafe<string | null>({ ...of, type: ['string', 'null'] });
}
