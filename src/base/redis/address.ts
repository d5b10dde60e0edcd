import { Cluster, type ClusterNode, type ClusterOptions, Redis, type RedisOptions } from 'ioredis';
import { TerminalError } from '../errors.ts';

/**
 * Where Redis is: an address, or a client whose settings (user, TLS, …) are taken over. A client that is passed in is
 * copied, never used itself: our commands need settings of their own, and it stays the caller's to close.
 *   redis://user:password@host:6379/0          one server            rediss:// with TLS
 *   redis+sentinel://host:26379,host:26380/mymaster?db=0             the master that the sentinels name
 *   redis+cluster://host:7000,host:7001                              a cluster
 */
export type RedisTarget = string | Redis | Cluster;

interface Address {
  protocol: string;
  username: string | undefined;
  password: string | undefined;
  hosts: { host: string; port: number }[];
  path: string;
  query: URLSearchParams;
}

const SHAPE =
  /^(?<protocol>[a-z+]+):\/\/(?:(?<user>[^:@/]*)(?::(?<password>[^@/]*))?@)?(?<hosts>[^/?]+)(?<path>\/[^?]*)?(?:\?(?<query>.*))?$/;

function parse(url: string): Address {
  const found = SHAPE.exec(url)?.groups;
  // The address itself may hold a password: it is not repeated.
  if (!found) throw new TerminalError('bad_config', 'not an address of Redis: expected redis://host:port');
  const hosts = found.hosts!.split(',').map((each) => {
    const at = /^(?:\[(?<v6>[^\]]+)\]|(?<name>[^:]+))(?::(?<port>\d+))?$/.exec(each)?.groups;
    const standard = found.protocol!.includes('sentinel') ? 26379 : 6379;
    const port = Number(at?.port ?? standard);
    if (!at || port < 1 || port > 65535) {
      throw new TerminalError('bad_config', `not an address of Redis: "${each}" is no host or host:port`);
    }
    return { host: (at.v6 ?? at.name)!, port };
  });
  return {
    protocol: found.protocol!,
    username: found.user ? decoded(found.user, 'the user') : undefined,
    password: found.password ? decoded(found.password, 'the password') : undefined,
    hosts,
    path: decoded((found.path ?? '').slice(1), 'what follows the hosts'),
    query: new URLSearchParams(found.query),
  };
}

/** A password is not repeated. */
function decoded(text: string, what: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new TerminalError('bad_config', `not an address of Redis: a % in ${what} must be written as %25`);
  }
}

/** Refuses unknown parameters by name: ignored, they would silently connect without TLS, or to another database. */
function refuseQuery(query: URLSearchParams, known: readonly string[], instead: string): void {
  for (const name of query.keys()) {
    if (known.includes(name)) continue;
    throw new TerminalError('bad_config', `an address of Redis does not know "?${name}=": ${instead}`);
  }
}

const IN_THE_ADDRESS = 'write rediss:// for TLS, redis://host:port/3 for a database';

function database(text: string | null): number {
  if (text === null || text === '') return 0;
  if (!/^\d{1,4}$/.test(text)) throw new TerminalError('bad_config', `not a database number of Redis: "${text}"`);
  return Number(text);
}

/** Without the option that changes the shape of replies. */
type Settings = Omit<RedisOptions, 'replyMapping'>;

/** Makes a client for `target` with `options` on top. */
export function redisClient(target: RedisTarget, options: Settings, cluster: ClusterOptions): Redis | Cluster {
  if (target instanceof Cluster) {
    const redisOptions: Settings = { ...target.options.redisOptions, ...options };
    return target.duplicate([], { ...cluster, redisOptions });
  }
  if (target instanceof Redis) return target.duplicate(options);
  if (typeof target !== 'string')
    throw new TerminalError(
      'bad_config',
      'redis must be an address (redis://host:port) or an ioredis 6 client, made with the copy of ioredis that this package uses; ' +
        'in place of any other client give the address',
    );

  const { protocol, username, password, hosts, path, query } = parse(target);
  const auth: Settings = { ...(username ? { username } : {}), ...(password ? { password } : {}) };
  const tls = protocol.startsWith('rediss') ? { tls: {} } : {};
  switch (protocol) {
    case 'redis':
    case 'rediss':
      if (hosts.length > 1) {
        throw new TerminalError('bad_config', 'several hosts need redis+cluster:// or redis+sentinel://');
      }
      refuseQuery(query, [], IN_THE_ADDRESS);
      return new Redis({ ...hosts[0]!, ...auth, ...tls, db: database(path), ...options });
    case 'redis+sentinel':
    case 'rediss+sentinel':
      if (path === '')
        throw new TerminalError('bad_config', 'redis+sentinel:// needs the name of the master: …/mymaster');
      refuseQuery(query, ['db'], 'it knows ?db=0; write rediss+sentinel:// for TLS');
      return new Redis({ sentinels: hosts, name: path, ...auth, ...tls, db: database(query.get('db')), ...options });
    case 'redis+cluster':
    case 'rediss+cluster':
      refuseQuery(query, [], 'write rediss+cluster:// for TLS; a cluster has database 0 only');
      if (path !== '' && path !== '0') {
        throw new TerminalError('bad_config', `a cluster of Redis has database 0 only, and not "${path}"`);
      }
      return new Cluster(hosts, { ...cluster, redisOptions: { ...auth, ...tls, ...options } });
    default:
      throw new TerminalError('bad_config', `not an address of Redis: ${protocol}:// is not known`);
  }
}

/** Identifies a Redis: the same in every process that uses the same address. Contains no secrets. */
export function placeOf(client: Redis | Cluster): string {
  if (client instanceof Cluster) {
    const { startupNodes } = client as unknown as { startupNodes: ClusterNode[] };
    return `cluster/${startupNodes.map(nodeOf).join(',')}`;
  }
  const { sentinels, name, path, host, port, db } = client.options;
  if (sentinels) return `sentinel/${name}/${db ?? 0}`;
  return `${path ?? `${host}:${port}`}/${db ?? 0}`;
}

/** A caller's Cluster may name a node by an address, whose password must not be repeated, or by its port alone. */
function nodeOf(node: ClusterNode): string {
  if (typeof node === 'number') return `127.0.0.1:${node}`;
  if (typeof node === 'object') return `${node.host}:${node.port}`;
  const { hostname, port } = new URL(node.includes('://') ? node : `redis://${node}`);
  return `${hostname}:${port || 6379}`;
}
