import type { FastifyReply, FastifyRequest } from 'fastify';

/**
 * The path that the routes are mounted at in an application which is not Fastify: Express and Connect take it off `url` and keep
 * the whole in `originalUrl`. Empty if there is none, and under a prefix of Fastify, which stays in `url`.
 */
export function mountOf(request: FastifyRequest): string {
  const { originalUrl, url } = request.raw as { originalUrl?: unknown; url?: string };
  if (typeof originalUrl !== 'string' || originalUrl === url) return '';
  const [whole, own] = [pathOf(originalUrl), pathOf(url ?? '')];
  // Two slashes at the beginning would name a host.
  if (whole.endsWith(own)) return whole.slice(0, -own.length).replace(/^\/+/, '/');
  return own === '/' ? whole.replace(/^\/+/, '/') : '';
}

/**
 * What a page loads is named relative to it, so that it is found wherever the page stands. That needs the slash at its end: a page
 * that was asked for without it is sent there. True if it was.
 */
export function sentToSlash(request: FastifyRequest, reply: FastifyReply): boolean {
  const { originalUrl } = request.raw as { originalUrl?: unknown };
  const asked = typeof originalUrl === 'string' ? originalUrl : request.url;
  const path = pathOf(asked);
  if (path.endsWith('/')) return false;
  // Relative, too: a proxy in front may have taken off a part of the path that nobody told us.
  const to = `./${path.slice(path.lastIndexOf('/') + 1)}/${asked.slice(path.length)}`;
  void reply.redirect(to);
  return true;
}

function pathOf(url: string): string {
  return url.split('?', 1)[0]!;
}
