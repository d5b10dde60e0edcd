import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, extname, join } from 'node:path';
import swaggerUi from '@fastify/swagger-ui';
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteHandlerMethod } from 'fastify';
import { type PublicAnswer, publicAnswer } from '../../views/public-answer.ts';
import { mountOf, sentToSlash } from '../mount.ts';
import { isKnown, sendProblem } from '../reply.ts';
import { kept } from '../sockets.ts';

const FILES = join(dirname(createRequire(import.meta.url).resolve('@fastify/swagger-ui/package.json')), 'static');
const TYPES: Record<string, string | undefined> = {
  '.css': 'text/css; charset=utf-8',
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.png': 'image/png',
  '.svg': 'image/svg+xml',
};

/** The OpenAPI document, and Swagger UI that shows it. */
export async function documentRoutes(app: FastifyInstance, document: () => object): Promise<void> {
  let written: Buffer | null = null;
  const send: RouteHandlerMethod = (request, reply) => {
    // Serialised once, because anybody may request it at any rate. Only a request tells where the routes are mounted.
    written ??= kept(Buffer.from(JSON.stringify(document())));
    const mount = mountOf(request);
    const servers = `{"servers":${JSON.stringify([{ url: mount }])},`;
    const body = mount === '' ? written : Buffer.concat([Buffer.from(servers), written.subarray(1)]);
    return reply.header('content-type', 'application/json; charset=utf-8').send(body);
  };
  app.get('/openapi.json', { schema: { hide: true } }, send);
  await app.register(async (docs) => {
    const files = filesOfPage();
    // Swagger UI's own handlers would serialise the document for every request (as YAML this blocks for a second), and its page
    // loads its files by paths that are wrong under a mount unless its URL ends with a slash.
    docs.addHook('onRoute', (route) => {
      if (route.routePath === '' || route.routePath === '/') {
        const page = route.handler;
        route.handler = function (request, reply) {
          return sentToSlash(request, reply) ? reply : page.call(this, request, reply);
        };
      }
      if (route.routePath === '/static/index.html') route.handler = (_, reply) => reply.redirect('../');
      if (route.routePath === '/json') route.handler = send;
      if (route.routePath === '/yaml') route.handler = (_, reply) => sendProblem(reply, 'not_found');
      if (route.routePath === '/static/*') route.handler = (request, reply) => sendFile(files, request, reply);
    });
    await docs.register(swaggerUi, {
      routePrefix: '/docs',
      staticCSP: true,
      // Swagger UI uses inline styles. It loads everything from here, over http if the page is: no upgrade to https.
      transformStaticCSP: (policy) =>
        policy
          .replace(/style-src [^;]*/, "style-src 'self' 'unsafe-inline'")
          .replace(' upgrade-insecure-requests;', ''),
      theme: { title: 'Doorbuster API' },
    });
  });
}

interface PageFile extends PublicAnswer {
  readonly type: string;
}

/**
 * The page's files, read once. Swagger UI's own routes open the file per request and keep it open until the client has read it:
 * a few thousand slow readers would use up the process's file descriptors, and the shop could accept no connection.
 */
function filesOfPage(): ReadonlyMap<string, PageFile> {
  const files = new Map<string, PageFile>();
  for (const name of readdirSync(FILES)) {
    const type = TYPES[extname(name)];
    if (type === undefined) continue;
    const answer = publicAnswer(readFileSync(join(FILES, name)));
    kept(answer.body);
    files.set(name, { ...answer, type });
  }
  return files;
}

function sendFile(files: ReadonlyMap<string, PageFile>, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const file = files.get((request.params as { '*': string })['*']);
  if (file === undefined) return sendProblem(reply, 'not_found');
  reply.header('etag', file.tag).header('cache-control', 'no-cache');
  return isKnown(request, file.tag) ? reply.code(304).send() : reply.header('content-type', file.type).send(file.body);
}
