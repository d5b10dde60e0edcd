/**
 * Who changed something, and from where: one form for every change, whoever makes it and by whichever way.
 *
 *   admin     somebody with an admin key, by its name
 *   buyer     by their id
 *   provider  of payments, by its name: what it told us
 *   library   the application that has opened the shop in its own process
 *   system    the shop itself, by the part that did it: `sweeper`, `gate`, `webhooks`, `demo`
 */
export const ACTOR_KINDS = ['admin', 'buyer', 'provider', 'library', 'system'] as const;

export type ActorKind = (typeof ACTOR_KINDS)[number];

export interface Actor {
  readonly kind: ActorKind;
  readonly name: string;
  /** The address that the call came from; null: from inside a process of the shop. */
  readonly origin: string | null;
}

export function actor(kind: ActorKind, name: string, origin: string | null = null): Actor {
  return { kind, name, origin };
}

/** `admin:alice`. A kind contains no colon; a name may. */
export function actorText({ kind, name }: Actor): string {
  return `${kind}:${name}`;
}

const KINDS = new Set<string>(ACTOR_KINDS);

/**
 * Parses the actor of a stored row. Old rows may lack the kind: changes of sales held the bare name of an admin, and the
 * shop's own parts were stored by name. Rows are never changed, so both are understood here.
 */
export function storedActorText(text: string, action: string): string {
  const colon = text.indexOf(':');
  if (colon > 0 && KINDS.has(text.slice(0, colon))) return text;
  if (text === 'library') return 'library:app';
  if (action.startsWith('sale.')) return text === 'demo' ? 'system:demo' : `admin:${text}`;
  return `system:${text}`;
}
