import type { LookupAddress } from 'node:dns';
import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { WEBHOOK_BOUNDS } from '../model/webhook.ts';
import { specialAddress } from './addresses.ts';

/** All addresses of a name. */
export type Resolve = (hostname: string) => Promise<LookupAddress[]>;

export const systemResolve: Resolve = (hostname) => lookup(hostname, { all: true });

/** Where a delivery may go: all current addresses of its host. */
export type Target =
  | { readonly ok: true; readonly addresses: LookupAddress[] }
  | { readonly ok: false; readonly reason: string };

/** What is wrong with the URL itself, or null. */
export function urlFault(text: string): string | null {
  const { urlLengthMax } = WEBHOOK_BOUNDS;
  const url = text.length > urlLengthMax ? null : URL.parse(text);
  // Encoding may make it longer.
  if (text.length > urlLengthMax || (url?.href.length ?? 0) > urlLengthMax)
    return `must have at most ${urlLengthMax} characters`;
  if (url === null) return 'must be a URL';
  if (url.protocol !== 'https:' && url.protocol !== 'http:') return 'must be https: or http:';
  if (url.username !== '' || url.password !== '') return 'must not contain a user or password';
  if (url.hash !== '') return 'must not contain a fragment: it would not be sent';
  if (url.port === '0') return 'must not have port 0';
  return null;
}

/**
 * The addresses that a URL leads to, if all of them may be called. Connect to exactly these, without resolving again: a name
 * may resolve to another address the next time (DNS rebinding).
 */
export async function targetOf(text: string, resolve: Resolve, allowPrivate: boolean): Promise<Target> {
  const fault = urlFault(text);
  if (fault !== null) return { ok: false, reason: fault };
  const { hostname } = new URL(text);
  // The parser has normalised it: 0x7f.1 is 127.0.0.1 here. IPv6 is in brackets.
  const host = hostname.startsWith('[') ? hostname.slice(1, -1) : hostname;
  let addresses: LookupAddress[];
  const family = isIP(host);
  try {
    addresses = family === 0 ? await resolve(host) : [{ address: host, family }];
  } catch (error) {
    return { ok: false, reason: `its host cannot be resolved (${(error as { code?: string }).code ?? 'unknown'})` };
  }
  if (addresses.length === 0) return { ok: false, reason: 'its host has no address' };
  if (allowPrivate) return { ok: true, addresses };
  for (const { address } of addresses) {
    const special = specialAddress(address);
    if (special === null) continue;
    const leads = address === host ? `${address} is` : `its host leads to ${address}, which is`;
    return { ok: false, reason: `${leads} not a public address (${special}); WEBHOOKS_PRIVATE=on would allow it` };
  }
  return { ok: true, addresses };
}
