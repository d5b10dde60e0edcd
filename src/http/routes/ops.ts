import type { FastifyInstance, FastifyRequest } from 'fastify';
import Type from 'typebox';
import * as S from '../../contract/schemas.ts';
import type { OrderMessage } from '../../model/order.ts';
import type { DeadLetter as Letter } from '../../pipe/port.ts';
import { iso, presentReport } from '../../views/present.ts';
import type { HttpContext } from '../context.ts';
import { HttpProblem } from '../problem.ts';
import { actorOf, page, pageOf } from '../request.ts';
import { problems } from '../responses.ts';

/** The order's id. A message that could not be parsed has none: then the id of its stream entry, or of the broker's message. */
const LetterId = Type.String({ pattern: '^[0-9A-Za-z._-]{1,300}$' });

const LettersQuery = Type.Object(
  { limit: S.PageQuery.limit, cursor: Type.Optional(LetterId) },
  { additionalProperties: false },
);

const AuditQuery = Type.Object(
  {
    ...S.PageQuery,
    subject: Type.Optional(Type.String({ ...S.Subject, description: '`order:<id>`, `sale:<id>`, …' })),
  },
  { additionalProperties: false },
);

const DeadLetter = Type.Object({
  id: LetterId,
  saleId: S.nullable(S.Id),
  buyer: Type.String(),
  item: Type.String(),
  quantity: Type.Integer(),
  error: Type.String({ description: 'Why the ledger could not store it at the last attempt' }),
  attempts: Type.Integer(),
  diedAt: S.Time,
});

/** Problems with a body; also possible on a route that expects none. */
const BODY = ['malformed_json', 'body_too_large', 'unsupported_media_type'] as const;

/** Operations: for admins. */
export function opsRoutes(app: FastifyInstance, { shop, auth }: HttpContext): void {
  const tags = ['Operations'];
  const admin = { 'x-security': [{ admin: [] }] };
  const params = Type.Object({ id: LetterId });
  const refusals = ['unauthenticated', 'forbidden', 'not_found', 'invalid_request'] as const;

  app.get<{ Querystring: S.AskedPage }>(
    '/v1/ops/dead-letters',
    {
      schema: {
        tags,
        ...admin,
        summary: 'List orders’ messages that the ledger could not store, newest first',
        querystring: LettersQuery,
        response: { 200: S.listOf(DeadLetter), ...problems('unauthenticated', 'forbidden', 'invalid_request') },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    (request) => {
      const asked = { ...pageOf({ limit: request.query.limit }), before: request.query.cursor ?? null };
      return page(asked, async ({ limit, before }) => {
        const letters = (await shop.get().deadLetters?.list(limit, before)) ?? [];
        return letters.map(presentLetter);
      });
    },
  );

  app.get<{ Querystring: S.AskedPage & { subject?: string } }>(
    '/v1/ops/audit',
    {
      schema: {
        tags,
        ...admin,
        summary: 'List who changed sales, stock and orders, when and from where; newest first',
        querystring: AuditQuery,
        response: { 200: S.listOf(S.AuditEntry), ...problems('unauthenticated', 'forbidden', 'invalid_request') },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    (request) => {
      const { subject, ...asked } = request.query;
      const filter = subject === undefined ? {} : { subject };
      return page(pageOf(asked), async (wanted) =>
        (await shop.get().audit(filter, wanted)).map(({ atMs, detail, ...entry }) => ({
          ...entry,
          at: iso(atMs),
          detail: JSON.parse(detail) as unknown,
        })),
      );
    },
  );

  app.get(
    '/v1/ops/consistency',
    {
      schema: {
        tags,
        ...admin,
        summary: 'Get this process’s last report about stuck stock and unsettled payments',
        querystring: S.NoQuery,
        response: { 200: S.CheckReport, ...problems('unauthenticated', 'forbidden', 'invalid_request') },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async () => presentReport(await shop.get().lastCheck()),
  );

  app.post<{ Body: { saleId?: string } }>(
    '/v1/ops/consistency/check',
    {
      schema: {
        tags,
        ...admin,
        summary: 'Check now for stuck stock and unsettled payments, in all sales or in one',
        querystring: S.NoQuery,
        body: S.CheckBody,
        response: { 200: S.CheckReport, ...problems(...refusals, ...BODY) },
      },
      onRequest: async (request) => void auth.admin(request),
      preValidation: bodyMayBeMissing,
    },
    async (request) => {
      const { saleId } = request.body;
      if (saleId !== undefined && (await shop.get().getSale(saleId)) === null) {
        throw new HttpProblem('not_found', 'there is no such sale');
      }
      return presentReport(await shop.get().check(saleId ?? null));
    },
  );

  app.post<{ Params: { id: string } }>(
    '/v1/ops/dead-letters/:id/retry',
    {
      schema: {
        tags,
        ...admin,
        summary: 'Put a dead letter back into the pipe',
        params,
        querystring: S.NoQuery,
        body: S.Nothing,
        response: {
          202: { ...S.Nothing, description: 'On its way to the ledger' },
          ...problems(...refusals, ...BODY),
        },
      },
      onRequest: async (request) => void auth.admin(request),
      preValidation: bodyMayBeMissing,
    },
    async (request, reply) => {
      const { id } = request.params;
      if (!(await shop.get().retryDeadLetter(id, actorOf(auth.asAdmin(request), request)))) throw unknown();
      return reply.code(202).send({});
    },
  );

  app.delete<{ Params: { id: string } }>(
    '/v1/ops/dead-letters/:id',
    {
      schema: {
        tags,
        ...admin,
        summary: 'Delete a dead letter: reject its order (`undeliverable`), then free its units',
        params,
        querystring: S.NoQuery,
        response: { 204: { type: 'null', description: 'Deleted' }, ...problems(...refusals, ...BODY) },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const { id } = request.params;
      if (!(await shop.get().endDeadLetter(id, actorOf(auth.asAdmin(request), request)))) throw unknown();
      return reply.code(204).send();
    },
  );
}

async function bodyMayBeMissing(request: FastifyRequest): Promise<void> {
  if (request.body === undefined) request.body = {};
}

function unknown(): HttpProblem {
  return new HttpProblem('not_found', 'there is no such dead letter');
}

function presentLetter({ message, error, attempts, diedAtMs }: Letter<OrderMessage>) {
  const { orderId: id, saleId, buyer, itemCode: item, quantity } = message;
  // A message that is not ours belongs to no sale.
  return { id, saleId: saleId || null, buyer, item, quantity, error, attempts, diedAt: iso(diedAtMs) };
}
