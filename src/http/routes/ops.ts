import type { FastifyInstance, FastifyRequest } from 'fastify';
import Type from 'typebox';
import * as S from '../../contract/schemas.ts';
import { iso, presentReport } from '../../views/present.ts';
import type { HttpContext } from '../context.ts';
import { HttpProblem } from '../problem.ts';
import { actorOf, page, pageOf } from '../request.ts';
import { problems } from '../responses.ts';

/**
 * The order's id, or one that names a like. A message that could not be parsed has neither: then the id of its stream entry, or of the
 * broker's message.
 */
const LetterId = Type.String({ pattern: '^[0-9A-Za-z._-]{1,300}$' });
const LettersCursor = Type.String({ pattern: '^[0-9A-Za-z._~-]{1,1500}$' });

const LettersQuery = Type.Object(
  { limit: S.PageQuery.limit, cursor: Type.Optional(LettersCursor) },
  { additionalProperties: false },
);

const AuditQuery = Type.Object(
  {
    ...S.PageQuery,
    subject: Type.Optional(Type.String({ ...S.Subject, description: '`order:<id>`, `sale:<id>`, …' })),
  },
  { additionalProperties: false },
);

/** One object and not a union of two: the serializer would run a validator for each branch. */
const DeadLetter = Type.Object({
  kind: S.words(['order', 'like']),
  id: LetterId,
  buyer: Type.String(),
  saleId: Type.Optional(S.nullable(Type.String({ ...S.Id, description: 'Of an order; null: it is none of ours' }))),
  item: Type.Optional(Type.String({ description: 'Of an order' })),
  quantity: Type.Optional(Type.Integer({ description: 'Of an order' })),
  subject: Type.Optional(
    S.nullable(Type.String({ description: 'Of a like: `post:<id>` or `comment:<id>`; null: nobody can read it' })),
  ),
  liked: Type.Optional(Type.Boolean({ description: 'Of a like; false: it is taken back' })),
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
        summary: 'List orders and likes that the ledger could not store, newest first',
        querystring: LettersQuery,
        response: { 200: S.listOf(DeadLetter), ...problems('unauthenticated', 'forbidden', 'invalid_request') },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    (request) => {
      const { limit, before } = pageOf(request.query);
      return shop.get().deadLetters.page(limit, before);
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
        summary: 'Get this process’s last report about stuck stock, unsettled payments and wrong counts',
        querystring: S.NoQuery,
        response: { 200: S.CheckReport, ...problems('unauthenticated', 'forbidden', 'invalid_request') },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async () => presentReport(await shop.get().lastCheck()),
  );

  app.post<{ Body: { saleId?: string; from?: string } }>(
    '/v1/ops/consistency/check',
    {
      schema: {
        tags,
        ...admin,
        summary: 'Check now for stuck stock and unsettled payments, in all sales or in one, and for wrong counts',
        querystring: S.NoQuery,
        body: S.CheckBody,
        response: { 200: S.CheckReport, ...problems(...refusals, ...BODY) },
      },
      onRequest: async (request) => void auth.admin(request),
      preValidation: bodyMayBeMissing,
    },
    async (request) => {
      const { saleId, from } = request.body;
      if (saleId !== undefined && (await shop.get().getSale(saleId)) === null) {
        throw new HttpProblem('not_found', 'there is no such sale');
      }
      return presentReport(await shop.get().check(saleId ?? null, from ?? null));
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
        summary: 'Delete a dead letter: reject its order (`undeliverable`) and free its units, or drop its like',
        params,
        querystring: S.NoQuery,
        response: {
          204: { type: 'null', description: 'Deleted' },
          ...problems(...refusals, 'version_conflict', ...BODY),
        },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    async (request, reply) => {
      const { id } = request.params;
      const ended = await shop.get().endDeadLetter(id, actorOf(auth.asAdmin(request), request));
      if (ended === false) throw unknown();
      if (ended !== true) {
        throw new HttpProblem('version_conflict', `decide the older letter of this like first: ${ended.older}`);
      }
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
