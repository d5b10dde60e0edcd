import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { HOST } from './process.ts';
import { entriesOf } from './program.ts';

/** What kafka-install.ts adds to Kafka's folder. */
export const PARTS = {
  jars: 'lib',
  /** A formatted, empty data folder. */
  data: 'data',
  /** Java's archive of loaded classes, which nearly halves the start. Kafka also runs without it. */
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
  // By name and in order, not as a folder: the class archive is valid only for exactly this list.
  const classPath = entriesOf(jars)
    .sort()
    .map((jar) => join(jars, jar));
  const classes = join(folder, PARTS.classes);
  return [
    '-Xms64m',
    '-Xmx384m',
    // For two cores and a life of seconds: no expensive optimisation.
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

/** A second listener of the broker, for clients that come through a proxy: it advertises the proxy's address. */
export interface ProxiedPort {
  port: number;
  proxyPort: number;
}

/** The properties file of a single node that is broker and controller. */
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
    // There is no second node for a replica.
    'offsets.topic.replication.factor': 1,
    'transaction.state.log.replication.factor': 1,
    'transaction.state.log.min.isr': 1,
    'share.coordinator.state.topic.replication.factor': 1,
    'share.coordinator.state.topic.min.isr': 1,
    // Its internal topic has 50 partitions by default, which are created on first use and opened after a kill.
    'offsets.topic.num.partitions': 1,
    'transaction.state.log.num.partitions': 1,
    'share.coordinator.state.topic.num.partitions': 1,
    // Using a topic that was not created is an error, and must not look like success.
    'auto.create.topics.enable': false,
    // By default the first member of a group waits 3 s for others.
    'group.initial.rebalance.delay.ms': 0,
    // After a kill it cannot come back before its session has expired: 9 s by default.
    'broker.session.timeout.ms': 1_500,
    'broker.heartbeat.interval.ms': 300,
    'num.network.threads': 1,
    'num.io.threads': 2,
    'background.threads': 2,
    // 128 MB by default, a third of its memory.
    'log.cleaner.dedupe.buffer.size': 4_194_304,
    ...further,
  };
  return Object.entries(settings)
    .map(([name, value]) => `${name}=${value}\n`)
    .join('');
}
