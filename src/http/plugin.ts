import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import cors from '@fastify/cors';
import swagger from '@fastify/swagger';
import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest, onResponseHookHandler } from 'fastify';
import { boundedLog } from '../base/bounded-log.ts';
import { DoorbusterError, RetryableError, unavailable } from '../base/errors.ts';
import type { Logger } from '../base/logger.ts';
import { isLoopback } from '../base/loopback.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import { compile, compileQuery, faultsOf } from '../contract/validate.ts';
import type { Series } from '../observe/fast-histogram.ts';
import { addressKey, addressOf } from './address.ts';
import { Auth } from './auth.ts';
import { BuyerLimits } from './buyer-limits.ts';
import { BODY_BYTES_MAX, type HttpContext, type HttpOptions, type ShopSource } from './context.ts';
import { OPENAPI, openApiOf } from './openapi.ts';
import { Overload } from './overload.ts';
import { PasswordLimits } from './password-limits.ts';
import { HttpProblem, PROBLEM_TYPE, PROBLEMS, type ProblemCode, SlowedProblem } from './problem.ts';
import { RateLimit } from './rate-limit.ts';
import { SECURE_HEADERS, sendProblem } from './reply.ts';
import { accountRoutes } from './routes/accounts.ts';
import { documentRoutes } from './routes/documents.ts';
import { opsRoutes } from './routes/ops.ts';
import { orderRoutes } from './routes/orders.ts';
import { pageRoutes } from './routes/pages.ts';
import { paymentRoutes } from './routes/payments.ts';
import { saleRoutes } from './routes/sales.ts';
import { seatRoutes } from './routes/seats.ts';
import { socialRoutes } from './routes/social.ts';
import { systemRoutes, timeRoutes } from './routes/system.ts';
import { webhookRoutes } from './routes/webhooks.ts';
import { Serializers } from './serializers.ts';
import { SignIns } from './sign-ins.ts';
import { Sockets } from './sockets.ts';
import { EventStreams } from './sse.ts';

export interface PluginOptions {
  shop: ShopSource;
  http: HttpOptions;
  runtime: Runtime;
}

/** A URL may be 16 KB long. */
const LOGGED_URL_LENGTH_MAX = 200;

/**
 * All routes of the HTTP contract as one encapsulated Fastify plugin: its parser, validator, error and not-found
 * handlers and hooks apply to its own routes and not to those of the application it is mounted in.
 */
export async function doorbusterRoutes(app: FastifyInstance, { shop, http, runtime }: PluginOptions): Promise<AllowOf> {
  // The log of the host application may be unbounded.
  const log = boundedLog(app.log, runtime.clock, runtime.timers);
  const overload = new Overload(runtime, { inFlightMax: http.inFlightMax, delayMsMax: http.eventLoopDelayMsMax }, () =>
    shop.blockedMs(),
  );
  const sockets = new Sockets(overload, { ...runtime, log });
  const streams = new EventStreams(
    runtime.timers,
    { max: http.sseMax, perAddressMax: http.ssePerAddressMax },
    overload,
  );
  const context: HttpContext = {
    shop,
    options: http,
    runtime,
    auth: new Auth(http, new SignIns(runtime.clock, log)),
    overload,
    streams,
    buyerLimits: new BuyerLimits(runtime.clock, http),
    passwordLimits: new PasswordLimits(runtime.clock, log),
  };
  app.addHook('preClose', async () => streams.close());
  app.addHook('onClose', async () => {
    overload.close();
    sockets.close();
  });

  app.setValidatorCompiler(({ schema, httpPart }) =>
    // Headers are validated where they are used. A path parameter may be any text: an unknown id is answered 404.
    httpPart === 'headers' || httpPart === 'params'
      ? () => true
      : httpPart === 'querystring'
        ? compileQuery(schema as object)
        : compile(schema as object),
  );
  const serializers = new Serializers();
  app.setSerializerCompiler(({ schema }) => serializers.of(schema as object));
  app.setErrorHandler((error, request, reply) => {
    if (!(error instanceof SlowedProblem)) return answerError(error as FastifyError, request, reply, log);
    // While the answer is delayed the request causes no work, so it must not count as in flight.
    overload.answered(request.raw);
    return sleep(runtime.timers, error.holdMs).then(() => {
      error.released();
      return answerError(error, request, reply, log);
    });
  });
  parseJson(app, overload);

  app.addHook('onRequest', (request, reply, done) => {
    if (!sockets.enter(request.raw, reply.raw)) {
      // The socket is closed: nobody would get an answer.
      reply.hijack();
      return;
    }
    reply.headers(SECURE_HEADERS);
    if (hasTwoHosts(request.raw))
      done(new HttpProblem('malformed_json', 'a request must have exactly one Host header'));
    else done();
  });
  app.addHook('onSend', (request, reply, payload, done) => {
    // Fastify drops the body of a HEAD after this hook.
    sockets.answered(request.raw, reply.raw, request.method === 'HEAD' ? null : payload);
    done(null, payload);
  });

  if (http.corsOrigins.length > 0) {
    await app.register(cors, {
      origin: http.corsOrigins,
      methods: ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'],
      exposedHeaders: ['etag', 'idempotent-replayed', 'location', 'retry-after', 'doorbuster-next-cursor'],
    });
  }

  if (http.demo !== null) refuseOtherHosts(app, http.demo.hosts);
  measureRequests(app, shop);

  const routes = collectRoutes(app);
  await app.register(swagger, OPENAPI);
  systemRoutes(app, context);
  // In a scope of their own: health and metrics must answer even when these routes refuse.
  await app.register(async (api) => {
    refuseWhenTooMuch(api, context);
    timeRoutes(api, context);
    saleRoutes(api, context);
    seatRoutes(api, context);
    orderRoutes(api, context);
    paymentRoutes(api, context);
    opsRoutes(api, context);
    webhookRoutes(api, context);
    socialRoutes(api, context);
    if (http.accounts) accountRoutes(api, context);
    pageRoutes(api);
    await documentRoutes(api, () => openApiOf(app));
  });

  return routes.refuseOtherMethods();
}

/**
 * Prevents DNS rebinding: a page of any site can point its own host name at this machine, and could then read what a demo
 * gives to anybody. Its requests carry that name in `Host`.
 */
function refuseOtherHosts(app: FastifyInstance, allowed: readonly string[]): void {
  app.addHook('onRequest', (request, _reply, done) => {
    const host = (request.headers.host ?? 'localhost').toLowerCase();
    const name = /^(\[[^\]]*\]|[^:]*)(?::\d*)?$/.exec(host)?.[1] ?? '';
    if (isLoopback(name) || allowed.includes(name) || allowed.includes(host)) return done();
    const detail =
      'a demo serves this machine only: use a loopback address such as 127.0.0.1, or add the host to DEMO_HOSTS';
    done(new HttpProblem('forbidden', detail));
  });
}

/** Refuses before the token is verified: while closing, under overload, and when an address exceeds its rate. */
function refuseWhenTooMuch(api: FastifyInstance, { shop, options, runtime, overload }: HttpContext): void {
  const addressLimit =
    options.rateLimitAddress === null ? null : new RateLimit(runtime.clock, options.rateLimitAddress);
  api.addHook('onRequest', (request, reply, done) => {
    if (shop.closing()) {
      reply.header('connection', 'close');
      return done(unavailable('the shop is closing'));
    }
    const reason = overload.reasonFor(request.raw);
    if (reason !== null) return done(new RetryableError('overloaded', reason));
    const waitSeconds = addressLimit === null ? 0 : addressLimit.take(addressKey(addressOf(request)));
    if (waitSeconds > 0) {
      const retry = { 'retry-after': String(waitSeconds) };
      return done(new HttpProblem('rate_limited', 'this address sends too many requests per second', undefined, retry));
    }
    done();
  });
}

function answerError(
  error: FastifyError | Error,
  request: FastifyRequest,
  reply: FastifyReply,
  log: Pick<Logger, 'error'>,
): FastifyReply {
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
  if (known === 'body_too_large') {
    // Fastify would close the connection while the client is still sending, so that it never sees the answer. sockets.ts
    // bounds how much of the body is read and discarded instead.
    reply.removeHeader('connection');
  }
  if (known) return sendProblem(reply, known);
  const { statusCode = 500 } = error as FastifyError;
  if (statusCode === 400) return sendProblem(reply, 'malformed_json');
  if (statusCode === 404) return sendProblem(reply, 'not_found');
  // Other 4xx of a library are the caller's fault and not worth a log line.
  if (statusCode > 400 && statusCode < 500) return sendProblem(reply, 'invalid_request');
  reply.header('x-request-id', request.id);
  const { method } = request;
  const url = request.url.slice(0, LOGGED_URL_LENGTH_MAX);
  log.error({ err: error, reqId: request.id, method, url }, 'a request failed');
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

const ENCODED = 'send the body uncompressed, without Content-Encoding';

function isEncoded({ headers }: FastifyRequest): boolean {
  const encoding = headers['content-encoding'];
  return encoding !== undefined && encoding.toLowerCase() !== 'identity';
}

/** Node keeps only the first of several Host headers; a proxy in front may have checked another one. */
function hasTwoHosts({ rawHeaders }: IncomingMessage): boolean {
  let hosts = 0;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]!;
    if (name.length === 4 && name.toLowerCase() === 'host') hosts++;
  }
  return hosts > 1;
}

/** Accepts JSON only. An empty body counts as none; the route's schema says whether one is required. */
function parseJson(app: FastifyInstance, overload: Overload): void {
  const parse = app.getDefaultJsonParser('error', 'error');
  app.removeAllContentTypeParsers();
  app.addContentTypeParser(
    'application/json',
    { parseAs: 'buffer', bodyLimit: BODY_BYTES_MAX },
    (request, body, done) => {
      const bytes = body as Buffer;
      // The body has arrived in full: from here on the request causes work, unless the server is overloaded by now.
      overload.enter(request.raw);
      const reason = overload.reason;
      if (reason !== null) done(new RetryableError('overloaded', reason), undefined);
      else if (isEncoded(request)) done(new HttpProblem('unsupported_media_type', ENCODED), undefined);
      else if (bytes.length === 0) done(null, undefined);
      // Decoding would silently replace invalid bytes, and turn one name into another.
      else if (!isUtf8(bytes)) done(new HttpProblem('malformed_json', 'the body is not UTF-8'), undefined);
      else parse(request, bytes.toString('utf8'), done);
    },
  );
}

/** Measures latency per route and status. Each route keeps its own series, to save a look-up by name per request. */
function measureRequests(app: FastifyInstance, shop: ShopSource): void {
  app.addHook('onRoute', (route) => {
    const series: Series[] = [];
    const measure: onResponseHookHandler = (request, reply, done) => {
      const status = reply.statusCode;
      let found = series[status];
      if (found === undefined) {
        try {
          found = shop.get().metrics.requests.series(request.method, route.url, String(status));
        } catch {
          return done();
        }
        series[status] = found;
      }
      found.observe(reply.elapsedTime / 1000);
      done();
    };
    route.onResponse = [route.onResponse ?? [], measure].flat();
  });
}

/** The `Allow` header for a path of the plugin; null for any other path. */
export type AllowOf = (path: string) => string | null;

/** Answers 405 with `Allow` to a known path with a wrong method, where Fastify would answer 404. */
function collectRoutes(app: FastifyInstance): { refuseOtherMethods(): AllowOf } {
  const methodsOf = new Map<string, Set<string>>();
  app.addHook('onRoute', ({ url, method, schema }) => {
    // Fastify registers the root of a prefix with and without a slash, but may report only one of the two per method.
    const path = url.slice(app.prefix.length).replace(/\/$/, '') || '/';
    if (path === NO_YAML || schema === REFUSED) return;
    const methods = methodsOf.get(path) ?? new Set();
    methodsOf.set(path, methods);
    for (const one of [method].flat()) methods.add(one);
  });
  return {
    refuseOtherMethods: () => {
      const known = [...methodsOf].map(([path, methods]) => ({ path, methods, allow: [...methods].sort().join(', ') }));
      for (const { path, methods, allow } of known) {
        for (const url of path === DOCS ? [path, `${path}/`] : [path]) {
          app.route({
            method: app.supportedMethods.filter((one) => !methods.has(one)),
            url,
            exposeHeadRoute: false,
            schema: REFUSED,
            // In onRequest, so that the body is not read.
            onRequest: (_request, _reply, done) => done(notAllowed(allow)),
            handler: () => {},
          });
        }
      }
      const patterns = known.map(({ path, allow }) => ({
        allow,
        pattern: new RegExp(`^${path.replaceAll('.', '\\.').replaceAll(/:\w+/g, '[^/]+').replace('*', '.*')}$`),
      }));
      return (path) => patterns.find(({ pattern }) => pattern.test(path === `${DOCS}/` ? DOCS : path))?.allow ?? null;
    },
  };
}

const REFUSED = { hide: true };
const DOCS = '/docs';
const NO_YAML = `${DOCS}/yaml`;

export function notAllowed(allow: string): HttpProblem {
  return new HttpProblem('method_not_allowed', `this path supports ${allow}`, undefined, { allow });
}
