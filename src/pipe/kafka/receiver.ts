import { type Admin, fetchV11, ListOffsetTimestamps, ProtocolError, type RecordsBatch } from '@platformatic/kafka';
import { backOffMs } from '../../base/back-off.ts';
import { unavailable } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { pause, within } from '../../base/timers.ts';
import type { Delivery } from '../brokers/port.ts';
import { readParcel } from '../parcel.ts';
import { answered, connectionTo, drop, reasonOf, says } from './client.ts';
import { Group, type GroupOptions, type Membership, type Ticket } from './group.ts';
import { Share } from './share.ts';
import { lookAt, type TopicLook } from './topic.ts';

/** Parts that can be out independently: the group's coordinator, and the leaders of our partitions. */
export type Side = 'group' | 'read';

export interface ReceiverOptions extends GroupOptions {
  readonly inHandMax: number;
  readonly deliver: (delivery: Delivery) => void;
  readonly failed: (side: Side, error: unknown) => void;
  readonly back: (side: Side) => void;
}

const AGAIN_MS_MIN = 25;
const AGAIN_MS_MAX = 2000;
/** A new group has no coordinator yet, and a coordinator that moves must load first: neither is an outage. */
const COORDINATOR_MS = 3000;
/** Heartbeats in one session. They also tell a member that others want to join. */
const BEATS = 10;
/** How long acknowledgements are collected before a commit. At worst, what was not committed is delivered again. */
const COMMIT_MS = 100;
const COMMIT_AGAIN_MS = 1000;
/** Pause before a rebalance: what is in hand may be done by then, and need not be delivered again elsewhere. */
const LET_GO_MS = 500;
/** Time limit of each of the two requests of leaving. */
const GO_MS = 1000;
/** How long a broker holds a fetch that finds nothing, */
const FETCH_WAIT_MS = 1000;
/** and when a partition is left out of the fetch: that one may be wanted soon. */
const FETCH_WAIT_SHORT_MS = 20;
const FETCH_BYTES = 2 * 1024 * 1024;
const FETCH_BYTES_OF_PARTITION = 512 * 1024;
/** More is fetched before everything fetched is delivered. */
const WAITING_MIN = 128;
/** How often metadata is refreshed: leaders, and new partitions. */
const LOOK_MS = 2000;
const CONTROL = 1 << 5;
const OFFSET_OUT_OF_RANGE = 1;

/**
 * One stay in the consumer group, from receive() to giveBack(). Reading begins where the group's commits end.
 *
 *   ours → fetched → handed over → done → committed, when all before it are done
 *
 * After a rebalance a member that keeps a partition goes on with it. If the connection to the group is lost, or the group has removed
 * us, acknowledgements of what is in hand are void, and it is delivered again, here or elsewhere.
 */
export class Receiver {
  readonly #on: ReceiverOptions;
  readonly #runtime: Runtime;
  readonly #stop = new AbortController();
  readonly #running: Promise<void>;
  readonly #shares = new Map<number, Share>();
  #group: Group | null = null;
  #ticket: Ticket | null = null;
  /** False during a rebalance: our partitions are not known. */
  #mayHandOver = false;
  #beatMs = 0;
  #inHand = 0;
  #handing = false;
  /** Aborted when there is room again. */
  #room = new AbortController();
  #waitsForRoom = false;
  #cancelCommit: (() => void) | null = null;
  #committing: Promise<void> = Promise.resolve();
  /** The number of partitions of the topic, as far as we know. */
  #partitions = 0;
  #topicId: string | null = null;
  /** Why we join again although the group did not ask for it. */
  #rejoin: Error | 'more partitions' | null = null;

  constructor(options: ReceiverOptions, runtime: Runtime) {
    this.#on = options;
    this.#runtime = runtime;
    this.#running = this.#run();
  }

  /** Leaves our partitions to others. Takes bounded time, whatever the broker does. */
  async stop(): Promise<void> {
    this.#stop.abort();
    await within(this.#runtime.timers, this.#running, 2 * GO_MS + 250);
    this.#group?.drop();
    this.#loseAll();
  }

  async #run(): Promise<void> {
    const { timers, clock, log } = this.#runtime;
    const { signal } = this.#stop;
    let memberId = '';
    let outsideMs: number | null = clock.monotonic();
    let failures = 0;
    while (!signal.aborted) {
      const group = new Group(this.#on, timers, memberId, signal);
      this.#group = group;
      this.#topicId = null;
      try {
        await this.#belong(group, () => {
          failures = 0;
          outsideMs = null;
        });
      } catch (error) {
        outsideMs ??= clock.monotonic();
        const moves = says(error, 'COORDINATOR_NOT_AVAILABLE', 'COORDINATOR_LOAD_IN_PROGRESS', 'NOT_COORDINATOR');
        const wait = moves && clock.monotonic() - outsideMs < COORDINATOR_MS;
        if (!signal.aborted && !wait) this.#on.failed('group', error);
        if (!signal.aborted) group.fail();
      }
      if (signal.aborted) {
        await within(timers, this.#commit(), GO_MS);
        await within(timers, group.leave(), GO_MS).catch((error: unknown) => {
          // Others get our partitions after the session time-out.
          log.debug({ reason: reasonOf(error) }, 'the consumer group was not told that we go');
        });
      }
      this.#loseAll();
      memberId = group.memberId;
      group.drop();
      await pause(timers, backOffMs(failures++, AGAIN_MS_MIN, AGAIN_MS_MAX), signal);
    }
  }

  /** Runs while the group can be reached. */
  async #belong(group: Group, joined: () => void): Promise<void> {
    let before: Membership | null = null;
    while (!this.#stop.signal.aborted) {
      const now: Membership = await group.join([...this.#shares.keys()], this.#partitions);
      await this.#take(group, before, now);
      before = now;
      this.#ticket = now;
      this.#mayHandOver = true;
      this.#rejoin = null;
      joined();
      await this.#hold(group, now);
      this.#mayHandOver = false;
      // The group has removed us: others have our partitions.
      if (group.memberId !== now.memberId) this.#loseAll();
      else await this.#letGo();
    }
  }

  /** A partition that stays ours was nobody else's in between. For all others the position is the last commit. */
  async #take(group: Group, before: Membership | null, now: Membership): Promise<void> {
    const goesOn = before?.memberId === now.memberId && before.generation + 1 === now.generation;
    for (const share of this.#shares.values()) {
      if (!goesOn || !now.partitions.includes(share.partition)) this.#lose(share);
    }
    const added = now.partitions.filter((partition) => !this.#shares.has(partition));
    if (added.length === 0) return;
    const committed = await group.committed(added);
    for (const partition of added) this.#shares.set(partition, new Share(partition, committed.get(partition) ?? 0n));
  }

  /** Returns at a rebalance, or when we are to stop. */
  async #hold(group: Group, ticket: Ticket): Promise<void> {
    const { timers, clock } = this.#runtime;
    const { signal } = this.#stop;
    const round = new AbortController();
    void this.#read(AbortSignal.any([round.signal, signal]));
    try {
      while (!signal.aborted) {
        const beatMs = clock.monotonic();
        if (!(await group.beat(ticket))) return;
        this.#beatMs = beatMs;
        this.#on.back('group');
        this.#handOver();
        await pause(timers, this.#on.sessionMs / BEATS, signal);
        const why = this.#rejoin;
        this.#rejoin = null;
        if (why instanceof Error) throw why;
        if (why !== null) return;
      }
    } finally {
      round.abort();
    }
  }

  async #letGo(): Promise<void> {
    const { timers, clock } = this.#runtime;
    const { signal } = this.#stop;
    const untilMs = clock.monotonic() + LET_GO_MS;
    while (this.#inHand > 0 && clock.monotonic() < untilMs && !signal.aborted) await pause(timers, 10, signal);
    await this.#commit();
  }

  #lose(share: Share): void {
    this.#shares.delete(share.partition);
    this.#inHand -= share.inHand;
  }

  #loseAll(): void {
    this.#ticket = null;
    this.#mayHandOver = false;
    for (const share of this.#shares.values()) this.#lose(share);
  }

  // Reading

  async #read(signal: AbortSignal): Promise<void> {
    const { timers } = this.#runtime;
    const { clients, answerMs } = this.#on;
    let failures = 0;
    while (!signal.aborted) {
      const client = clients.admin({ connectMs: answerMs, answerMs: FETCH_WAIT_MS + answerMs });
      const end = (): void => drop(client);
      signal.addEventListener('abort', end);
      try {
        await this.#readBy(client, signal, () => {
          failures = 0;
          this.#on.back('read');
        });
      } catch (error) {
        if (!signal.aborted) {
          clients.fail(client);
          this.#on.failed('read', error);
        }
      } finally {
        signal.removeEventListener('abort', end);
        drop(client);
      }
      await pause(timers, backOffMs(failures++, AGAIN_MS_MIN, AGAIN_MS_MAX), signal);
    }
  }

  async #readBy(client: Admin, signal: AbortSignal, read: () => void): Promise<void> {
    const { timers, clock } = this.#runtime;
    const { topic, answerMs } = this.#on;
    while (!signal.aborted) {
      const look = await answered(timers, lookAt(client, topic), answerMs);
      if (signal.aborted) return;
      const leaders = this.#leadersOf(look);
      const led = Map.groupBy(this.#shares.keys(), (partition) => leaders[partition] ?? -1);
      const headless = led.get(-1)?.[0];
      led.delete(-1);
      let isRead = read;
      if (headless !== undefined) {
        this.#on.failed('read', unavailable(`partition ${headless} of the topic ${topic} has no leader`));
        // Not while one partition still fails.
        isRead = () => {};
      }
      const untilMs = clock.monotonic() + (headless === undefined ? LOOK_MS : AGAIN_MS_MAX);
      if (led.size === 0) {
        isRead();
        await pause(timers, untilMs - clock.monotonic(), signal);
      }
      await Promise.all(
        [...led].map(([node, partitions]) => this.#readFrom(client, node, partitions, untilMs, signal, isRead)),
      );
    }
  }

  /** Rejoins the group if the topic has changed. */
  #leadersOf(look: TopicLook | null): readonly number[] {
    const { topic } = this.#on;
    if (look === null || look.id !== (this.#topicId ?? look.id)) {
      // A topic that was made anew has other offsets: commit none of the old ones.
      this.#loseAll();
      this.#rejoin = unavailable(`the topic ${topic} ${look === null ? 'is not there' : 'has been made anew'}`);
      throw this.#rejoin;
    }
    this.#topicId = look.id;
    const partitions = look.leaders.length;
    if (this.#partitions !== 0 && partitions !== this.#partitions) {
      this.#runtime.log.warn(
        { topic, partitions, before: this.#partitions },
        'the topic has another number of partitions; what writes to it learns of it when it is started again',
      );
      this.#rejoin = 'more partitions';
    }
    this.#partitions = partitions;
    return look.leaders;
  }

  async #readFrom(
    client: Admin,
    node: number,
    partitions: readonly number[],
    untilMs: number,
    signal: AbortSignal,
    read: () => void,
  ): Promise<void> {
    const { timers, clock } = this.#runtime;
    const { topic, answerMs } = this.#on;
    const connection = await answered(timers, connectionTo(client, node), answerMs);
    while (!signal.aborted && clock.monotonic() < untilMs) {
      const wanted = partitions.flatMap((partition) => {
        const share = this.#shares.get(partition);
        return share && isWanted(share) ? [share] : [];
      });
      if (wanted.length === 0) {
        this.#waitsForRoom = true;
        await pause(timers, untilMs - clock.monotonic(), signal, this.#room.signal);
        continue;
      }
      const asked = new Map(wanted.map((share) => [share.partition, share.position]));
      const requests = [...asked].map(([partition, fetchOffset]) => {
        const partitionMaxBytes = FETCH_BYTES_OF_PARTITION;
        return { partition, fetchOffset, partitionMaxBytes, currentLeaderEpoch: -1, lastFetchedEpoch: -1 };
      });
      const topics = [{ topicId: topic, partitions: requests }];
      const waitMs = wanted.length < partitions.length ? FETCH_WAIT_SHORT_MS : FETCH_WAIT_MS;
      const fetched = fetchV11.api.async(connection, waitMs, 1, FETCH_BYTES, 0, 0, -1, topics, [], '');
      const answer = await answered(timers, fetched.catch(partly), waitMs + answerMs);
      let failure = 0;
      for (const { partitionIndex, errorCode, records } of answer.responses[0]?.partitions ?? []) {
        const share = this.#shares.get(partitionIndex);
        if (signal.aborted) return;
        // Another answer came first.
        if (share === undefined || share.position !== asked.get(partitionIndex)) continue;
        if (errorCode === 0) fill(share, records ?? []);
        else if (errorCode === OFFSET_OUT_OF_RANGE) await this.#restart(client, share, signal);
        else failure = errorCode;
      }
      this.#handOver();
      if (failure !== 0) throw new ProtocolError(failure);
      read();
    }
  }

  /** A partition may fill half of the bound, so that a stuck one leaves room for the others. */
  get #partitionMax(): number {
    const { inHandMax } = this.#on;
    return this.#shares.size > 1 ? Math.ceil(inHandMax / 2) : inHandMax;
  }

  /** The committed offset does not exist any more, so what is in hand cannot be committed either. */
  async #restart(client: Admin, share: Share, signal: AbortSignal): Promise<void> {
    const { topic, answerMs } = this.#on;
    const { partition } = share;
    const partitions = [{ partitionIndex: partition, timestamp: ListOffsetTimestamps.EARLIEST }];
    const listed = client.listOffsets({ topics: [{ name: topic, partitions }] });
    const [found] = await answered(this.#runtime.timers, listed, answerMs);
    const offset = found!.partitions[0]!.offset;
    if (signal.aborted || this.#shares.get(partition) !== share) return;
    // For a partition that was never read this is normal.
    if (share.position > 0n) {
      const was = share.position.toString();
      this.#runtime.log.warn(
        { topic, partition, was, now: offset.toString() },
        'the broker has no such offset any more',
      );
    }
    this.#lose(share);
    this.#shares.set(partition, new Share(partition, offset));
  }

  // Handing over

  #handOver(): void {
    const { clock } = this.#runtime;
    // A process that slept for longer than its session has lost its partitions, even if it was not told yet.
    if (this.#handing || !this.#mayHandOver || clock.monotonic() - this.#beatMs > this.#on.sessionMs) return;
    this.#handing = true;
    try {
      while (this.#deliverFromEach());
    } finally {
      this.#handing = false;
    }
    if (!this.#waitsForRoom || ![...this.#shares.values()].some(isWanted)) return;
    this.#waitsForRoom = false;
    const room = this.#room;
    this.#room = new AbortController();
    room.abort();
  }

  /** Delivers one message of each partition. False: there is none, or no room. */
  #deliverFromEach(): boolean {
    let some = false;
    for (const share of this.#shares.values()) {
      if (this.#inHand >= this.#on.inHandMax || this.#stop.signal.aborted) return false;
      if (share.waiting.length === 0 || share.inHand >= this.#partitionMax) continue;
      this.#deliver(share);
      some = true;
    }
    return some;
  }

  #deliver(share: Share): void {
    const came = share.waiting.shift()!;
    const mark = share.handOver(came);
    this.#inHand++;
    const { body, offset } = came;
    this.#on.deliver({
      parcel: readParcel(body),
      body,
      id: `${this.#on.topic}-${share.partition}-${offset}`,
      done: () => {
        // Too late: it was delivered again, or will be.
        if (this.#shares.get(share.partition) !== share || !mark()) return;
        this.#inHand--;
        this.#commitAfter(COMMIT_MS);
        this.#handOver();
      },
    });
  }

  // Committing

  #commitAfter(ms: number): void {
    this.#cancelCommit ??= this.#runtime.timers.after(ms, () => void this.#commit());
  }

  /** Commits one after the other; never rejects. */
  #commit(): Promise<void> {
    this.#cancelCommit?.();
    this.#cancelCommit = null;
    this.#committing = this.#committing.then(() => this.#commitNow());
    return this.#committing;
  }

  async #commitNow(): Promise<void> {
    const group = this.#group;
    const ticket = this.#ticket;
    const due = [...this.#shares.values()].filter(({ safe, committed }) => safe !== committed);
    if (group === null || ticket === null || due.length === 0) return;
    const offsets = new Map(due.map(({ partition, safe }) => [partition, safe]));
    try {
      if (await group.commit(ticket, offsets)) {
        for (const share of due) share.committed = offsets.get(share.partition)!;
        return;
      }
    } catch (error) {
      this.#runtime.log.debug({ reason: reasonOf(error) }, 'what is done could not be committed');
    }
    this.#commitAfter(COMMIT_AGAIN_MS);
  }
}

function isWanted({ waiting }: Share): boolean {
  return waiting.length < WAITING_MIN;
}

function fill(share: Share, batches: readonly RecordsBatch[]): void {
  for (const { firstOffset, lastOffsetDelta, attributes, records } of batches) {
    // A batch is returned whole, even if the fetch began in its middle.
    const from = share.position;
    share.position = firstOffset + BigInt(lastOffsetDelta) + 1n;
    if ((attributes & CONTROL) !== 0) continue;
    for (const { offsetDelta, value } of records) {
      const offset = firstOffset + BigInt(offsetDelta);
      if (offset >= from) share.waiting.push({ offset, body: value?.toString() ?? '' });
    }
  }
}

/** The library rejects if one partition has an error; the others may have data. */
function partly(error: unknown): fetchV11.FetchResponse {
  const { response } = error as { response?: fetchV11.FetchResponse };
  if (response?.errorCode === 0 && Array.isArray(response.responses)) return response;
  throw error;
}
