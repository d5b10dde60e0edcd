import { isIPv4, isIPv6 } from 'node:net';

/**
 * Tells addresses of the public Internet from all others. Without it, an admin who names a webhook's address could reach what
 * only this machine can: its own ports, private networks, the cloud's metadata service (SSRF).
 *
 * Follows IANA's registries of special-purpose addresses. An IPv6 address that embeds and leads to an IPv4 address is judged by
 * the latter.
 */
const IPV4: readonly [network: string, what: string][] = [
  ['0.0.0.0/8', 'unspecified'],
  ['10.0.0.0/8', 'private'],
  ['100.64.0.0/10', 'carrier-grade NAT'],
  ['127.0.0.0/8', 'loopback'],
  ['169.254.0.0/16', 'link-local'],
  ['172.16.0.0/12', 'private'],
  // In a public network, but Azure serves its own machines there.
  ['168.63.129.16/32', 'cloud metadata'],
  ['192.0.0.0/24', 'reserved for protocols'],
  ['192.0.2.0/24', 'for documentation'],
  ['192.88.99.0/24', 'a 6to4 relay'],
  ['192.168.0.0/16', 'private'],
  ['198.18.0.0/15', 'for benchmarks'],
  ['198.51.100.0/24', 'for documentation'],
  ['203.0.113.0/24', 'for documentation'],
  ['224.0.0.0/4', 'multicast'],
  ['255.255.255.255/32', 'broadcast'],
  ['240.0.0.0/4', 'reserved'],
];

const IPV6: readonly [network: string, what: string][] = [
  ['::/128', 'unspecified'],
  ['::1/128', 'loopback'],
  ['64:ff9b:1::/48', 'NAT64 of a local network'],
  ['100::/64', 'discarded'],
  ['2001::/23', 'reserved for protocols'],
  ['2001:db8::/32', 'for documentation'],
  ['3fff::/20', 'for documentation'],
  ['fc00::/7', 'unique local'],
  ['fe80::/10', 'link-local'],
  ['fec0::/10', 'site-local'],
  ['ff00::/8', 'multicast'],
];

/** IPv6 networks whose addresses embed an IPv4 address, and the position of that address in bits from the right. */
const CARRIERS: readonly [network: string, shift: bigint][] = [
  ['::ffff:0:0/96', 0n],
  // IPv4-translated addresses (SIIT).
  ['::ffff:0:0:0/96', 0n],
  ['64:ff9b::/96', 0n],
  ['2002::/16', 80n],
];

/** Everything outside of this is unassigned. */
const GLOBAL_UNICAST = '2000::/3';

/** What kind of special address it is; null: a public one. */
export function specialAddress(text: string): string | null {
  const [address] = text.split('%', 1) as [string];
  if (isIPv4(address)) return specialIPv4(ipv4(address));
  if (!isIPv6(address)) return 'no address';
  const bits = ipv6(address);
  for (const { network, shift } of carriers) if (inside(network, bits)) return specialIPv4((bits >> shift) & MASK_32);
  const found = special6.find(({ network }) => inside(network, bits));
  if (found !== undefined) return found.what;
  return inside(globalUnicast, bits) ? null : 'reserved';
}

function specialIPv4(bits: bigint): string | null {
  return special4.find(({ network }) => inside(network, bits))?.what ?? null;
}

const MASK_32 = 0xffff_ffffn;

interface Network {
  readonly first: bigint;
  /** Number of host bits. */
  readonly free: bigint;
}

const special4 = IPV4.map(([text, what]) => ({ network: networkOf(text), what }));
const special6 = IPV6.map(([text, what]) => ({ network: networkOf(text), what }));
const carriers = CARRIERS.map(([text, shift]) => ({ network: networkOf(text), shift }));
const globalUnicast = networkOf(GLOBAL_UNICAST);

function networkOf(text: string): Network {
  const [address, length] = text.split('/') as [string, string];
  const v4 = isIPv4(address);
  const free = BigInt((v4 ? 32 : 128) - Number(length));
  return { first: (v4 ? ipv4(address) : ipv6(address)) >> free, free };
}

function inside({ first, free }: Network, bits: bigint): boolean {
  return bits >> free === first;
}

function ipv4(text: string): bigint {
  return text.split('.').reduce((bits, part) => (bits << 8n) | BigInt(part), 0n);
}

function ipv6(text: string): bigint {
  const dotted = /\d+\.\d+\.\d+\.\d+$/.exec(text)?.[0];
  if (dotted !== undefined) {
    const bits = ipv4(dotted);
    const groups = `${(bits >> 16n).toString(16)}:${(bits & 0xffffn).toString(16)}`;
    return ipv6(text.slice(0, -dotted.length) + groups);
  }
  const [left, right] = text.split('::') as [string, string?];
  const groupsOf = (part: string | undefined): string[] => (part ? part.split(':') : []);
  const head = groupsOf(left);
  const tail = groupsOf(right);
  const zeros = right === undefined ? 0 : 8 - head.length - tail.length;
  const groups = [...head, ...Array.from({ length: zeros }, () => '0'), ...tail];
  return groups.reduce((bits, group) => (bits << 16n) | BigInt(`0x${group}`), 0n);
}
