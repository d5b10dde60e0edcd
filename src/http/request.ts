import type { FastifyRequest } from 'fastify';
import type { AskedPage } from '../contract/schemas.ts';
import type { KeyScope, Page } from '../ledger/port.ts';
import { type Actor, actor, actorText } from '../model/actor.ts';
import { keyFault } from '../model/text.ts';
import { addressOf } from './address.ts';
import type { Identity } from './auth.ts';
import { invalid } from './problem.ts';

/** The Idempotency-Key, or null. */
export function keyOf(request: FastifyRequest): string | null {
  const key = headerOnce(request, 'Idempotency-Key');
  if (key === null) return null;
  const fault = keyFault(key);
  if (fault !== null) throw invalid('Idempotency-Key', fault);
  return key;
}

/** Who makes this call, and from where, as the audit records it. An admin who acts for a buyer is the actor. */
export function actorOf({ admin, buyer }: Identity, request: FastifyRequest): Actor {
  return admin === null ? actor('buyer', buyer!, addressOf(request)) : actor('admin', admin, addressOf(request));
}

/** The part of the Idempotency-Key's scope that the request decides; null if it has no key. */
export function keyedBy(who: Identity, request: FastifyRequest): Pick<KeyScope, 'caller' | 'actingFor' | 'key'> | null {
  const key = keyOf(request);
  if (key === null) return null;
  return { caller: actorText(actorOf(who, request)), actingFor: who.admin === null ? null : who.buyer, key };
}

/** A header that may be sent only once. Node joins repeats with a comma: two buyers would become a third. */
export function headerOnce(request: FastifyRequest, name: string): string | null {
  const value = request.headers[name.toLowerCase()];
  if (value === undefined) return null;
  const text = String(value);
  if (text.includes(', ') && (request.raw.headersDistinct[name.toLowerCase()]?.length ?? 0) > 1) {
    throw invalid(name, 'must be sent once');
  }
  return text;
}

/** Expects a query that its schema has validated. */
export function pageOf({ limit, cursor }: AskedPage): Page {
  return { limit, before: cursor ?? null };
}

/** Reads one row more than asked for, to know whether there is another page. */
export async function page<T extends { id: string }>(
  asked: Page,
  read: (page: Page) => Promise<T[]>,
): Promise<{ data: T[]; nextCursor: string | null }> {
  const rows = await read({ ...asked, limit: asked.limit + 1 });
  const data = rows.slice(0, asked.limit);
  return { data, nextCursor: rows.length > asked.limit ? data.at(-1)!.id : null };
}
