import { parseAdminKeys } from '../base/config.ts';
import { messageOf } from '../base/errors.ts';
import { UsageError } from './command.ts';

/** Shared by the commands that talk to a running server. */
export type Flags = Record<string, string | boolean | undefined>;

/** Joins --admin-key and its value: a random key may begin with a dash, and would be parsed as another flag. */
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

/** `why` completes the message if there is no key. */
export function adminKeyOf(flags: Flags, why: string): string {
  const given = flags['admin-key'];
  const text = given ?? process.env.DOORBUSTER_ADMIN_KEY;
  if (typeof text !== 'string' || text === '')
    throw new UsageError(`an admin key is needed ${why}: set --admin-key or DOORBUSTER_ADMIN_KEY`);
  try {
    return parseAdminKeys(text)[0]!.key;
  } catch (error) {
    throw new UsageError(`${given === undefined ? 'DOORBUSTER_ADMIN_KEY' : '--admin-key'} ${messageOf(error)}`);
  }
}
