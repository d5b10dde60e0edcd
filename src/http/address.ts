import { BlockList, isIP, isIPv4, isIPv6 } from 'node:net';
import type { FastifyRequest } from 'fastify';
import type { AddressInNetwork } from '../base/fair.ts';

/**
 * The key that per-address limits count by. An IPv6 subscriber owns a whole /64: if each of its 2^64 addresses counted
 * separately, it would have no limit at all. IPv4 mapped to IPv6 (`::ffff:1.2.3.4`, from a dual-stack socket) counts as IPv4.
 */
export function addressKey(ip: string): string {
  return keyOf(ip, 4);
}

/**
 * As `addressKey`, for limits on all addresses that somebody may own: of IPv6 the /48. A site may have all of it, most subscribers
 * have a /56, and some networks give each of many subscribers a /64 of it: a limit by this key is wider than that of an address.
 */
export function networkKey(ip: string): string {
  return keyOf(ip, 3);
}

/** Whose place in a queue a request takes. */
export function inNetwork(ip: string): AddressInNetwork {
  return { network: networkKey(ip), address: addressKey(ip) };
}

/** `length`: how many parts of 16 bits an IPv6 address is cut to. */
function keyOf(ip: string, length: number): string {
  if (!ip.includes(':')) return ip;
  const [address] = ip.split('%', 1) as [string];
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1];
  if (mapped !== undefined) return mapped;
  if (!isIPv6(address)) return ip;
  // Expand `::` to zeros, so that the first four parts can be taken.
  const [left, right] = address.split('::', 2) as [string, string?];
  const parts = left === '' ? [] : left.split(':');
  if (right !== undefined) {
    const after = right === '' ? [] : right.split(':');
    // A dotted tail stands for two parts.
    const afterLength = after.length + (right.includes('.') ? 1 : 0);
    while (parts.length + afterLength < 8) parts.push('0');
    parts.push(...after);
  }
  return `${parts
    .slice(0, length)
    .map((part) => Number.parseInt(part, 16).toString(16))
    .join(':')}::/${16 * length}`;
}

const LOCAL = new BlockList();
LOCAL.addSubnet('10.0.0.0', 8);
LOCAL.addSubnet('100.64.0.0', 10);
LOCAL.addSubnet('127.0.0.0', 8);
LOCAL.addSubnet('169.254.0.0', 16);
LOCAL.addSubnet('172.16.0.0', 12);
LOCAL.addSubnet('192.168.0.0', 16);
LOCAL.addAddress('::1', 'ipv6');
LOCAL.addSubnet('fc00::', 7, 'ipv6');
LOCAL.addSubnet('fe80::', 10, 'ipv6');

/** True for loopback and private networks, where a reverse proxy in front of the shop runs. */
export function isLocalAddress(ip: string): boolean {
  const key = addressKey(ip);
  if (isIPv4(key)) return LOCAL.check(key);
  const [address] = ip.split('%', 1) as [string];
  return isIPv6(address) && LOCAL.check(address, 'ipv6');
}

/**
 * The client's address, for the audit and for limits. `request.ip` is what a trusted proxy forwards and may be any text of
 * any length: if it is not an address (with or without a port), the socket's address is used.
 */
export function addressOf(request: FastifyRequest): string {
  return addressIn(request.ip) ?? addressIn(request.socket.remoteAddress) ?? 'unknown';
}

/** Whom a request counts for where callers share something; null: a local address, which may stand for everybody behind a proxy. */
export function callerOf(request: FastifyRequest): string | null {
  const address = addressOf(request);
  return isLocalAddress(address) ? null : addressKey(address);
}

/** Longer than any address with a port. */
const LENGTH_MAX = 64;

function addressIn(text: string | undefined): string | null {
  if (text === undefined || text.length > LENGTH_MAX) return null;
  const [, inBrackets] = /^\[([^\]]*)\](?::\d{1,5})?$/.exec(text) ?? [];
  const [, beforePort] = /^([\d.]+):\d{1,5}$/.exec(text) ?? [];
  const address = (inBrackets ?? beforePort ?? text).split('%')[0]!;
  if (isIP(address) === 0) return null;
  return /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1] ?? address;
}
