import type { FastifyReply, FastifyRequest } from 'fastify';

/**
 * The path at which an Express or Connect application mounts the routes: they strip it from `url` and keep the full path in
 * `originalUrl`. Empty if there is none. A Fastify prefix stays in `url` and is not part of it.
 */
export function mountOf(request: FastifyRequest): string {
  const { originalUrl, url } = request.raw as { originalUrl?: unknown; url?: string };
  if (typeof originalUrl !== 'string' || originalUrl === url) return '';
  const [whole, own] = [pathOf(originalUrl), pathOf(url ?? '')];
  // A URL that starts with two slashes would name a host.
  if (whole.endsWith(own)) return whole.slice(0, -own.length).replace(/^\/+/, '/');
  return own === '/' ? whole.replace(/^\/+/, '/') : '';
}

/**
 * Redirects a request for a page to the same path with a slash at its end; true if it did. Pages load their files by relative
 * paths, so that they work under any mount, and those resolve correctly only below a trailing slash.
 */
export function sentToSlash(request: FastifyRequest, reply: FastifyReply): boolean {
  const { originalUrl } = request.raw as { originalUrl?: unknown };
  const asked = typeof originalUrl === 'string' ? originalUrl : request.url;
  const path = pathOf(asked);
  if (path.endsWith('/')) return false;
  // Relative, because a proxy in front may have stripped a part of the path that we do not know.
  const to = `./${path.slice(path.lastIndexOf('/') + 1)}/${asked.slice(path.length)}`;
  void reply.redirect(to);
  return true;
}

function pathOf(url: string): string {
  return url.split('?', 1)[0]!;
}
