import { monitorEventLoopDelay } from 'node:perf_hooks';
import { createSigner } from 'fast-jwt';
import type { FastifyInstance } from 'fastify';
import Type from 'typebox';
import { Buyer, NoQuery } from '../../contract/schemas.ts';
import { ACCOUNT_PREFIX } from '../../model/account.ts';
import { iso } from '../../views/present.ts';
import { bodyBytesMax, type HttpContext } from '../context.ts';
import { invalid } from '../problem.ts';
import { problems, systemProblems } from '../responses.ts';

const DEMO_TOKEN_SECONDS = 24 * 3600;

export function systemRoutes(app: FastifyInstance, { shop, options, auth, overload }: HttpContext): void {
  const tags = ['System'];

  app.get(
    '/healthz',
    {
      schema: {
        tags,
        summary: 'Check that the process is alive',
        response: { 200: Type.Object({ status: Type.Literal('ok') }), ...systemProblems() },
      },
    },
    () => ({ status: 'ok' as const }),
  );

  const Readiness = Type.Object({
    status: Type.Unsafe<'ok' | 'unavailable'>({ type: 'string', enum: ['ok', 'unavailable'] }),
    parts: Type.Object({
      gate: Type.String(),
      pipe: Type.String(),
      ledger: Type.String(),
      http: Type.Optional(Type.String({ description: 'Why requests are refused now, if they are' })),
    }),
  });
  app.get(
    '/readyz',
    {
      schema: {
        tags,
        summary: 'Check that the shop can take orders; each part says ok, or why not',
        response: { ...systemProblems(), 200: Readiness, 503: Readiness },
      },
    },
    (request, reply) => {
      const readiness = shop.readiness();
      // As for any other request: the two must not disagree.
      const http = overload.reasonFor(request.raw);
      if (http !== null) {
        return reply.code(503).send({ status: 'unavailable' as const, parts: { ...readiness.parts, http } });
      }
      return reply.code(readiness.status === 'ok' ? 200 : 503).send(readiness);
    },
  );

  const loop = monitorEventLoopDelay({ resolution: 10 });
  loop.enable();
  app.addHook('onClose', async () => loop.disable());
  let measured: unknown = null;
  app.get(
    '/metrics',
    {
      schema: {
        tags,
        summary: 'Get Prometheus metrics',
        'x-security': options.metricsPublic ? [] : [{ admin: [] }],
        response: {
          200: { description: 'Prometheus text', content: { 'text/plain': { schema: Type.String() } } },
          ...systemProblems('unauthenticated', 'forbidden', 'invalid_request', 'rate_limited'),
        },
      },
      onRequest: async (request) => {
        if (!options.metricsPublic) auth.admin(request);
      },
    },
    async (_, reply) => {
      const { metrics } = shop.get();
      if (measured !== metrics) {
        measured = metrics;
        metrics.eventLoopDelay(() => {
          const read = { p50: loop.percentile(50) / 1e6, p99: loop.percentile(99) / 1e6, max: loop.max / 1e6 };
          loop.reset();
          return read;
        });
      }
      return reply.header('content-type', metrics.registry.contentType).send(await metrics.registry.metrics());
    },
  );
}

/** The server's clock, and tokens in a demo. */
export function timeRoutes(app: FastifyInstance, { options, runtime }: HttpContext): void {
  const tags = ['System'];

  app.get(
    '/v1/time',
    {
      schema: {
        tags,
        summary: 'Get the server’s time, by which sales open',
        querystring: NoQuery,
        response: { 200: Type.Object({ now: Type.String({ format: 'date-time' }) }), ...problems('invalid_request') },
      },
    },
    (_, reply) => reply.header('cache-control', 'no-store').send({ now: iso(runtime.clock.now()) }),
  );

  const { demo } = options;
  if (demo !== null) {
    const sign = createSigner({
      key: demo.secret,
      algorithm: 'HS256',
      expiresIn: DEMO_TOKEN_SECONDS * 1000,
    });
    const body = Type.Object({ user: Buyer }, { additionalProperties: false, examples: [{ user: 'alice' }] });
    app.post<{ Body: { user: string } }>(
      '/v1/demo/tokens',
      {
        bodyLimit: bodyBytesMax(body),
        schema: {
          tags,
          summary: 'Create a buyer’s token for trying things out (only with --demo)',
          querystring: NoQuery,
          body,
          response: {
            201: Type.Object({ token: Type.String() }),
            ...problems('malformed_json', 'body_too_large', 'unsupported_media_type', 'invalid_request'),
          },
        },
      },
      (request, reply) => {
        const { user } = request.body;
        if (user.startsWith(ACCOUNT_PREFIX)) throw invalid('/user', `must not begin with ${ACCOUNT_PREFIX}`);
        return reply.code(201).send({ token: sign({ sub: user }) });
      },
    );
  }
}
