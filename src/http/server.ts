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
  /** True: the peer is a proxy, and the address it adds to X-Forwarded-For counts; text: proxies with these addresses. */
  trustProxy: boolean | string;
}

/** A Fastify of our own with the routes in it: what `serve` listens with, and what `shop.handler()` hands out. */
export async function createServer({ shop, http, runtime, trustProxy }: ServerOptions): Promise<FastifyInstance> {
  let requests = 0;
  const app: FastifyInstance = Fastify({
    // Fastify names two more things that pino has, and uses neither.
    loggerInstance: runtime.log as unknown as FastifyBaseLogger,
    // A line for every request of a crowd is a denial of service of one's own making; `debug` has them.
    logController: new LogController({ disableRequestLogging: !runtime.log.isLevelEnabled('debug') }),
    genReqId: () => `r${(requests++).toString(36)}`,
    // A child logger for every request costs more than the gate: whoever logs about a request names its id.
    childLoggerFactory: (logger, bindings, options) =>
      runtime.log.isLevelEnabled('debug') ? logger.child(bindings, options) : logger,
    // While closing, our own hook answers, in the contract's words.
    return503OnClosing: false,
    // Fastify's own `true` believes the first address of the list, which is whatever the client has written there.
    trustProxy: trustProxy === true ? (_address, hop) => hop === 0 : trustProxy,
    // Called once for each address: `localhost` has two, and both need the bounds.
    serverFactory: (handler) => {
      const server = createHttpServer({ connectionsCheckingInterval: CHECK_EVERY_MS }, handler);
      boundConnections(server, http, runtime, trustProxy !== false);
      return server;
    },
    // Answered by boundConnections.
    clientErrorHandler: () => {},
    // A path that cannot be decoded names nothing.
    frameworkErrors: (_error, request, reply: FastifyReply) => {
      if (enterSocket(request.raw, reply.raw)) void sendProblem(reply.headers(SECURE_HEADERS), 'not_found');
    },
  });
  await app.register(async (scope) => {
    let allowOf: AllowOf = () => null;
    // Of the routes' own scope, so that its hooks see and bound these requests, too.
    scope.setNotFoundHandler((request, reply) => {
      // The router does not know methods such as PROPFIND, and so no path of theirs.
      const unrouted = !scope.supportedMethods.includes(request.method as HTTPMethods);
      const allow = unrouted ? allowOf(request.url.split('?', 1)[0]!) : null;
      if (allow !== null) throw notAllowed(allow);
      return sendProblem(reply, 'not_found', 'there is no such route');
    });
    allowOf = await doorbusterRoutes(scope, { shop, http, runtime });
  });
  return app;
}
