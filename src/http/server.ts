import { createServer as createHttpServer } from 'node:http';
import Fastify, {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type HTTPMethods,
  LogController,
} from 'fastify';
import type { Runtime } from '../base/runtime.ts';
import { boundConnections, CHECK_EVERY_MS } from './connections.ts';
import type { HttpOptions, ShopSource } from './context.ts';
import { type AllowOf, doorbusterRoutes, notAllowed } from './plugin.ts';
import { SECURE_HEADERS, sendProblem } from './reply.ts';
import { enterSocket } from './sockets.ts';

export interface ServerOptions {
  shop: ShopSource;
  http: HttpOptions;
  runtime: Runtime;
  /** True: every peer is a proxy, whose address in X-Forwarded-For counts; text: only peers with these addresses. */
  trustProxy: boolean | string;
}

/** A Fastify instance with all routes, used by `serve` and by `shop.handler()`. */
export async function createServer({ shop, http, runtime, trustProxy }: ServerOptions): Promise<FastifyInstance> {
  let requests = 0;
  const app: FastifyInstance = Fastify({
    // Fastify's logger type has two more members of pino, neither of which it uses.
    loggerInstance: runtime.log as unknown as FastifyBaseLogger,
    // A log line per request of a crowd would be a self-made denial of service; they are written at level `debug` only.
    logController: new LogController({ disableRequestLogging: !runtime.log.isLevelEnabled('debug') }),
    genReqId: () => `r${(requests++).toString(36)}`,
    // A child logger per request costs more than the gate. Log lines about a request name its id instead.
    childLoggerFactory: (logger, bindings, options) =>
      runtime.log.isLevelEnabled('debug') ? logger.child(bindings, options) : logger,
    // While closing, our own hook answers with a problem.
    return503OnClosing: false,
    // Fastify's `true` trusts the first address in the list, which the client can forge.
    trustProxy: trustProxy === true ? (_address, hop) => hop === 0 : trustProxy,
    // Called once per address: `localhost` has two, and both need the bounds.
    serverFactory: (handler) => {
      const server = createHttpServer({ connectionsCheckingInterval: CHECK_EVERY_MS }, handler);
      boundConnections(server, http, runtime, trustProxy !== false);
      return server;
    },
    // Answered by boundConnections.
    clientErrorHandler: () => {},
    // For example a path that cannot be decoded.
    frameworkErrors: (_error, request, reply: FastifyReply) => {
      if (enterSocket(request.raw, reply.raw)) void sendProblem(reply.headers(SECURE_HEADERS), 'not_found');
    },
  });
  await app.register(async (scope) => {
    let allowOf: AllowOf = () => null;
    // Set in the scope of the routes, so that its hooks also see and bound these requests.
    scope.setNotFoundHandler((request, reply) => {
      // The router does not know methods such as PROPFIND and reports every path as not found for them.
      const unrouted = !scope.supportedMethods.includes(request.method as HTTPMethods);
      const allow = unrouted ? allowOf(request.url.split('?', 1)[0]!) : null;
      if (allow !== null) throw notAllowed(allow);
      return sendProblem(reply, 'not_found', 'there is no such route');
    });
    allowOf = await doorbusterRoutes(scope, { shop, http, runtime });
  });
  return app;
}
