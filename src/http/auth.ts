import { createHash, timingSafeEqual } from 'node:crypto';
import { createVerifier } from 'fast-jwt';
import type { FastifyRequest } from 'fastify';
import { BOUNDS } from '../model/sale.ts';
import { nameFault } from '../model/text.ts';
import { addressOf } from './address.ts';
import { HttpProblem, invalid, SlowedProblem } from './problem.ts';
import { headerOnce } from './request.ts';
import type { SignIns } from './sign-ins.ts';

/** Who is asking. An admin may act for a buyer: `buyer` is set, and the admin's name stays for the audit. */
export interface Identity {
  admin: string | null;
  buyer: string | null;
}

/** With a buyer to order for. */
export interface OrderingIdentity extends Identity {
  buyer: string;
}

export interface AuthOptions {
  /** One or two: the second one lets tokens of the old secret live on during a rotation. */
  authSecrets: string[];
  adminKeys: { name: string; key: string }[];
  issuer?: string | null;
  audience?: string | null;
  requireExp?: boolean;
  /** Signs the tokens of a demo. */
  demo?: { secret: string } | null;
}

const DENIED = { 'www-authenticate': 'Bearer realm="doorbuster"' };

/** What is wrong with a token that one of our secrets has signed: its owner may know. Judged after the signature. */
const CLAIM_FLAWS: Record<string, string | undefined> = {
  FAST_JWT_EXPIRED: 'the token has expired',
  FAST_JWT_INACTIVE: 'the token is not valid yet (nbf)',
  FAST_JWT_MISSING_REQUIRED_CLAIM: 'the token lacks exp, iss or aud, which this server demands',
  FAST_JWT_INVALID_CLAIM_VALUE: 'the token is for another issuer or audience (iss, aud)',
};

function denied(detail: string): HttpProblem {
  return new HttpProblem('unauthenticated', detail, undefined, DENIED);
}

/** Buyers by JWT (HS256 only: `none` and every other algorithm are refused), admins by key in constant time. */
export class Auth {
  readonly #verifiers: ((token: string) => { sub?: unknown })[];
  readonly #admins: { name: string; digest: Buffer }[];
  /** Some admin key has a dot in it. */
  readonly #dotted: boolean;
  readonly #signIns: SignIns;

  constructor(
    { authSecrets, adminKeys, issuer = null, audience = null, requireExp = false, demo = null }: AuthOptions,
    signIns: SignIns,
  ) {
    this.#signIns = signIns;
    this.#dotted = adminKeys.some(({ key }) => key.includes('.'));
    // What is allowed is judged only where it is there: a token that leaves it out must not pass.
    const requiredClaims = [
      ...(requireExp ? ['exp'] : []),
      ...(issuer === null ? [] : ['iss']),
      ...(audience === null ? [] : ['aud']),
    ];
    const claims = {
      ...(issuer !== null && { allowedIss: issuer }),
      ...(audience !== null && { allowedAud: audience }),
      ...(requiredClaims.length > 0 && { requiredClaims }),
    };
    // No token cache: a crowd is many buyers with one request each, and an entry costs more than it saves.
    this.#verifiers = authSecrets.map((key) => createVerifier({ key, algorithms: ['HS256'], cache: false, ...claims }));
    if (demo !== null) {
      this.#verifiers.push(createVerifier({ key: demo.secret, algorithms: ['HS256'], cache: false }));
    }
    // Also with its name, as DOORBUSTER_ADMIN_KEY has it: whoever copies the setting into a call is understood.
    this.#admins = adminKeys.flatMap(({ name, key }) =>
      [key, `${name}:${key}`].map((text) => ({ name, digest: digest(text) })),
    );
  }

  /** Null if nobody is named at all. */
  identify(request: FastifyRequest): Identity | null {
    const header = request.headers.authorization;
    if (header === undefined) return null;
    if (header.length < 8 || header.slice(0, 7).toLowerCase() !== 'bearer ')
      throw denied('Authorization must be: Bearer <token>');
    const token = header.slice(7).trim();
    const buyer = this.#buyerOf(token);
    if (buyer !== null) return { admin: null, buyer };
    const admin = this.#signedIn(token, request);
    const acting = headerOnce(request, 'Doorbuster-Buyer');
    return { admin, buyer: acting === null ? null : actingBuyer(acting) };
  }

  /** The buyer who orders, or is acted for; an admin without `Doorbuster-Buyer` is not one. */
  ordering(request: FastifyRequest): OrderingIdentity {
    const identity = this.#needed(request);
    if (identity.buyer === null)
      throw new HttpProblem('forbidden', 'an order needs a buyer: send Doorbuster-Buyer with an admin key');
    return identity as OrderingIdentity;
  }

  buyer(request: FastifyRequest): string {
    return this.ordering(request).buyer;
  }

  asAdmin(request: FastifyRequest): Identity {
    const identity = this.#needed(request);
    if (identity.admin === null) throw new HttpProblem('forbidden', 'this needs an admin key');
    return identity;
  }

  admin(request: FastifyRequest): string {
    return this.asAdmin(request).admin!;
  }

  anyone(request: FastifyRequest): Identity {
    return this.#needed(request);
  }

  #needed(request: FastifyRequest): Identity {
    const identity = this.identify(request);
    if (identity === null) throw denied('send Authorization: Bearer <token>');
    return identity;
  }

  #buyerOf(token: string): string | null {
    // A JWT is three parts; nothing else is worth a signature check.
    if (token.indexOf('.') < 0) return null;
    let flaw: string | undefined;
    for (const verify of this.#verifiers) {
      let sub: unknown;
      try {
        ({ sub } = verify(token));
      } catch (error) {
        flaw ??= CLAIM_FLAWS[(error as { code?: string }).code ?? ''];
        continue;
      }
      if (typeof sub !== 'string' || nameFault(sub, BOUNDS.buyerLengthMax) !== null) {
        throw denied('the token’s sub must name a buyer');
      }
      return sub;
    }
    if (flaw !== undefined) throw denied(flaw);
    return null;
  }

  #signedIn(token: string, request: FastifyRequest): string {
    // What has dots is a token, and a bad one is a buyer's misfortune (it is old, the secret has changed): unless a key has one,
    // nobody finds it like that.
    const isGuess = this.#dotted || !token.includes('.');
    const address = addressOf(request);
    const mayTry = !isGuess || this.#signIns.mayTry(address);
    const admin = mayTry ? this.#adminOf(token) : null;
    if (admin !== null) {
      this.#signIns.succeeded(address);
      return admin;
    }
    const refusal = mayTry
      ? denied('the token or key is not valid, or has expired')
      : new HttpProblem('rate_limited', 'too many wrong keys came from this address', undefined, {
          'retry-after': '2',
        });
    const holdMs = isGuess ? this.#signIns.failed(address) : 0;
    throw holdMs === 0 ? refusal : new SlowedProblem(refusal, holdMs, () => this.#signIns.released(address));
  }

  #adminOf(token: string): string | null {
    const given = digest(token);
    let found: string | null = null;
    // Every key is compared, whichever matches: the time says nothing about which.
    for (const { name, digest: expected } of this.#admins) if (timingSafeEqual(given, expected)) found = name;
    return found;
  }
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

/** Node hands header bytes over as Latin-1; a buyer's id is UTF-8. */
function actingBuyer(header: string): string {
  const bytes = Buffer.from(header, 'latin1');
  let buyer: string;
  try {
    buyer = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw invalid('Doorbuster-Buyer', 'must be UTF-8');
  }
  const fault = nameFault(buyer, BOUNDS.buyerLengthMax);
  if (fault !== null) throw invalid('Doorbuster-Buyer', fault);
  return buyer;
}
