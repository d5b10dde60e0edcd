import { isIPv4 } from 'node:net';

/** Whether a host is this machine for nobody but itself: `localhost`, `127.0.0.1`, `::1`, in brackets or not. */
export function isLoopback(host: string): boolean {
  const bare = host.replace(/^\[(.*)\]$/, '$1').toLowerCase();
  if (bare === 'localhost' || bare === '::1') return true;
  return isIPv4(bare) && bare.startsWith('127.');
}

/** The hosts that an address of a server names, several for a cluster; none at all is this machine. */
export function hostsOf(url: string): string[] {
  const [, rest = ''] = /^[a-z][a-z0-9+]*:(?:\/\/)?([\s\S]*)$/i.exec(url) ?? [];
  const authority = rest.split(/[/?#]/, 1)[0]!;
  const hosts = authority
    .slice(authority.lastIndexOf('@') + 1)
    .split(',')
    .map((host) => /^(\[[^\]]*\]|[^:]*)/.exec(host)![0]);
  // PostgreSQL takes the host as a parameter, too; a path is a socket of this machine.
  const given = URL.parse(url)?.searchParams.getAll('host') ?? [];
  return [...hosts, ...given].filter((host) => host !== '' && !host.startsWith('/'));
}
