import { isIPv4 } from 'node:net';

/** True if a host is a loopback address: `localhost`, `127.0.0.1` or `::1`, with or without brackets. */
export function isLoopback(host: string): boolean {
  const bare = host.replace(/^\[(.*)\]$/, '$1').toLowerCase();
  if (bare === 'localhost' || bare === '::1') return true;
  return isIPv4(bare) && bare.startsWith('127.');
}

/** The hosts in a server's address; a cluster has several. None means this machine. */
export function hostsOf(url: string): string[] {
  const [, rest = ''] = /^[a-z][a-z0-9+]*:(?:\/\/)?([\s\S]*)$/i.exec(url) ?? [];
  const authority = rest.split(/[/?#]/, 1)[0]!;
  const hosts = authority
    .slice(authority.lastIndexOf('@') + 1)
    .split(',')
    .map((host) => /^(\[[^\]]*\]|[^:]*)/.exec(host)![0]);
  // PostgreSQL also takes the host as a parameter; a path is a Unix socket.
  const given = URL.parse(url)?.searchParams.getAll('host') ?? [];
  return [...hosts, ...given].filter((host) => host !== '' && !host.startsWith('/'));
}
