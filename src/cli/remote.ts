import { parseAdminKeys } from '../base/config.ts';
import { messageOf } from '../base/errors.ts';
import { UsageError } from './command.ts';

/** What commands that talk to a running server have in common. */
export type Flags = Record<string, string | boolean | undefined>;

/** A random key may begin with a dash, which would be taken for another flag; what follows --admin-key is the key. */
export function withKeyJoined(args: string[]): string[] {
  const at = args.indexOf('--admin-key');
  const key = args[at + 1];
  if (at < 0 || key === undefined) return args;
  return [...args.slice(0, at), `--admin-key=${key}`, ...args.slice(at + 2)];
}

export function urlOf(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || !['http:', 'https:'].includes(url.protocol))
    throw new UsageError(`--url must be an http or https address, not ${text}`);
  return url;
}

/** `why` it is needed, for who has none. */
export function adminKeyOf(flags: Flags, why: string): string {
  const given = flags['admin-key'];
  const text = given ?? process.env.DOORBUSTER_ADMIN_KEY;
  if (typeof text !== 'string' || text === '')
    throw new UsageError(`an admin key is needed ${why}: --admin-key, or DOORBUSTER_ADMIN_KEY`);
  try {
    return parseAdminKeys(text)[0]!.key;
  } catch (error) {
    throw new UsageError(`${given === undefined ? 'DOORBUSTER_ADMIN_KEY' : '--admin-key'} ${messageOf(error)}`);
  }
}
