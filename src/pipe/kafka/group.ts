import {
  type Admin,
  apiVersionsV1,
  type Connection,
  decodeConsumerProtocolAssignment,
  decodeConsumerProtocolSubscription,
  encodeConsumerProtocolAssignment,
  encodeConsumerProtocolSubscription,
  FindCoordinatorKeyTypes,
  heartbeatV4,
  joinGroupV6,
  offsetCommitV8,
  syncGroupV4,
} from '@platformatic/kafka';
import { unavailable } from '../../base/errors.ts';
import { pause, type Timers } from '../../base/timers.ts';
import { assign } from './assign.ts';
import { answered, type Clients, connectionTo, drop, says } from './client.ts';
import { lookAt } from './topic.ts';

const AGAIN_MS = 50;
const WATCH_MS = 1000;
const PROTOCOL = 'doorbuster';
/** The first version that contains the partitions of each member; tools that inspect the group can read it. */
const SUBSCRIPTION_VERSION = 1;

export interface GroupOptions {
  readonly clients: Clients;
  readonly groupId: string;
  readonly topic: string;
  readonly answerMs: number;
  /** A member that is silent for so long is removed from the group. Also how long a rebalance waits for its members. */
  readonly sessionMs: number;
}

/** A member's right to commit: the group refuses it once there is a newer generation. */
export interface Ticket {
  readonly memberId: string;
  readonly generation: number;
}

export interface Membership extends Ticket {
  readonly partitions: readonly number[];
}

/**
 * Our membership in the consumer group, with protocol requests that brokers know since 2.4. The library's own consumer is not used:
 * it repeats in a new generation commits meant for an old one, and continues from where an answer of an old one ended.
 *
 *   join → sync → heartbeats → (a member came or left) → join …
 *
 * Joining blocks its connection until all members have joined, so it has its own: leaving and committing do not wait for it.
 */
export class Group {
  readonly #on: GroupOptions;
  readonly #timers: Timers;
  readonly #desk: Admin;
  readonly #joins: Admin;
  readonly #signal: AbortSignal;
  #coordinator: number | null = null;
  #memberId: string;

  /** `memberId`: our id before the connection was lost. Without it the group would wait for that member. */
  constructor(options: GroupOptions, timers: Timers, memberId: string, signal: AbortSignal) {
    const { clients, answerMs, sessionMs } = options;
    this.#on = options;
    this.#timers = timers;
    this.#signal = signal;
    this.#memberId = memberId;
    this.#desk = clients.admin({ connectMs: answerMs, answerMs });
    this.#joins = clients.admin({ connectMs: answerMs, answerMs: sessionMs + answerMs });
  }

  get memberId(): string {
    return this.#memberId;
  }

  drop(): void {
    drop(this.#desk);
    drop(this.#joins);
  }

  /** Drops the connection, and lets the next one begin at another broker. */
  fail(): void {
    this.#on.clients.fail(this.#desk);
    this.#on.clients.fail(this.#joins);
  }

  /**
   * Resolves with the partitions that are ours from now on. `owned`: those that were ours so far. `partitions`: how many the topic has,
   * as far as we know; a member that reports another number triggers a rebalance.
   */
  async join(owned: readonly number[], partitions: number): Promise<Membership> {
    const give = (): void => drop(this.#joins);
    const joined = new AbortController();
    this.#signal.addEventListener('abort', give);
    try {
      return await Promise.race([this.#join(owned, partitions), this.#watch(joined.signal)]);
    } finally {
      joined.abort();
      this.#signal.removeEventListener('abort', give);
    }
  }

  /** Joining may take long. Rejects if the broker is the reason. */
  async #watch(joined: AbortSignal): Promise<never> {
    while (!joined.aborted) {
      await pause(this.#timers, WATCH_MS, joined);
      if (!joined.aborted) await this.#answered(this.#look());
    }
    return new Promise(() => {});
  }

  async #look(): Promise<void> {
    await apiVersionsV1.api.async(await this.#connection(this.#desk), '', '');
  }

  async #join(owned: readonly number[], known: number): Promise<Membership> {
    const { groupId, topic, sessionMs } = this.#on;
    const metadata = encodeConsumerProtocolSubscription({
      version: SUBSCRIPTION_VERSION,
      topics: [topic],
      userData: String(known),
      ownedPartitions: [{ topic, partitions: [...owned] }],
    });
    const protocols = [{ name: PROTOCOL, metadata }];
    for (;;) {
      if (this.#signal.aborted) throw unavailable('the group was left');
      try {
        const connection = await this.#connection(this.#joins);
        const ask = joinGroupV6.api.async;
        const answer = ask(connection, groupId, sessionMs, sessionMs, this.#memberId, null, 'consumer', protocols);
        const joined = await this.#joined(answer);
        this.#memberId = joined.memberId;
        const { generationId: generation, memberId, leader, members } = joined;
        const given = memberId === leader ? await this.#assign(members) : [];
        const sync = syncGroupV4.api.async;
        const synced = await this.#joined(
          sync(connection, groupId, generation, memberId, null, 'consumer', PROTOCOL, given),
        );
        const { assignedPartitions } = decodeConsumerProtocolAssignment(synced.assignment);
        const partitions = assignedPartitions.find((each) => each.topic === topic)?.partitions ?? [];
        return { memberId, generation, partitions };
      } catch (error) {
        const required = says(error, 'MEMBER_ID_REQUIRED');
        if (required) this.#memberId = (error as { response: { memberId: string } }).response.memberId;
        else if (says(error, 'UNKNOWN_MEMBER_ID')) this.#memberId = '';
        else if (!says(error, 'REBALANCE_IN_PROGRESS', 'ILLEGAL_GENERATION')) throw error;
        if (!required) await pause(this.#timers, AGAIN_MS, this.#signal);
      }
    }
  }

  /** False: the group rebalances, or has done so without us. */
  async beat({ generation, memberId }: Ticket): Promise<boolean> {
    try {
      const connection = await this.#connection(this.#desk);
      await this.#answered(heartbeatV4.api.async(connection, this.#on.groupId, generation, memberId, null));
      return true;
    } catch (error) {
      if (!isFenced(error)) throw error;
      if (says(error, 'UNKNOWN_MEMBER_ID')) this.#memberId = '';
      return false;
    }
  }

  /** Returns false if these partitions may belong to another member by now. */
  async commit({ generation, memberId }: Ticket, offsets: ReadonlyMap<number, bigint>): Promise<boolean> {
    const { groupId, topic } = this.#on;
    const partitions = [...offsets].map(([partitionIndex, committedOffset]) => {
      return { partitionIndex, committedOffset, committedLeaderEpoch: -1, committedMetadata: null };
    });
    try {
      const connection = await this.#connection(this.#desk);
      const topics = [{ name: topic, partitions }];
      await this.#answered(offsetCommitV8.api.async(connection, groupId, generation, memberId, null, topics));
      return true;
    } catch (error) {
      if (isFenced(error)) return false;
      throw error;
    }
  }

  /** The committed offsets by partition, where there are any. */
  async committed(partitions: readonly number[]): Promise<Map<number, bigint>> {
    const { groupId, topic } = this.#on;
    const groups = [{ groupId, topics: [{ name: topic, partitionIndexes: [...partitions] }] }];
    const [group] = await this.#answered(this.#desk.listConsumerGroupOffsets({ groups }));
    const found = group?.topics.find(({ name }) => name === topic)?.partitions ?? [];
    const offsets = found.map(({ partitionIndex, committedOffset }) => [partitionIndex, committedOffset] as const);
    return new Map(offsets.filter(([, offset]) => offset >= 0n));
  }

  /** Leaves the group: others get our partitions now, not after the session time-out. */
  async leave(): Promise<void> {
    if (this.#memberId === '') return;
    const members = [{ memberId: this.#memberId }];
    this.#memberId = '';
    await this.#answered(this.#desk.removeMembersFromConsumerGroup({ groupId: this.#on.groupId, members }));
  }

  /** The leader of the group assigns the partitions. */
  async #assign(members: readonly { memberId: string; metadata: Buffer }[]) {
    const { topic } = this.#on;
    const look = await this.#answered(lookAt(this.#desk, topic));
    if (look === null) throw unavailable(`the topic ${topic} is not there`);
    const claims = members.map(({ memberId, metadata }) => {
      const { ownedPartitions } = decodeConsumerProtocolSubscription(metadata);
      return { memberId, owned: ownedPartitions.find((each) => each.topic === topic)?.partitions ?? [] };
    });
    return [...assign(claims, look.leaders.length)].map(([memberId, partitions]) => {
      const assignment = encodeConsumerProtocolAssignment({ version: 0, assignedPartitions: [{ topic, partitions }] });
      return { memberId, assignment };
    });
  }

  async #connection(client: Admin): Promise<Connection> {
    if (this.#coordinator === null) {
      const keys = [this.#on.groupId];
      const found = await this.#answered(this.#desk.findCoordinator({ keyType: FindCoordinatorKeyTypes.GROUP, keys }));
      this.#coordinator = found[0]!.nodeId;
    }
    return this.#answered(connectionTo(client, this.#coordinator));
  }

  #answered<T>(answer: Promise<T>): Promise<T> {
    return answered(this.#timers, answer, this.#on.answerMs);
  }

  #joined<T>(answer: Promise<T>): Promise<T> {
    return answered(this.#timers, answer, this.#on.sessionMs + this.#on.answerMs);
  }
}

/** The group has a newer generation, or will have. */
function isFenced(error: unknown): boolean {
  return says(error, 'REBALANCE_IN_PROGRESS', 'ILLEGAL_GENERATION', 'UNKNOWN_MEMBER_ID', 'FENCED_INSTANCE_ID');
}
