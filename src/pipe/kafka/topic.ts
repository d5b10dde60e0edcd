import { type Admin, ConfigResourceTypes, type metadataV12 } from '@platformatic/kafka';
import { TerminalError, unavailable } from '../../base/errors.ts';
import type { Logger } from '../../base/logger.ts';
import type { Runtime } from '../../base/runtime.ts';
import { sleep } from '../../base/timers.ts';
import { reasonOf, refusalOf, says } from './client.ts';

const RETENTION_MS = 7 * 86_400_000;
const REPLICAS = 3;
const MADE_LOOKS = 40;
const MADE_LOOK_MS = 50;

/** The current metadata of a topic. */
export interface TopicLook {
  /** A topic that is deleted and made anew has another id. */
  readonly id: string;
  /** By partition: the broker that leads it, or -1 if none does. */
  readonly leaders: readonly number[];
}

/** Null: there is no such topic. */
export async function lookAt(admin: Admin, topic: string): Promise<TopicLook | null> {
  try {
    const found = (await admin.metadata({ topics: [topic], forceUpdate: true })).topics.get(topic);
    return found ? { id: found.id, leaders: found.partitions.map(({ leader }) => leader) } : null;
  } catch (error) {
    // The library turns this error of the broker into a text.
    if ((error as Error).message === `Unknown topic ${topic}.` || says(error, 'UNKNOWN_TOPIC_OR_PARTITION'))
      return null;
    // It also rejects if one partition has no leader, while the others have one.
    const answer = (error as { response?: Partial<metadataV12.MetadataResponse> }).response?.topics?.[0];
    if (answer === undefined || answer.partitions.length === 0) throw error;
    const partitions = answer.partitions.toSorted((one, other) => one.partitionIndex - other.partitionIndex);
    return { id: answer.topicId, leaders: partitions.map(({ leaderId }) => leaderId) };
  }
}

/** Creates the topic if it is missing, and returns its number of partitions. Rejects while it cannot be used. */
export async function prepareTopic(
  admin: Admin,
  topic: string,
  partitions: number,
  { log, timers }: Runtime,
): Promise<number> {
  let there = await lookAt(admin, topic);
  if (there === null) {
    await create(admin, topic, partitions, log);
    // Brokers learn of a new topic one after the other.
    for (let looks = 0; looks < MADE_LOOKS && (there === null || there.leaders.includes(-1)); looks++) {
      await sleep(timers, MADE_LOOK_MS);
      there = await lookAt(admin, topic);
    }
    if (there === null) throw unavailable(`the topic ${topic} is being made`);
  }
  await check(admin, topic, log);
  const without = there.leaders.indexOf(-1);
  if (without !== -1) throw unavailable(`partition ${without} of the topic ${topic} has no leader`);
  return there.leaders.length;
}

async function create(admin: Admin, topic: string, partitions: number, log: Logger): Promise<void> {
  const { brokers } = await admin.metadata({ topics: [], forceUpdate: true });
  const replicas = Math.min(REPLICAS, brokers.size);
  const configs = {
    'cleanup.policy': 'delete',
    'retention.ms': String(RETENTION_MS),
    // With min.insync.replicas of 2, one of three replicas may be gone, and what was confirmed is still on two disks.
    'min.insync.replicas': replicas === REPLICAS ? '2' : '1',
    'unclean.leader.election.enable': 'false',
  };
  const ask = () =>
    admin.createTopics({
      topics: [{ topic, partitions, replicas }],
      configs: Object.entries(configs).map(([name, value]) => ({ name, value })),
    });
  try {
    // An old broker does not forward the request, but names the controller.
    await ask().catch((error: unknown) => (says(error, 'NOT_CONTROLLER') ? ask() : Promise.reject(error)));
    log.info({ topic, partitions, replicas }, 'the topic has been made');
  } catch (error) {
    // Another process was faster.
    if (says(error, 'TOPIC_ALREADY_EXISTS')) return;
    if (says(error, 'POLICY_VIOLATION', 'INVALID_CONFIG', 'INVALID_TOPIC_EXCEPTION', 'INVALID_PARTITIONS')) {
      throw new TerminalError('bad_config', `Kafka does not make the topic ${topic} (${reasonOf(error)})`);
    }
    throw error;
  }
}

async function check(admin: Admin, topic: string, log: Logger): Promise<void> {
  const key = 'cleanup.policy';
  const resources = [{ resourceType: ConfigResourceTypes.TOPIC, resourceName: topic, configurationKeys: [key] }];
  let policy: string | null | undefined;
  try {
    const [described] = await admin.describeConfigs({ resources });
    policy = described?.configs.find(({ name }) => name === key)?.value;
  } catch (error) {
    // A user that may write and read may lack the right to read settings.
    if (refusalOf(error) === null) throw error;
    log.debug({ topic, reason: reasonOf(error) }, 'the settings of the topic cannot be seen');
  }
  if (policy?.includes('compact')) {
    throw new TerminalError(
      'bad_config',
      `the topic ${topic} has ${key}=${policy}: of each sale it would keep the last parcel only; it must be delete`,
    );
  }
}
