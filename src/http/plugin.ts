import cors from '@fastify/cors';
import swagger from '@fastify/swagger';
import swaggerUi from '@fastify/swagger-ui';
import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { DoorbusterError, RetryableError, unavailable } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { VERSION } from '../base/version.ts';
import { compile, faultsOf } from '../contract/validate.ts';
import type { Series } from '../observe/fast-histogram.ts';
import { Auth } from './auth.ts';
import type { HttpContext, HttpOptions, ShopSource } from './context.ts';
import { Overload } from './overload.ts';
import { HttpProblem, PROBLEM_TYPE, PROBLEMS, type ProblemCode } from './problem.ts';
import { RateLimit } from './rate-limit.ts';
import { sendProblem } from './reply.ts';
import { orderRoutes } from './routes/orders.ts';
import { pageRoutes } from './routes/pages.ts';
import { saleRoutes } from './routes/sales.ts';
import { systemRoutes } from './routes/system.ts';
import { EventStreams } from './sse.ts';

export interface PluginOptions {
  shop: ShopSource;
  http: HttpOptions;
  runtime: Runtime;
}

const BODY_BYTES_MAX = 64 * 1024;

/** The API answers JSON: nothing it sends should ever be run, framed or sniffed by a browser. */
const SECURE_HEADERS = {
  'x-content-type-options': 'nosniff',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
};

/**
 * All routes of the HTTP contract as one encapsulated Fastify plugin: its parser, validator, error and not-found
 * handlers and hooks apply to its own routes and not to those of the application it is mounted in.
 */
export async function doorbusterRoutes(app: FastifyInstance, { shop, http, runtime }: PluginOptions): Promise<void> {
  const overload = new Overload(runtime, { inFlightMax: http.inFlightMax, delayMsMax: http.eventLoopDelayMsMax }, () =>
    shop.blockedMs(),
  );
  const streams = new EventStreams(runtime.timers, http.sseMax, (response) => overload.release(response));
  const context: HttpContext = {
    shop,
    options: http,
    runtime,
    auth: new Auth(http),
    overload,
    streams,
    buyerLimit: new RateLimit(runtime.clock, http.rateLimitBuyer),
  };
  app.addHook('preClose', async () => streams.close());
  app.addHook('onClose', async () => overload.close());

  app.setValidatorCompiler(({ schema, httpPart }) =>
    // Headers are judged where they are used; parameters are any text, and an unknown one is simply not found.
    httpPart === 'headers' || httpPart === 'params' ? () => true : compile(schema as object),
  );
  app.setErrorHandler((error, request, reply) => answerError(error as FastifyError, request, reply));
  parseJson(app);

  if (http.corsOrigins.length > 0) {
    await app.register(cors, {
      origin: http.corsOrigins,
      exposedHeaders: ['etag', 'idempotent-replayed', 'location', 'retry-after', 'doorbuster-next-cursor'],
    });
  }

  const addressLimit = http.rateLimitAddress === null ? null : new RateLimit(runtime.clock, http.rateLimitAddress);
  app.addHook('onRequest', (request, reply, done) => {
    overload.enter(reply.raw);
    reply.headers(SECURE_HEADERS);
    // Health and metrics must answer when nothing else does.
    if (!request.url.startsWith('/v1/')) return done();
    if (shop.closing()) {
      reply.header('connection', 'close');
      return done(unavailable('the shop is closing'));
    }
    const reason = overload.reason;
    if (reason !== null) return done(new RetryableError('overloaded', reason));
    if (addressLimit !== null) {
      const waitSeconds = addressLimit.take(request.ip);
      if (waitSeconds > 0) {
        const retry = { 'retry-after': String(waitSeconds) };
        return done(new HttpProblem('rate_limited', 'this address sends too many requests', undefined, retry));
      }
    }
    done();
  });
  measureRequests(app, shop);

  const routes = collectRoutes(app);
  await app.register(swagger, { openapi: openApiHead(), transform: plainPaths });
  await app.register(swaggerUi, {
    routePrefix: '/docs',
    staticCSP: true,
    // Swagger UI styles itself inline; everything it loads is ours.
    transformStaticCSP: (policy) => policy.replace(/style-src [^;]*/, "style-src 'self' 'unsafe-inline'"),
    theme: { title: 'Doorbuster API' },
  });
  systemRoutes(app, context);
  saleRoutes(app, context);
  orderRoutes(app, context);
  pageRoutes(app);
  let openApi: string | null = null;
  app.get('/openapi.json', { schema: { hide: true } }, (_, reply) => {
    openApi ??= JSON.stringify(app.swagger());
    return reply.header('content-type', 'application/json; charset=utf-8').send(openApi);
  });

  routes.refuseOtherMethods();
}

function answerError(error: FastifyError | Error, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  if (error instanceof HttpProblem) {
    if (error.headers) reply.headers(error.headers);
    return reply.code(PROBLEMS[error.code].status).header('content-type', PROBLEM_TYPE).send(error.body);
  }
  if (error instanceof RetryableError) {
    reply.header('retry-after', String(error.retryAfterSeconds));
    return sendProblem(reply, error.code === 'overloaded' ? 'overloaded' : 'unavailable', error.message);
  }
  if ('validation' in error && error.validation) {
    const errors = faultsOf(error.validation as never, error.validationContext ?? 'body');
    const first = errors[0];
    return sendProblem(reply, 'invalid_request', first && `${first.path}: ${first.message}`, { errors });
  }
  const known = 'code' in error && !(error instanceof DoorbusterError) ? FASTIFY_ERRORS[error.code] : undefined;
  if (known) return sendProblem(reply, known);
  if ((error as FastifyError).statusCode === 400) return sendProblem(reply, 'malformed_json');
  request.log.error({ err: error, reqId: request.id, method: request.method, url: request.url }, 'a request failed');
  return sendProblem(reply, 'internal');
}

const FASTIFY_ERRORS: Record<string, ProblemCode | undefined> = {
  FST_ERR_CTP_INVALID_JSON_BODY: 'malformed_json',
  FST_ERR_CTP_EMPTY_JSON_BODY: 'malformed_json',
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: 'malformed_json',
  FST_ERR_CTP_BODY_TOO_LARGE: 'body_too_large',
  FST_ERR_CTP_INVALID_MEDIA_TYPE: 'unsupported_media_type',
  FST_ERR_CTP_INVALID_TYPE: 'unsupported_media_type',
};

/** JSON and nothing else. An empty body is no body: whether one is needed is the route's schema to say. */
function parseJson(app: FastifyInstance): void {
  const parse = app.getDefaultJsonParser('error', 'error');
  app.removeAllContentTypeParsers();
  app.addContentTypeParser(
    'application/json',
    { parseAs: 'string', bodyLimit: BODY_BYTES_MAX },
    (request, body, done) => {
      if (body === '') done(null, undefined);
      else parse(request, body as string, done);
    },
  );
}

/** Latency per route and status. Series are found once per route and status, then kept. */
function measureRequests(app: FastifyInstance, shop: ShopSource): void {
  const known = new Map<unknown, Series[]>();
  app.addHook('onResponse', (request, reply, done) => {
    const route = request.routeOptions;
    let series = known.get(route.config);
    if (series === undefined) {
      series = [];
      known.set(route.config, series);
    }
    const status = reply.statusCode;
    let found = series[status];
    if (found === undefined) {
      try {
        found = shop.get().metrics.requests.series(request.method, route.url ?? 'unknown', String(status));
      } catch {
        return done();
      }
      series[status] = found;
    }
    found.observe(reply.elapsedTime / 1000);
    done();
  });
}

/** Fastify answers 404 to a known path with another method; the contract says 405, with `Allow`. */
function collectRoutes(app: FastifyInstance): { refuseOtherMethods(): void } {
  const methodsOf = new Map<string, Set<string>>();
  app.addHook('onRoute', ({ routePath, prefix, method }) => {
    if (prefix !== app.prefix || routePath.includes('*')) return;
    const methods = methodsOf.get(routePath) ?? new Set();
    methodsOf.set(routePath, methods);
    for (const one of [method].flat()) methods.add(one);
  });
  return {
    refuseOtherMethods: () => {
      for (const [url, known] of [...methodsOf]) {
        const allow = [...known].sort().join(', ');
        const method = (['GET', 'POST', 'PUT', 'PATCH', 'DELETE'] as const).filter((one) => !known.has(one));
        app.route({
          method: [...method],
          url,
          exposeHeadRoute: false,
          schema: { hide: true },
          // Before the body is read: nobody will look at it.
          onRequest: (_request, reply, done) => {
            reply.header('allow', allow);
            done(new HttpProblem('method_not_allowed', `this path takes ${allow}`));
          },
          handler: () => {},
        });
      }
    },
  };
}

function openApiHead() {
  return {
    openapi: '3.1.0',
    info: {
      title: 'Doorbuster',
      version: VERSION,
      description:
        'Sells scarce things to a crowd: never oversells, keeps a buyer to their limit, loses no order it accepted.',
    },
    components: {
      securitySchemes: {
        buyer: {
          type: 'http' as const,
          scheme: 'bearer',
          bearerFormat: 'JWT',
          description: 'HS256; `sub` is the buyer',
        },
        admin: { type: 'http' as const, scheme: 'bearer', description: 'An admin key' },
      },
    },
  };
}

/** Schemas as they are: the default transform would do the same, but also lists pages that are not the API. */
function plainPaths({ schema, url }: { schema: unknown; url: string }): { schema: never; url: string } {
  return { schema: schema as never, url };
}
