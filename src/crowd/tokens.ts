import { createSigner } from 'fast-jwt';
import type { Runtime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import { type Caller, detailOf, retryAfterMs } from './client.ts';
import { cannotStart } from './reads.ts';
import type { Turnstile } from './turnstile.ts';

export type TokenOf = (buyer: string) => string;

const TOKEN_MS = 24 * 3600 * 1000;
const ASK_TRIES_MAX = 10;

export interface TokenSource {
  client: Caller;
  turnstile: Turnstile;
  runtime: Runtime;
  /** The secret to sign with; null: get tokens from a demo server. */
  authSecret: string | null;
  stop: AbortSignal;
  asked: (tokens: number) => void;
}

/**
 * Gets tokens for all buyers before the first one enters, so that this is not part of what is measured. If a demo server does
 * not accept the secret (which another project may have left in the environment), it is asked for tokens instead.
 */
export async function tokensFor(buyers: readonly string[], source: TokenSource): Promise<TokenOf> {
  const { authSecret, client } = source;
  if (authSecret === null) {
    const asked = await askDemo(buyers, source);
    if (typeof asked !== 'string') return asked;
    throw cannotStart(`the server gives no demo tokens (${asked}): set DOORBUSTER_AUTH_SECRET to sign them here`);
  }
  const sign = createSigner({ key: authSecret, algorithm: 'HS256', expiresIn: TOKEN_MS });
  const tokenOf: TokenOf = (buyer) => sign({ sub: buyer });
  const tried = await client.call('GET', '/v1/orders?limit=1', { bearer: tokenOf(buyers[0]!) });
  if (!tried.ok || tried.status !== 401) return tokenOf;
  const asked = await askDemo(buyers, source);
  if (typeof asked !== 'string') return asked;
  throw cannotStart('the server does not accept tokens signed with this DOORBUSTER_AUTH_SECRET');
}

/** Returns the reason as text if the server gives no tokens. */
async function askDemo(buyers: readonly string[], source: TokenSource): Promise<TokenOf | string> {
  const first = await askOne(buyers[0]!, source);
  if (!first.ok) return first.reason;
  const tokens = new Map([[buyers[0]!, first.token]]);
  let reason: string | null = null;
  await Promise.all(
    buyers.slice(1).map(async (buyer) => {
      const answer = await source.turnstile.pass(async () =>
        reason !== null || source.stop.aborted ? null : askOne(buyer, source),
      );
      if (answer === null) return;
      if (!answer.ok) reason = answer.reason;
      else source.asked(tokens.set(buyer, answer.token).size);
    }),
  );
  return reason ?? ((buyer) => tokens.get(buyer)!);
}

async function askOne(
  buyer: string,
  { client, runtime }: TokenSource,
): Promise<{ ok: true; token: string } | { ok: false; reason: string }> {
  for (let tries = 1; ; tries++) {
    const reply = await client.call('POST', '/v1/demo/tokens', { body: { user: buyer } });
    const token = reply.ok && reply.status === 201 ? (reply.body as { token?: unknown } | null)?.token : null;
    if (typeof token === 'string') return { ok: true, token };
    const again = !reply.ok || reply.status === 429 || reply.status === 503;
    if (!again || tries === ASK_TRIES_MAX) return { ok: false, reason: detailOf(reply) };
    await sleep(runtime.timers, reply.ok ? retryAfterMs(reply) : 200);
  }
}
