import { hkdfSync } from 'node:crypto';
import { createSigner } from 'fast-jwt';
import { invariant } from '../base/errors.ts';
import type { HttpOptions } from './context.ts';

/** How long a sign-in lasts. */
const TOKEN_SECONDS = 24 * 3600;

type Secrets = Pick<HttpOptions, 'authSecrets'> & { demo?: { secret: string } | null };

/**
 * The keys of accounts' tokens, the one that signs first. They are derived from the secrets of buyers' tokens and differ from them, so
 * that a token's key tells who issued it: the shop's own sign-in, or the accounts. A demo uses its own secret only: with production
 * secrets in its environment it must not issue production tokens.
 */
export function accountKeys({ authSecrets, demo = null }: Secrets): string[] {
  const secrets = demo === null ? authSecrets : [demo.secret];
  return secrets.map((secret) => {
    return Buffer.from(hkdfSync('sha256', secret, '', 'doorbuster accounts', 32)).toString('base64url');
  });
}

/** Issues accounts' tokens; http/auth.ts verifies them. */
export function accountTokens(
  options: Secrets & Pick<HttpOptions, 'issuer' | 'audience'>,
): (subject: string) => string {
  const [key] = accountKeys(options);
  invariant(key !== undefined, 'accounts need a secret');
  const sign = createSigner({
    key,
    algorithm: 'HS256',
    expiresIn: TOKEN_SECONDS * 1000,
    ...(options.issuer !== null && { iss: options.issuer }),
    ...(options.audience !== null && { aud: options.audience }),
  });
  return (subject) => sign({ sub: subject });
}
