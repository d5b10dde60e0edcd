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

/** The document for machines, and the page that shows it to people. */
export async function documentRoutes(app: FastifyInstance, document: () => object): Promise<void> {
  let written: Buffer | null = null;
  const send: RouteHandlerMethod = (request, reply) => {
    // Anybody may ask for it, as often as they like: it is written once. Where it is mounted only its requests tell.
    written ??= kept(Buffer.from(JSON.stringify(document())));
    const mount = mountOf(request);
    const servers = `{"servers":${JSON.stringify([{ url: mount }])},`;
    const body = mount === '' ? written : Buffer.concat([Buffer.from(servers), written.subarray(1)]);
    return reply.header('content-type', 'application/json; charset=utf-8').send(body);
  };
  app.get('/openapi.json', { schema: { hide: true } }, send);
  await app.register(async (docs) => {
    const files = filesOfPage();
    // Swagger UI's own would write the whole document anew for everybody who asks, as YAML for a second. Its page names what it
    // loads by a path that is wrong under a mount, unless it was asked for with a slash.
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
      // Swagger UI styles itself inline; everything it loads is ours, and comes by http where the page does.
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
 * What the page loads, read once. Swagger UI's own routes open the file for every request, and keep it open until the client has
 * read it: a few thousand clients that read slowly take all the files that the process may open, and the shop takes nobody in.
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
