import { KeepAlive } from '../../base/keep-alive.ts';
import type { RedisTarget } from '../../base/redis/address.ts';
import type { Runtime } from '../../base/runtime.ts';
import { isNewerEntry } from '../../model/entry.ts';
import type { Channels } from '../channels.ts';
import type { DeadLetters, Handle, PipeCounters, SharedPipe } from '../port.ts';
import { CatchUp } from './catch-up.ts';
import { BatchDelivery } from './delivery.ts';
import { type Entry, readEntry, sizeOf } from './entry.ts';
import { RedisDeadLetters } from './letters.ts';
import { Limiter } from './limiter.ts';
import { type Look, messagesIn, type StreamName, StreamStore, type Written } from './store.ts';

export interface RedisStreamsOptions<M> {
  readonly channels: Channels<M>;
  readonly redis: RedisTarget;
  readonly prefix: string;
  /** How long one command may take. */
  readonly commandMs?: number;
  /** Messages of one batch: bounds one transaction. */
  readonly batchMax?: number;
  /** Channels whose batches are handled at the same time. */
  readonly channelsMax?: number;
  /** Another worker claims entries that their owner did not touch for so long. */
  readonly claimIdleMs?: number;
  /** Interval of the sweeps over all channels, for lost wake-ups, messages that are due again, and entries of dead processes. */
  readonly sweepMs?: number;
  /** After so many failed tries an undeliverable message becomes a dead letter. */
  readonly triesMax?: number;
  /** Time until the second try of such a message; it doubles with each further try. */
  readonly retryMs?: number;
  /** A consumer that did nothing for so long is deleted from the group, if nothing is pending under its name. */
  readonly consumerIdleMs?: number;
  /** A consumer whose handler rejects for so long leaves its batches to others, until its `ready` resolves. */
  readonly rejectedMsMax?: number;
  readonly keepAlive?: KeepAlive;
}

const OBSERVE_MS = 2000;
/** Assumed for the first read; later the mean size of the entries read. */
const MESSAGES_PER_ENTRY = 8;
/** Entries of one call: about a millisecond of the server's time. */
const HAND_BACK_MAX = 500;

/** What this process knows of a channel that has something in the pipe. */
class Channel<M> {
  readonly name: string;
  /** Epochs whose streams are to be read, to be claimed from, and to be asked for entries that were sent in a lost reply. */
  readonly toRead = new Set<number>();
  readonly toClaim = new Set<number>();
  readonly unsure = new Set<number>();
  /** Entries that were read and did not fit into the batch: the next one begins with them. */
  over: Held<M> | null = null;
  inHand: Held<M> | null = null;
  messagesPerEntry = MESSAGES_PER_ENTRY;
  state: 'idle' | 'queued' | 'visited' = 'idle';

  constructor(name: string) {
    this.name = name;
  }

  get hasMore(): boolean {
    return this.over !== null || this.toRead.size > 0;
  }
}

/** Entries of one stream that Redis has given to this consumer. */
interface Held<M> {
  readonly epoch: number;
  readonly entries: Entry<M>[];
}

/**
 * The consumer's side of the pipe on Redis Streams. Scripts (the gate's, for orders) write the entries; see docs/internals/distributed.md.
 *
 * It uses no blocking commands, and a quiet channel costs one look per sweep: a wake-up names the stream to read, and a sweep makes up
 * for lost wake-ups. One task at a time visits a channel: it takes one batch, hands it over and decides it; then the next channel has its
 * turn.
 *
 *   read, claimed        → in hand: touched regularly, so that nobody else claims it; entries of a dead process grow idle
 *   in hand → decided    one script takes the entries out of the stream and puts what is undeliverable elsewhere
 *   in hand → in hand    the handler rejected: again after 25 ms … 2 s, for as long as it takes; no try is counted
 *   in hand → handed back    stop(), or the handler rejected for long: others may have it at once
 *   read → handed back       a newer version wrote the entry: it waits for a worker that can read it
 *
 * At least once: a process that was stopped for longer than `claimIdleMs` wakes up with a batch that another has claimed.
 */
export class RedisStreamsPipe<M> implements SharedPipe<M> {
  readonly letters: DeadLetters<M>;
  readonly #channels: Channels<M>;
  readonly #store: StreamStore<M>;
  readonly #catchUp: CatchUp<M>;
  readonly #runtime: Runtime;
  readonly #keepAlive: KeepAlive;
  readonly #ownsAnchor: boolean;
  readonly #batchMax: number;
  readonly #claimIdleMs: number;
  readonly #sweepMs: number;
  readonly #consumerIdleMs: number;
  readonly #active = new Map<string, Channel<M>>();
  readonly #limiter: Limiter;
  #queue: Channel<M>[] = [];
  readonly #delivery: BatchDelivery<M>;
  /** Streams that we have read, when we last looked for names of dead consumers there, and when we may claim there again. */
  readonly #streams = new Map<string, StreamName & { tidiedMs: number; claimAfterMs: number }>();
  #sweeping: Promise<void> | null = null;
  #cancelTimers: (() => void)[] = [];
  #stopping: Promise<void> | null = null;
  readonly #visits = new Set<Promise<void>>();
  #depth = 0;
  #lettersSeen = 0;
  #claimed = 0;

  constructor(options: RedisStreamsOptions<M>, runtime: Runtime) {
    this.#channels = options.channels;
    this.#runtime = runtime;
    this.#batchMax = options.batchMax ?? 512;
    this.#claimIdleMs = options.claimIdleMs ?? 5000;
    this.#sweepMs = options.sweepMs ?? 1000;
    const policy = { triesMax: options.triesMax ?? 5, retryMs: options.retryMs ?? 1000 };
    this.#consumerIdleMs = options.consumerIdleMs ?? 60_000;
    this.#limiter = new Limiter(options.channelsMax ?? 8);
    this.#ownsAnchor = options.keepAlive === undefined;
    this.#keepAlive = options.keepAlive ?? new KeepAlive(runtime.timers);
    const { channels, redis, prefix, commandMs = 2000 } = options;
    this.#store = new StreamStore({ channels, redis, prefix, commandMs, keepAlive: this.#keepAlive }, runtime, {
      wake: (channel, epoch) => this.#wake(channel, epoch),
      // Wake-ups sent meanwhile are lost, and another server may have taken over.
      interrupted: () => this.#sweepSoon(),
    });
    this.#catchUp = new CatchUp(this.#store, runtime, policy.retryMs);
    this.#delivery = new BatchDelivery(
      {
        channels,
        store: this.#store,
        catchUp: this.#catchUp,
        policy,
        limiter: this.#limiter,
        rejectedMsMax: options.rejectedMsMax ?? 5000,
        lent: () => this.#pump(),
        away: () => undefined,
        back: () => {
          this.#sweepSoon();
          this.#pump();
        },
      },
      runtime,
    );
    this.letters = new RedisDeadLetters(channels, this.#store, runtime.clock);
  }

  /** The name of this process in the consumer group. */
  get consumer(): string {
    return this.#store.consumer;
  }

  /** Why Redis cannot be reached, or null while it can. */
  get reason(): string | null {
    return this.#delivery.reason;
  }

  get counters(): PipeCounters {
    return {
      depth: this.#depth,
      letters: this.#lettersSeen,
      ...this.#delivery.counters,
      claimed: this.#claimed,
    };
  }

  consume(handle: Handle<M>, ready: (() => Promise<unknown>) | null = null): void {
    this.#delivery.start(handle, ready);
    if (this.#cancelTimers.length > 0 || this.#stopping !== null) return;
    const { timers } = this.#runtime;
    this.#cancelTimers.push(timers.every(this.#sweepMs, () => this.#sweepSoon()));
    this.#cancelTimers.push(timers.every(this.#claimIdleMs / 3, () => void this.#keepYoung()));
    this.#sweepSoon();
  }

  /** For a process that does not consume: polls, so that `counters` and `reason` are up to date. */
  observe(): void {
    if (this.#cancelTimers.length > 0 || this.#stopping !== null) return;
    const look = (): void => {
      this.#sweeping ??= this.#look().finally(() => {
        this.#sweeping = null;
      });
    };
    this.#cancelTimers.push(this.#runtime.timers.every(OBSERVE_MS, look));
    look();
  }

  async #look(): Promise<void> {
    try {
      const { looks, failure } = await this.#store.look(await this.#store.channelNames());
      this.#count(looks, await this.#store.foreignCount());
      if (failure != null) throw failure;
      this.#delivery.noteBack();
    } catch (error) {
      this.#delivery.noteOutage(error);
    }
  }

  /** `foreign`: foreign messages, counted also where no broker is in use any more. */
  #count(looks: readonly Look[], foreign: number): void {
    this.#depth = looks.reduce((sum, look) => sum + look.waiting + messagesIn(look), 0);
    this.#lettersSeen = looks.reduce((sum, { letters }) => sum + letters, foreign);
  }

  depthOf(channel: string): Promise<number> {
    return this.#store.depth(channel);
  }

  caughtUp(channel: string, withinMs = Infinity, idleMs = Infinity): Promise<boolean> {
    return this.#catchUp.wait(channel, withinMs, idleMs);
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    const [cancelSweeps, cancelKeeping] = this.#cancelTimers;
    cancelSweeps?.();
    this.#queue = [];
    this.#delivery.stop();
    await this.#sweeping;
    while (this.#visits.size > 0) await Promise.all(this.#visits);
    cancelKeeping?.();
    for (const channel of this.#active.values()) {
      if (channel.over) await this.#handBack(channel, channel.over.epoch, idsOf(channel.over.entries));
    }
    this.#active.clear();
    try {
      await this.#store.leave([...this.#streams.values()]);
    } catch (error) {
      // Others delete the name of an idle consumer with nothing pending.
      this.#runtime.log.debug({ err: error }, 'could not take the name of this consumer away');
    }
  }

  async close(): Promise<void> {
    this.#catchUp.close();
    await this.stop();
    this.#store.close();
    if (this.#ownsAnchor) this.#keepAlive.close();
  }

  // Which streams to read

  #wake(name: string, epoch: number): void {
    if (!this.#delivery.started || this.#stopping !== null) return;
    const channel = this.#channelOf(name);
    channel.toRead.add(epoch);
    this.#enqueue(channel);
  }

  #channelOf(name: string): Channel<M> {
    const known = this.#active.get(name);
    if (known) return known;
    const channel = new Channel<M>(name);
    this.#active.set(name, channel);
    return channel;
  }

  /** A channel that is being visited is enqueued at the end of the visit, if there is more by then. */
  #enqueue(channel: Channel<M>): void {
    if (channel.state !== 'idle' || this.#stopping !== null) return;
    channel.state = 'queued';
    this.#queue.push(channel);
    this.#pump();
  }

  #pump(): void {
    while (!this.#delivery.isAway && this.#queue.length > 0 && this.#limiter.tryTake()) {
      const visit = this.#visit(this.#queue.shift()!).finally(() => {
        this.#visits.delete(visit);
        this.#pump();
      });
      this.#visits.add(visit);
    }
  }

  #sweepSoon(): void {
    if (!this.#delivery.started || this.#stopping !== null) return;
    this.#sweeping ??= this.#sweep().finally(() => {
      this.#sweeping = null;
    });
  }

  async #sweep(): Promise<void> {
    try {
      // Reading goes on without wake-ups.
      const deaf = await this.#store.listen().catch((error: unknown) => error);
      const names = await this.#store.channelNames();
      const { looks, failure } = await this.#store.look(names);
      this.#count(looks, await this.#store.foreignCount());
      const failures = await Promise.all(looks.map((look) => this.#doFor(look)));
      // Channels that a visit could not read because Redis was out.
      for (const channel of this.#active.values()) if (channel.hasMore) this.#enqueue(channel);
      const first = [deaf, failure, ...failures].find((one) => one != null);
      if (first !== undefined) throw first;
      await this.#tidy(new Set(names));
      this.#delivery.noteBack();
    } catch (error) {
      this.#delivery.noteOutage(error);
    }
  }

  /** Does what a sweep has found for one channel. Returns the error if that failed, else null. */
  async #doFor({ channel, due, streams }: Look): Promise<unknown> {
    try {
      for (const { epoch, entries } of streams) {
        if (entries > 0) {
          const claimAfterMs = this.#streams.get(`${channel} ${epoch}`)?.claimAfterMs ?? 0;
          if (this.#runtime.clock.monotonic() >= claimAfterMs) this.#channelOf(channel).toClaim.add(epoch);
          this.#wake(channel, epoch);
        } else if (await this.#store.dropEpoch({ channel, epoch })) {
          this.#streams.delete(`${channel} ${epoch}`);
        }
      }
      if (due > 0) for (const epoch of await this.#store.moveDue(channel)) this.#wake(channel, epoch);
      return null;
    } catch (error) {
      return error;
    }
  }

  /** Deletes the names of consumers that are gone. */
  async #tidy(names: ReadonlySet<string>): Promise<void> {
    const nowMs = this.#runtime.clock.monotonic();
    for (const [name, stream] of this.#streams) {
      if (!names.has(stream.channel)) this.#streams.delete(name);
      if (!names.has(stream.channel) || nowMs - stream.tidiedMs < this.#consumerIdleMs) continue;
      stream.tidiedMs = nowMs;
      await this.#store.forgetConsumers(stream, this.#consumerIdleMs);
    }
  }

  // One channel

  /** Handles one batch. A channel with more goes to the end of the queue, so that no channel waits for all of another. */
  async #visit(channel: Channel<M>): Promise<void> {
    channel.state = 'visited';
    // Keeps the process alive while it has a batch in hand.
    this.#keepAlive.hold();
    let failed = false;
    try {
      const held = await this.#take(channel);
      if (held !== null) {
        channel.inHand = held;
        const stream = { channel: channel.name, epoch: held.epoch };
        if (!(await this.#delivery.settle(stream, held.entries))) await this.#leave(channel, held);
      }
    } catch (error) {
      failed = true;
      this.#delivery.noteOutage(error);
    } finally {
      channel.inHand = null;
      channel.state = 'idle';
      this.#keepAlive.drop();
      this.#limiter.give();
    }
    // After a failure the next successful sweep enqueues it again, so that nothing loops against a server that is out.
    if (channel.hasMore && !failed) this.#enqueue(channel);
    else if (!channel.hasMore && channel.unsure.size === 0 && this.#active.get(channel.name) === channel)
      this.#active.delete(channel.name);
  }

  /** The next batch, from the stream of the oldest epoch that has entries. */
  async #take(channel: Channel<M>): Promise<Held<M> | null> {
    const epochs = channel.over ? [channel.over.epoch] : [...channel.toRead].sort((one, other) => one - other);
    for (const epoch of epochs) {
      const held: Held<M> = { epoch, entries: [] };
      if (channel.over?.epoch === epoch) {
        held.entries.push(...channel.over.entries.filter(({ lost }) => !lost));
        channel.over = null;
      }
      // Before reading: a wake-up that arrives meanwhile may be for an entry that this read misses.
      const wasToRead = channel.toRead.delete(epoch);
      try {
        if (wasToRead) await this.#fill(channel, held);
      } catch (error) {
        channel.toRead.add(epoch);
        channel.unsure.add(epoch);
        if (held.entries.length === 0) throw error;
        this.#delivery.noteOutage(error);
      }
      if (held.entries.length > 0) return this.#cut(channel, held);
    }
    return null;
  }

  /** Reads until the batch is full or nothing is left. Hands back what a newer version has written. */
  async #fill(channel: Channel<M>, held: Held<M>): Promise<void> {
    const newer: string[] = [];
    try {
      await this.#gather(channel, held, newer);
    } finally {
      if (newer.length > 0) await this.#leaveToNewer(channel, held.epoch, newer);
    }
  }

  async #gather(channel: Channel<M>, held: Held<M>, newer: string[]): Promise<void> {
    const stream = { channel: channel.name, epoch: held.epoch };
    const { codec } = this.#channels;
    const known = new Set(held.entries.map(({ id }) => id));
    let messages = held.entries.reduce((sum, entry) => sum + sizeOf(entry), 0);
    const add = (written: readonly Written[]): number => {
      let added = 0;
      for (const { id, fields } of written) {
        if (known.has(id)) continue;
        known.add(id);
        if (isNewerEntry(fields, codec.format)) {
          newer.push(id);
          continue;
        }
        const entry = readEntry(codec, channel.name, id, fields);
        held.entries.push(entry);
        added += sizeOf(entry);
      }
      messages += added;
      return added;
    };
    if (channel.unsure.has(held.epoch)) {
      add((await this.#store.readOwn(stream, this.#batchMax * 2)) ?? []);
      channel.unsure.delete(held.epoch);
    }
    if (channel.toClaim.delete(held.epoch)) {
      let cursor: string | null = '0-0';
      while (cursor !== null && messages < this.#batchMax) {
        const reply = await this.#store.claim(stream, this.#claimIdleMs, this.#countFor(channel, messages), cursor);
        this.#claimed += add(reply.entries);
        cursor = reply.cursor;
      }
      // The next batch claims the rest.
      if (cursor !== null) {
        channel.toClaim.add(held.epoch);
        channel.toRead.add(held.epoch);
      }
    }
    while (messages < this.#batchMax) {
      const count = this.#countFor(channel, messages);
      const written = await this.#store.read(stream, count);
      if (written === null) return;
      this.#remember(stream);
      const added = add(written);
      if (written.length > 0) channel.messagesPerEntry = Math.max(added / written.length, 1);
      if (written.length < count) return;
    }
    channel.toRead.add(held.epoch);
  }

  /** Others may claim them at once. This worker does not for a while: it would only be in the way of one that can read them. */
  async #leaveToNewer(channel: Channel<M>, epoch: number, ids: readonly string[]): Promise<void> {
    const stream = { channel: channel.name, epoch };
    this.#delivery.noteNewer(stream, ids.length);
    this.#remember(stream).claimAfterMs = this.#runtime.clock.monotonic() + this.#claimIdleMs;
    for (let from = 0; from < ids.length; from += HAND_BACK_MAX) {
      await this.#handBack(channel, epoch, ids.slice(from, from + HAND_BACK_MAX));
    }
  }

  #countFor(channel: Channel<M>, messages: number): number {
    return Math.max(Math.ceil((this.#batchMax - messages) / channel.messagesPerEntry), 1);
  }

  #remember(stream: StreamName): { claimAfterMs: number } {
    const name = `${stream.channel} ${stream.epoch}`;
    const known = this.#streams.get(name);
    if (known) return known;
    const met = { ...stream, tidiedMs: this.#runtime.clock.monotonic(), claimAfterMs: 0 };
    this.#streams.set(name, met);
    return met;
  }

  /** Entries are never split: those that do not fit stay in hand for the next batch. */
  #cut(channel: Channel<M>, held: Held<M>): Held<M> {
    let messages = 0;
    let count = 0;
    for (const entry of held.entries) {
      messages += sizeOf(entry);
      if (count > 0 && messages > this.#batchMax) break;
      count++;
    }
    if (count === held.entries.length) return held;
    channel.over = { epoch: held.epoch, entries: held.entries.slice(count) };
    return { epoch: held.epoch, entries: held.entries.slice(0, count) };
  }

  async #leave(channel: Channel<M>, held: Held<M>): Promise<void> {
    await this.#handBack(channel, held.epoch, idsOf(held.entries));
    if (channel.over) await this.#handBack(channel, channel.over.epoch, idsOf(channel.over.entries));
    channel.over = null;
  }

  /** Touches all entries in hand, three times within the limit after which others claim them. */
  async #keepYoung(): Promise<void> {
    const all = [...this.#active.values()].flatMap((channel) =>
      [channel.inHand, channel.over].flatMap((held) => (held === null ? [] : [{ channel, held }])),
    );
    await Promise.all(
      all.map(async ({ channel, held: { epoch, entries } }) => {
        const ids = idsOf(entries);
        if (ids.length === 0) return;
        try {
          const lost = new Set(await this.#store.keep({ channel: channel.name, epoch }, ids));
          for (const entry of entries) if (lost.has(entry.id)) entry.lost = true;
        } catch (error) {
          // At worst another worker handles them too.
          this.#delivery.noteOutage(error);
        }
      }),
    );
  }

  async #handBack(channel: Channel<M>, epoch: number, ids: readonly string[]): Promise<void> {
    try {
      await this.#store.handBack({ channel: channel.name, epoch }, ids);
    } catch (error) {
      // Others claim them when they have been idle for `claimIdleMs`.
      this.#runtime.log.debug({ err: error, channel: channel.name }, 'could not hand a batch back');
    }
  }
}

/** Ids of the entries that no other worker has claimed. */
function idsOf<M>(entries: readonly Entry<M>[]): string[] {
  return entries.filter(({ lost }) => !lost).map(({ id }) => id);
}
