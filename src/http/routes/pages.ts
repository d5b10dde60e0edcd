import { readFileSync } from 'node:fs';
import type { FastifyInstance } from 'fastify';
import { sentToSlash } from '../mount.ts';
import { kept } from '../sockets.ts';

const PAGES = new URL('../pages/', import.meta.url);
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/** The live board: one page that shows the sales and their counts as they change. */
export function pageRoutes(app: FastifyInstance): void {
  const files = [
    { url: '/', file: 'board.html', type: 'text/html; charset=utf-8' },
    { url: '/board.js', file: 'board.js', type: 'text/javascript; charset=utf-8' },
    { url: '/board.css', file: 'board.css', type: 'text/css; charset=utf-8' },
  ];
  for (const { url, file, type } of files) {
    const body = kept(readFileSync(new URL(file, PAGES)));
    app.get(url, { schema: { hide: true } }, (request, reply) => {
      if (url === '/' && sentToSlash(request, reply)) return reply;
      return reply
        .header('content-type', type)
        .header('content-security-policy', POLICY)
        .header('cache-control', 'no-cache')
        .send(body);
    });
  }
}
