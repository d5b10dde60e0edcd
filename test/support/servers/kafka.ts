import { cpSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { askDesk } from './desk.ts';
import { KAFKA, whyMissing } from './install.ts';
import { CONTROLLER_PORT_ABOVE, javaArgs, type KafkaSettings, kafkaProperties, PARTS } from './kafka-java.ts';
import { firstAnswer } from './probe.ts';
import { freePort, HOST, type Place, ServerProcess } from './process.ts';
import type { FaultProxy } from './proxy.ts';

/** True if this machine can start a Kafka of its own. */
export const kafkaAvailable: boolean = KAFKA.find() !== null;

export interface KafkaOptions {
  /** Further settings of the broker, e.g. { 'message.max.bytes': 1_000 }. */
  settings?: KafkaSettings;
  /**
   * Clients can reach the server through it: pass startProxy(0), its target is set here. Clients leave any other proxy at once,
   * because a broker tells them its address.
   */
  proxy?: FaultProxy;
}

/** After a kill it checks its logs first, and waits until its old session has expired. */
const READY_WITHIN_MS = 30_000;
/** ApiVersions, version 0, of a client without a name: a broker that answers it is ready. */
const API_VERSIONS = Buffer.from('0000000a0012000000000001ffff', 'hex');

/** A private Kafka: one node, broker and controller. */
export class KafkaServer extends ServerProcess {
  constructor({ settings = {}, proxy }: KafkaOptions = {}) {
    const kafka = KAFKA.find();
    if (kafka === null) throw new Error(whyMissing(KAFKA)!);
    super({
      name: 'kafka',
      command: 'java',
      portsAbove: [CONTROLLER_PORT_ABOVE],
      args: (place) => javaArgs(kafka, 'kafka.Kafka', [propertiesOf(place)]),
      prepare: async (place) => {
        const data = join(place.folder, 'data');
        rmSync(data, { recursive: true, force: true });
        cpSync(join(kafka, PARTS.data), data, { recursive: true });
        const proxied = proxy ? { port: await freePort(), proxyPort: proxy.port } : null;
        if (proxied) proxy!.target(proxied.port);
        writeFileSync(propertiesOf(place), kafkaProperties(place.port, data, { proxied, settings }));
      },
      ready: async ({ port }) => (await firstAnswer(HOST, port, API_VERSIONS, 1_000)).length > 0,
      readyWithinMs: READY_WITHIN_MS,
    });
  }

  /** Its only bootstrap server. */
  get url(): string {
    return `kafka://${this.host}:${this.port}`;
  }
}

/** A private Kafka on a free port, without topics; resolves when it serves. */
export async function startKafka(options: KafkaOptions = {}): Promise<KafkaServer> {
  const server = new KafkaServer(options);
  await server.start();
  return server;
}

function propertiesOf({ folder }: Place): string {
  return join(folder, 'server.properties');
}

let shared: Promise<KafkaServer> | null = null;

/**
 * A Kafka for tests that need any and leave it alone: TEST_KAFKA_URL, or else one that all test files share. It may hold
 * what others put there, so topics and groups must have a prefix of the test's own.
 */
export async function kafkaUrl(): Promise<string> {
  return process.env[KAFKA.urlVariable] || (await sharedKafkaUrl());
}

/** The same, but never TEST_KAFKA_URL: for tests that must know its accounts and its port. */
export async function sharedKafkaUrl(): Promise<string> {
  const atDesk = await askDesk('kafka');
  if (atDesk) return atDesk;
  // cleanUpServers may have ended it between two tests.
  if (shared !== null && !(await shared).running) shared = null;
  shared ??= startKafka();
  return (await shared).url;
}
