import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { HOST } from './process.ts';
import { entriesOf } from './program.ts';

/** What kafka-install.ts puts into Kafka's folder. */
export const PARTS = {
  jars: 'lib',
  /** A data folder that is formatted and empty. */
  data: 'data',
  /** The classes as Java has them in memory: it starts in little more than half the time. Kafka runs without, too. */
  classes: 'classes.jsa',
};

/** The controller's port. It talks to nobody but the broker in the same process. */
export const CONTROLLER_PORT_ABOVE = 10_000;

/** Arguments of java that run a class of Kafka. `options`: further ones of Java itself. */
export function javaArgs(
  folder: string,
  main: string,
  args: readonly string[],
  options: readonly string[] = [],
): string[] {
  const jars = join(folder, PARTS.jars);
  // By name and in order, not as a whole folder: the classes in memory are good for the very same list only.
  const classPath = entriesOf(jars)
    .sort()
    .map((jar) => join(jars, jar));
  const classes = join(folder, PARTS.classes);
  return [
    '-Xms64m',
    '-Xmx384m',
    // Two cores, and a life of seconds: what takes long to get going never pays.
    '-XX:+UseSerialGC',
    '-XX:TieredStopAtLevel=1',
    '-Djava.net.preferIPv4Stack=true',
    '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn',
    ...(existsSync(classes) ? [`-XX:SharedArchiveFile=${classes}`] : []),
    ...options,
    '-cp',
    classPath.join(delimiter),
    main,
    ...args,
  ];
}

export type KafkaSettings = Record<string, string | number | boolean>;

/** A second door of the broker, for those who come through a proxy: it names the proxy as the way to itself. */
export interface ProxiedPort {
  port: number;
  proxyPort: number;
}

/** Of one node that is broker and controller, as a file of properties. */
export function kafkaProperties(
  port: number,
  data: string,
  { proxied, settings: further }: { proxied?: ProxiedPort | null; settings?: KafkaSettings } = {},
): string {
  const at = (name: string, itsPort: number): string => `${name}://${HOST}:${itsPort}`;
  const controllerPort = port + CONTROLLER_PORT_ABOVE;
  const doors = proxied ? [at('PROXIED', proxied.port)] : [];
  const proxies = proxied ? [at('PROXIED', proxied.proxyPort)] : [];
  const settings: KafkaSettings = {
    'process.roles': 'broker,controller',
    'node.id': 1,
    'controller.quorum.voters': `1@${HOST}:${controllerPort}`,
    listeners: [at('PLAINTEXT', port), at('CONTROLLER', controllerPort), ...doors].join(),
    'advertised.listeners': [at('PLAINTEXT', port), ...proxies].join(),
    'controller.listener.names': 'CONTROLLER',
    'inter.broker.listener.name': 'PLAINTEXT',
    'listener.security.protocol.map': 'PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT',
    'log.dirs': data,
    // There is no second node to have a copy.
    'offsets.topic.replication.factor': 1,
    'transaction.state.log.replication.factor': 1,
    'transaction.state.log.min.isr': 1,
    'share.coordinator.state.topic.replication.factor': 1,
    'share.coordinator.state.topic.min.isr': 1,
    // Of its own topics it makes all partitions at the first use, and opens all after a kill: 50 otherwise.
    'offsets.topic.num.partitions': 1,
    'transaction.state.log.num.partitions': 1,
    'share.coordinator.state.topic.num.partitions': 1,
    // A topic that nobody has made is a mistake, and must not look like a success.
    'auto.create.topics.enable': false,
    // Otherwise the first member of a group waits 3 s for others.
    'group.initial.rebalance.delay.ms': 0,
    // After a kill it counts as present for so long, and may not come back before: 9 s otherwise.
    'broker.session.timeout.ms': 1_500,
    'broker.heartbeat.interval.ms': 300,
    'num.network.threads': 1,
    'num.io.threads': 2,
    'background.threads': 2,
    // 128 MB otherwise, a third of all the memory that it has.
    'log.cleaner.dedupe.buffer.size': 4_194_304,
    ...further,
  };
  return Object.entries(settings)
    .map(([name, value]) => `${name}=${value}\n`)
    .join('');
}
