import { TerminalError } from '../../base/errors.ts';

/**
 * Where Kafka is, and which topic of it is ours:
 *   kafka://host:9092,host:9092/topic                 the topic may be left out
 *   kafka://user:password@host:9092?sasl=scram-sha-512     plain (the default), scram-sha-256, scram-sha-512
 *   kafka+ssl://host:9093/topic                       with TLS; certificates as Node.js trusts them (NODE_EXTRA_CA_CERTS)
 */
export interface KafkaAddress {
  readonly brokers: { readonly host: string; readonly port: number }[];
  readonly topic: string | null;
  readonly tls: boolean;
  readonly sasl: { readonly mechanism: Mechanism; readonly username: string; readonly password: string } | null;
}

type Mechanism = 'PLAIN' | 'SCRAM-SHA-256' | 'SCRAM-SHA-512';

const SHAPE =
  /^kafka(?<tls>\+ssl)?:\/\/(?:(?<user>[^:@/]+):(?<password>[^@/]*)@)?(?<hosts>[^/?@]+)(?:\/(?<topic>[^?]*))?(?:\?(?<query>.*))?$/;
const HOST = /^(?:\[(?<v6>[^\]]+)\]|(?<name>[^:]+))(?::(?<port>\d+))?$/;
const TOPIC = /^(?!\.\.?$)[\w.-]{1,249}$/;
const MECHANISMS: readonly string[] = ['PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512'] satisfies Mechanism[];

export function parseAddress(url: string): KafkaAddress {
  const found = SHAPE.exec(url)?.groups;
  // The address may contain a password: do not repeat it.
  if (!found) throw bad('expected kafka://host:port/topic or kafka+ssl://user:password@host:port/topic');
  const brokers = found.hosts!.split(',').map((each) => {
    const at = HOST.exec(each)?.groups;
    const port = Number(at?.port ?? 9092);
    if (!at || port < 1 || port > 65_535) throw bad(`"${each}" is no host or host:port`);
    return { host: (at.v6 ?? at.name)!, port };
  });
  const topic = decode(found.topic ?? '');
  if (topic !== '' && !TOPIC.test(topic)) throw bad(`"${topic}" cannot be the name of a topic`);
  const query = new URLSearchParams(found.query);
  for (const name of query.keys()) if (name !== 'sasl') throw bad(`"${name}" is not known`);
  const mechanism = (query.get('sasl') ?? 'plain').toUpperCase();
  if (!MECHANISMS.includes(mechanism)) throw bad('sasl is one of plain, scram-sha-256, scram-sha-512');
  const { user, password } = found;
  if (user === undefined && query.has('sasl')) throw bad('sasl needs a user and a password');
  return {
    brokers,
    topic: topic === '' ? null : topic,
    tls: found.tls !== undefined,
    sasl:
      user === undefined
        ? null
        : { mechanism: mechanism as Mechanism, username: decode(user), password: decode(password!) },
  };
}

/** The characters that Kafka allows in names; a Redis prefix may also contain colons. */
export function nameFrom(prefix: string): string {
  return prefix.replaceAll(':', '-');
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw bad('a % must be followed by two hexadecimal digits');
  }
}

function bad(why: string): TerminalError {
  return new TerminalError('bad_config', `not an address of Kafka: ${why}`);
}
