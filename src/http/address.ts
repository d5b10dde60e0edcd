import { isIP, isIPv4 } from 'node:net';
import type { FastifyRequest } from 'fastify';

/** What a limit counts by: an IPv4 address, or the /64 of an IPv6 address, since whoever has one has all of its /64. */
export function addressKey(ip: string): string {
  const bare = ip.split('%')[0]!.toLowerCase();
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/.exec(bare)?.[1];
  if (mapped !== undefined && isIPv4(mapped)) return mapped;
  if (isIP(bare) !== 6) return bare;
  const [head, tail] = bare.split('::') as [string, string?];
  const left = head === '' ? [] : head.split(':');
  const right = tail === undefined || tail === '' ? [] : tail.split(':');
  // A dotted end stands for two groups.
  const groupsOf = (groups: string[]): number => groups.length + (groups.at(-1)?.includes('.') ? 1 : 0);
  const zeros = tail === undefined ? 0 : 8 - groupsOf(left) - groupsOf(right);
  const groups = [...left, ...Array.from({ length: zeros }, () => '0'), ...right].slice(0, 4);
  return `${groups.map((group) => Number.parseInt(group, 16).toString(16)).join(':')}::/64`;
}

/**
 * Where a request comes from: for the audit and for limits. `request.ip` is what a trusted proxy says, and may be any text of
 * any length: what is no address counts as that of the socket. With a port it is one.
 */
export function addressOf(request: FastifyRequest): string {
  return addressIn(request.ip) ?? addressIn(request.socket.remoteAddress) ?? 'unknown';
}

/** The longest address with a port is shorter. */
const LENGTH_MAX = 64;

function addressIn(text: string | undefined): string | null {
  if (text === undefined || text.length > LENGTH_MAX) return null;
  const [, inBrackets] = /^\[([^\]]*)\](?::\d{1,5})?$/.exec(text) ?? [];
  const [, beforePort] = /^([\d.]+):\d{1,5}$/.exec(text) ?? [];
  const address = (inBrackets ?? beforePort ?? text).split('%')[0]!;
  if (isIP(address) === 0) return null;
  return /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1] ?? address;
}
