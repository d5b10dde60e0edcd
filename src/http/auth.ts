import { createHash, timingSafeEqual } from 'node:crypto';
import { createVerifier } from 'fast-jwt';
import type { FastifyRequest } from 'fastify';
import { ACCOUNT_PREFIX } from '../model/account.ts';
import { BOUNDS } from '../model/sale.ts';
import { nameFault } from '../model/text.ts';
import { accountKeys } from './account-tokens.ts';
import { addressOf } from './address.ts';
import { HttpProblem, invalid, SlowedProblem } from './problem.ts';
import { headerOnce } from './request.ts';
import type { SignIns } from './sign-ins.ts';

/** Who is asking. An admin may act for a buyer: `buyer` is set, and the admin's name stays for the audit. */
export interface Identity {
  admin: string | null;
  buyer: string | null;
}

/** An identity with a buyer: one that can place an order. */
export interface OrderingIdentity extends Identity {
  buyer: string;
}

export interface AuthOptions {
  /** One or two. During a rotation the second one keeps tokens signed with the old secret valid. */
  authSecrets: string[];
  adminKeys: { name: string; key: string }[];
  issuer?: string | null;
  audience?: string | null;
  requireExp?: boolean;
  /** The secret that signs demo tokens; null outside a demo. */
  demo?: { secret: string } | null;
  /** Whether tokens of accounts are accepted. */
  accounts?: boolean;
}

const DENIED = { 'www-authenticate': 'Bearer realm="doorbuster"' };

/**
 * What is wrong with a token whose signature is valid. The verifier checks claims after the signature, so telling the
 * caller leaks nothing to somebody who does not hold a real token.
 */
const CLAIM_FLAWS: Record<string, string | undefined> = {
  FAST_JWT_EXPIRED: 'the token has expired',
  FAST_JWT_INACTIVE: 'the token is not valid yet (nbf)',
  FAST_JWT_MISSING_REQUIRED_CLAIM: 'the token lacks a claim that this server requires (exp, iss or aud)',
  FAST_JWT_INVALID_CLAIM_VALUE: 'the token is for another issuer or audience (iss, aud)',
};

/** A 401 for a caller without valid credentials. */
export function denied(detail: string): HttpProblem {
  return new HttpProblem('unauthenticated', detail, undefined, DENIED);
}

interface Verifier {
  readonly verify: (token: string) => { sub?: unknown };
  /** Whether its key signs tokens of accounts, and of nobody else. */
  readonly ofAccounts: boolean;
}

/**
 * Authenticates buyers by JWT (HS256 only; `none` and every other algorithm are refused) and admins by key, compared in
 * constant time.
 */
export class Auth {
  readonly #verifiers: Verifier[];
  readonly #admins: { name: string; digest: Buffer }[];
  /** True if an admin key contains a dot. */
  readonly #dotted: boolean;
  readonly #signIns: SignIns;

  constructor(options: AuthOptions, signIns: SignIns) {
    const { authSecrets, adminKeys, issuer = null, audience = null, requireExp = false, demo = null } = options;
    this.#signIns = signIns;
    this.#dotted = adminKeys.some(({ key }) => key.includes('.'));
    // fast-jwt checks allowedIss and allowedAud only if the claim is present: a token without it would pass.
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
    // No token cache: a crowd is many buyers with one request each, so an entry costs more than it saves.
    const verifier = (key: string, ofAccounts: boolean, required: object = claims): Verifier => ({
      verify: createVerifier({ key, algorithms: ['HS256'], cache: false, ...required }),
      ofAccounts,
    });
    this.#verifiers = authSecrets.map((key) => verifier(key, false));
    if (demo !== null) this.#verifiers.push(verifier(demo.secret, false, {}));
    if (options.accounts) this.#verifiers.push(...accountKeys(options).map((key) => verifier(key, true)));
    // Also accepted as `name:key`, the form of DOORBUSTER_ADMIN_KEY, because people copy the setting into a call.
    this.#admins = adminKeys.flatMap(({ name, key }) =>
      [key, `${name}:${key}`].map((text) => ({ name, digest: digest(text) })),
    );
  }

  /** Null if the request has no Authorization header. */
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

  /** The caller, who must be a buyer or an admin who names one in `Doorbuster-Buyer`. */
  ordering(request: FastifyRequest): OrderingIdentity {
    const identity = this.#needed(request);
    if (identity.buyer === null)
      throw new HttpProblem('forbidden', 'this needs a buyer: send Doorbuster-Buyer with an admin key');
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
    // A JWT has dots; anything else is not worth a signature check.
    if (token.indexOf('.') < 0) return null;
    let flaw: string | undefined;
    for (const { verify, ofAccounts } of this.#verifiers) {
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
      // Otherwise a shop whose own sign-in lets people choose their id would let them act as somebody's account.
      if (sub.startsWith(ACCOUNT_PREFIX) !== ofAccounts) {
        throw denied(`a sub that begins with ${ACCOUNT_PREFIX} is for accounts that registered here`);
      }
      return sub;
    }
    if (flaw !== undefined) throw denied(flaw);
    return null;
  }

  #signedIn(token: string, request: FastifyRequest): string {
    // A text with dots is a buyer's token, and an invalid one is usually just old. It counts as a guess at an admin key only
    // if some admin key contains a dot.
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
      : new HttpProblem('rate_limited', 'this address sent too many wrong keys; wait and try again', undefined, {
          'retry-after': '2',
        });
    const holdMs = isGuess ? this.#signIns.failed(address) : 0;
    throw holdMs === 0 ? refusal : new SlowedProblem(refusal, holdMs, () => this.#signIns.released(address));
  }

  #adminOf(token: string): string | null {
    const given = digest(token);
    let found: string | null = null;
    // Compare every key even after a match, so that the time taken does not tell which one matched.
    for (const { name, digest: expected } of this.#admins) if (timingSafeEqual(given, expected)) found = name;
    return found;
  }
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

/** Node decodes header bytes as Latin-1; a buyer's id is UTF-8. */
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
