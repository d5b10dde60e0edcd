import type { FastifyInstance, FastifyRequest } from 'fastify';
import Type, { type Static } from 'typebox';
import { digestOf } from '../../base/idempotency.ts';
import { isId } from '../../base/ids.ts';
import * as S from '../../contract/schemas.ts';
import { iso } from '../../engine/present.ts';
import type { Actor, KeyedCall, WebhookDelivery, WebhookEndpoint } from '../../ledger/port.ts';
import { DELIVERY_STATES, WEBHOOK_BOUNDS, WEBHOOK_EVENTS, type WebhookEvent } from '../../model/webhook.ts';
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
        'http: or https:, without user, password and fragment; at a public address, unless WEBHOOKS_PRIVATE=on (demo: on)',
    }),
    events: Type.Array(Event, { minItems: 1, maxItems: WEBHOOK_EVENTS.length, uniqueItems: true }),
  },
  {
    additionalProperties: false,
    // On this machine, where whoever tries it out has a server of their own.
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
    description: '`gone`: it answered 410, and nothing is sent to it any more',
  }),
  reason: nullable(Type.String({ description: 'Why it is gone' })),
  createdAt: S.Time,
});

const CreatedWebhook = Type.Object({
  ...Webhook.properties,
  secret: Type.String({ description: 'What is sent is signed with it. It is shown here, and never again' }),
});

const Delivery = Type.Object({
  id: S.Id,
  eventId: Type.String({ description: '`id` in what is sent: the same at every try' }),
  type: Event,
  orderId: S.Id,
  state: Type.Unsafe<string>({ type: 'string', enum: [...DELIVERY_STATES] }),
  tries: Type.Integer({ minimum: 0 }),
  lastStatus: Type.Unsafe<number | null>({
    type: ['integer', 'null'],
    description: 'Of the last answer, if there was one',
  }),
  lastError: nullable(Type.String()),
  nextAt: nullable(Type.String({ description: 'Pending without it: an older event of the order comes first' })),
  createdAt: S.Time,
  doneAt: nullable(Type.String()),
});

const BODY = ['malformed_json', 'body_too_large', 'unsupported_media_type', 'invalid_request'] as const;
const KEYED = ['idempotency_key_reused', 'idempotency_in_flight'] as const;
const ADMIN = ['unauthenticated', 'forbidden'] as const;

/** Endpoints of the shop's own systems, and what was sent to them: for admins. */
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
        summary: 'Endpoints that are told of orders, newest first',
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
        summary: 'An endpoint that is told of orders from now on; its secret is shown once',
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
        summary: 'Nothing is sent to it any more; its deliveries are forgotten',
        params,
        querystring: S.NoQuery,
        response: { 204: { type: 'null', description: 'Gone' }, ...problems(...ADMIN, 'not_found', ...BODY) },
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
        summary: 'What was or will be sent to it, newest first; kept for 7 days after its end',
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
        summary: 'Sends it once more, with the same event id',
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

/** A call whose answer was lost makes no second endpoint: the ledger knows the first by this. */
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

/** As in contract/schemas.ts: the serialiser would try each branch of a union. */
function nullable(of: Type.TString) {
  return Type.Unsafe<string | null>({ ...of, type: ['string', 'null'] });
}
