import { TerminalError } from '../../base/errors.ts';

/** `amqp(s)://user:password@host:port,host:port/vhost?heartbeat=seconds` */
export interface RabbitAddress {
  readonly tls: boolean;
  readonly username: string;
  readonly password: string;
  readonly vhost: string;
  /** Nodes of one cluster, tried in turn. */
  readonly hosts: readonly { readonly host: string; readonly port: number }[];
  /** Seconds. A peer that is silent for two to three times as long counts as gone. */
  readonly heartbeat: number;
}

const SHAPE =
  /^(?<protocol>amqps?):\/\/(?:(?<user>[^:@/?]*)(?::(?<password>[^@/?]*))?@)?(?<hosts>[^/?@]+)(?:\/(?<vhost>[^/?]*))?(?:\?(?<query>.*))?$/;
const HOST = /^(?:\[(?<v6>[^\]]+)\]|(?<name>[^:[\]]+))(?::(?<port>\d{1,5}))?$/;
/** The shortest that RabbitMQ calls safe: a worker that hangs keeps its queues from others for two to three heartbeats. */
const HEARTBEAT = 5;

export function parseRabbitUrl(url: string): RabbitAddress {
  const found = SHAPE.exec(url)?.groups;
  // The address may contain a password: do not repeat it.
  if (!found) throw bad('expected amqp://user:password@host:port/vhost, with special characters written as %2F');
  const { protocol, user = 'guest', password = 'guest', hosts, vhost, query } = found;
  const tls = protocol === 'amqps';
  return {
    tls,
    username: decoded(user, 'user'),
    password: decoded(password, 'password'),
    vhost: vhost ? decoded(vhost, 'virtual host') : '/',
    hosts: hosts!.split(',').map((each) => hostOf(each, tls ? 5671 : 5672)),
    heartbeat: heartbeatIn(new URLSearchParams(query)),
  };
}

function hostOf(text: string, standardPort: number): { host: string; port: number } {
  const found = HOST.exec(text)?.groups;
  const port = Number(found?.port ?? standardPort);
  if (!found || port < 1 || port > 65535) throw bad(`"${text}" is no host or host:port`);
  return { host: (found.v6 ?? found.name)!, port };
}

function heartbeatIn(query: URLSearchParams): number {
  for (const name of query.keys()) if (name !== 'heartbeat') throw bad(`?${name}= is not known`);
  const text = query.get('heartbeat') ?? String(HEARTBEAT);
  // None at all (0) would let a worker that hangs keep its queues for ever.
  if (!/^\d{1,4}$/.test(text) || Number(text) < 1) throw bad('?heartbeat= takes whole seconds, 1 or more');
  return Number(text);
}

function decoded(text: string, what: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw bad(`the ${what} has a % that is not followed by two hexadecimal digits`);
  }
}

function bad(why: string): TerminalError {
  return new TerminalError('bad_config', `not an address of RabbitMQ: ${why}`);
}
