import { backOffMs } from '../../base/back-off.ts';
import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { type Parcel, partitionOf } from '../parcel.ts';
import { Limiter } from '../redis-streams/limiter.ts';
import type { Look, Marks, StreamStore, Written } from '../redis-streams/store.ts';
import type { Carrier } from './port.ts';

/** Runs `work` in one process of the shop at a time. A second one would only make duplicates. */
export type Lead = (job: string, work: (signal: AbortSignal) => Promise<void>) => { stop(): Promise<void> };

export interface RelayOptions<M> {
  /** What the messages are called. */
  readonly kind: string;
  /** Reads under the name of the relay, whichever process leads: a new leader is given again what the last one had. */
  readonly store: StreamStore<M>;
  readonly carrier: Carrier;
  readonly lead: Lead;
  readonly sweepMs: number;
  /** A probe is sent when a stream's oldest entry has not moved for so long: the broker may have lost it. */
  readonly probeMs: number;
  /** Reports what a sweep found in all streams. */
  looked(looks: readonly Look[], foreign: number): void;
  outage(error: unknown): void;
  back(): void;
}

export interface RelayCounters {
  /** Entries that the broker has confirmed, and those of them that were sent again because a confirmation was missing. */
  readonly relayed: number;
  readonly resent: number;
  readonly probes: number;
}

/** Entries of one channel that are sent at a time. */
const ENTRIES_MAX = 128;
const CHANNELS_AT_ONCE = 16;
const PROBE_MS_MAX = 60_000;
const AGAIN_MS_MIN = 50;
const AGAIN_MS_MAX = 2000;

/** Not confirmed by the broker: distinguished from failures of Redis. */
class BrokerError extends Error {}

/** What the leader knows of a channel's streams. */
class Channel {
  readonly name: string;
  readonly partition: number;
  readonly toSend = new Set<number>();
  /** Epochs whose pending entries this leader has sent again. It knows itself what it was given since. */
  readonly sure = new Set<number>();
  /** A sweep has found entries: check whether they move. */
  look = false;
  readonly oldest = new Map<number, { first: string; sinceMs: number; askMs: number }>();
  state: 'idle' | 'queued' | 'visited' = 'idle';

  constructor(name: string, partition: number) {
    this.name = name;
    this.partition = partition;
  }
}

/**
 * Carries entries from the streams to a broker. The streams, which the gate writes for orders, are the outbox: there is no moment in
 * which an admitted order is stored nowhere. An entry is acknowledged (in the relay's group) when the broker has
 * confirmed it, and stays in its stream until a worker has decided it.
 *
 *   given → sent → confirmed → acknowledged
 *     │       └─ not confirmed: given again, sent again
 *     └─ the leader died: the next one is given the same first
 *
 * One process leads a partition. The leader also puts back messages that are due for another try, removes empty streams of old
 * epochs, and looks for entries that the broker has lost (`probe`).
 */
export class Relay<M> {
  readonly #on: RelayOptions<M>;
  readonly #runtime: Runtime;
  readonly #leading = new Map<number, AbortSignal>();
  readonly #active = new Map<string, Channel>();
  readonly #limiter = new Limiter(CHANNELS_AT_ONCE);
  readonly #visits = new Map<Promise<void>, number>();
  readonly #jobs: { stop(): Promise<void> }[] = [];
  #partitions = 0;
  #queue: Channel[] = [];
  #sweeping: Promise<void> | null = null;
  #cancelSweeps = (): void => {};
  readonly #stopped = new AbortController();
  /** Partitions for which the broker refused parcels. While one waits, nothing of its channels is sent. */
  readonly #troubles = new Map<number, { failures: number; waiting: boolean }>();
  #relayed = 0;
  #resent = 0;
  #probes = 0;

  constructor(options: RelayOptions<M>, runtime: Runtime) {
    this.#on = options;
    this.#runtime = runtime;
  }

  get counters(): RelayCounters {
    return { relayed: this.#relayed, resent: this.#resent, probes: this.#probes };
  }

  /** Partitions that this process leads. */
  get leading(): number[] {
    return [...this.#leading.keys()];
  }

  start(partitions: number): void {
    if (this.#stopped.signal.aborted) return;
    this.#partitions = partitions;
    const { carrier, lead, sweepMs } = this.#on;
    for (let partition = 0; partition < partitions; partition++) {
      this.#jobs.push(lead(`relay:${carrier.name}:${partition}`, (signal) => this.#lead(partition, signal)));
    }
    this.#cancelSweeps = this.#runtime.timers.every(sweepMs, () => this.sweepSoon());
    this.sweepSoon();
  }

  async stop(): Promise<void> {
    this.#stopped.abort();
    this.#cancelSweeps();
    this.#queue = [];
    await Promise.all(this.#jobs.map((job) => job.stop()));
    await this.#sweeping;
    while (this.#visits.size > 0) await Promise.all(this.#visits.keys());
  }

  async #lead(partition: number, signal: AbortSignal): Promise<void> {
    // The entries of the last leader are given to this one.
    for (const channel of this.#active.values()) if (channel.partition === partition) this.#active.delete(channel.name);
    this.#leading.set(partition, signal);
    this.sweepSoon();
    try {
      await new Promise<void>((resolve) => {
        if (signal.aborted) resolve();
        else signal.addEventListener('abort', () => resolve(), { once: true });
      });
    } finally {
      this.#leading.delete(partition);
      // Before the next leader begins: two that send at the same time would not keep the order.
      for (const [visit, of] of this.#visits) if (of === partition) await visit;
    }
  }

  /** There are new entries in this stream. */
  wake(name: string, epoch: number): void {
    if (this.#stopped.signal.aborted || this.#leading.size === 0) return;
    const partition = partitionOf(name, this.#partitions);
    if (!this.#leading.has(partition)) return;
    const channel = this.#channelOf(name, partition);
    channel.toSend.add(epoch);
    this.#enqueue(channel);
  }

  #channelOf(name: string, partition: number): Channel {
    const known = this.#active.get(name);
    if (known) return known;
    const channel = new Channel(name, partition);
    this.#active.set(name, channel);
    return channel;
  }

  #enqueue(channel: Channel): void {
    if (channel.state !== 'idle' || this.#stopped.signal.aborted) return;
    if (this.#troubles.get(channel.partition)?.waiting) return;
    channel.state = 'queued';
    this.#queue.push(channel);
    this.#pump();
  }

  #pump(): void {
    while (this.#queue.length > 0 && this.#limiter.tryTake()) {
      const channel = this.#queue.shift()!;
      const visit = this.#visit(channel).finally(() => {
        this.#visits.delete(visit);
        this.#limiter.give();
        this.#pump();
      });
      this.#visits.set(visit, channel.partition);
    }
  }

  /** Processes that do not lead sweep too: they count, and subscribe to wake-ups for when they lead. */
  sweepSoon(): void {
    if (this.#stopped.signal.aborted || this.#partitions === 0) return;
    this.#sweeping ??= this.#sweep().finally(() => {
      this.#sweeping = null;
    });
  }

  async #sweep(): Promise<void> {
    const { store, looked, back, outage } = this.#on;
    try {
      const deaf = await store.listen().catch((error: unknown) => error);
      const names = await store.channelNames();
      const { looks, failure } = await store.look(names);
      looked(looks, await store.foreignCount());
      const failures = await Promise.all(looks.map((look) => this.#doFor(look)));
      const first = [deaf, failure, ...failures].find((one) => one != null);
      if (first !== undefined) throw first;
      const kept = new Set(names);
      for (const channel of this.#active.values()) {
        if (!kept.has(channel.name) && channel.state === 'idle') this.#active.delete(channel.name);
      }
      back();
    } catch (error) {
      outage(error);
    }
  }

  async #doFor({ channel: name, due, streams }: Look): Promise<unknown> {
    const partition = partitionOf(name, this.#partitions);
    if (!this.#leading.has(partition)) return null;
    const { store } = this.#on;
    try {
      for (const { epoch, entries } of streams) {
        if (entries > 0) {
          this.#channelOf(name, partition).look = true;
          this.wake(name, epoch);
        } else if (await store.dropEpoch({ channel: name, epoch })) {
          const channel = this.#active.get(name);
          channel?.sure.delete(epoch);
          channel?.oldest.delete(epoch);
        }
      }
      if (due > 0) for (const epoch of await store.moveDue(name)) this.wake(name, epoch);
      return null;
    } catch (error) {
      return error;
    }
  }

  // One channel

  async #visit(channel: Channel): Promise<void> {
    channel.state = 'visited';
    let failed = false;
    try {
      // Read before sending: when everything is sent, all entries up to these marks have been sent.
      const marks = channel.look ? await this.#on.store.marks(channel.name) : null;
      channel.look = false;
      let sentAll = true;
      for (const epoch of [...channel.toSend].sort((one, other) => one - other)) {
        // Before reading: a wake-up that arrives meanwhile may be for an entry that this read misses.
        channel.toSend.delete(epoch);
        if (!(await this.#sendAll(channel, epoch))) sentAll = false;
      }
      if (marks && sentAll) await this.#probe(channel, marks);
    } catch (error) {
      if (error instanceof BrokerError) this.#failed(channel.partition, error.cause);
      else this.#on.outage(error);
      failed = true;
    } finally {
      channel.state = 'idle';
    }
    // After a failure it is enqueued when its partition is tried again, or by the next successful sweep.
    if (channel.toSend.size > 0 && !failed && this.#leads(channel)) this.#enqueue(channel);
  }

  #leads(channel: Channel): boolean {
    return (
      this.#leading.has(channel.partition) &&
      this.#active.get(channel.name) === channel &&
      !this.#stopped.signal.aborted
    );
  }

  /** Returns whether everything was sent. */
  async #sendAll(channel: Channel, epoch: number): Promise<boolean> {
    const { store } = this.#on;
    const stream = { channel: channel.name, epoch };
    try {
      if (!channel.sure.has(epoch)) {
        let after = '0';
        for (;;) {
          if (!this.#leads(channel)) return false;
          const own = await store.readOwnAfter(stream, after, ENTRIES_MAX);
          if (own === null || own.last === after) break;
          await store.acknowledge(stream, own.gone);
          await this.#send(channel, epoch, own.entries);
          this.#resent += own.entries.length;
          after = own.last;
        }
        channel.sure.add(epoch);
      }
      for (;;) {
        if (!this.#leads(channel)) return false;
        const entries = await store.read(stream, ENTRIES_MAX);
        if (entries === null || entries.length === 0) return true;
        await this.#send(channel, epoch, entries);
      }
    } catch (error) {
      // Entries may have been given to us in a lost reply, or sent and not confirmed: send the pending ones again.
      channel.sure.delete(epoch);
      channel.toSend.add(epoch);
      throw error;
    }
  }

  async #send(channel: Channel, epoch: number, entries: readonly Written[]): Promise<void> {
    if (entries.length === 0) return;
    const { store } = this.#on;
    const parcels = entries.map(({ id, fields }) => ({ channel: channel.name, epoch, entryId: id, fields }));
    await this.#carry(channel.partition, parcels);
    this.#relayed += entries.length;
    const ids = entries.map(({ id }) => id);
    // Not awaited: if it fails, they are sent again.
    store.acknowledge({ channel: channel.name, epoch }, ids).catch((error: unknown) => {
      channel.sure.delete(epoch);
      this.#on.outage(error);
    });
  }

  async #carry(partition: number, parcels: readonly Parcel[]): Promise<void> {
    try {
      await this.#on.carrier.send(partition, parcels);
    } catch (error) {
      throw new BrokerError('not carried', { cause: error });
    }
    this.#worked(partition);
  }

  /** The oldest entry has not moved for long: it is on its way, or the broker has lost it. A probe on the same way finds out. */
  async #probe(channel: Channel, { streams }: Marks): Promise<void> {
    const { probeMs } = this.#on;
    const nowMs = this.#runtime.clock.monotonic();
    for (const { epoch, first, last } of streams) {
      const known = channel.oldest.get(epoch);
      if (known?.first !== first) {
        channel.oldest.set(epoch, { first, sinceMs: nowMs, askMs: nowMs + probeMs });
        continue;
      }
      if (nowMs < known.askMs) continue;
      known.askMs = nowMs + Math.min(2 * (nowMs - known.sinceMs), Math.max(PROBE_MS_MAX, probeMs));
      await this.#carry(channel.partition, [{ channel: channel.name, epoch, entryId: last, fields: null }]);
      this.#probes++;
    }
  }

  // The broker is out: entries wait in the stream, and whoever writes it slows down

  #failed(partition: number, error: unknown): void {
    const { log, timers } = this.#runtime;
    if (this.#troubles.size === 0 && !this.#stopped.signal.aborted) {
      log.error({ reason: messageOf(error) }, `the broker takes nothing; ${this.#on.kind} wait in the stream`);
    }
    const before = this.#troubles.get(partition);
    if (before?.waiting) return;
    const failures = before?.failures ?? 0;
    const trouble = { failures: failures + 1, waiting: true };
    this.#troubles.set(partition, trouble);
    timers.after(backOffMs(failures, AGAIN_MS_MIN, AGAIN_MS_MAX), () => {
      trouble.waiting = false;
      for (const channel of this.#active.values()) {
        if (channel.partition === partition && channel.toSend.size > 0 && this.#leads(channel)) this.#enqueue(channel);
      }
    });
  }

  #worked(partition: number): void {
    if (this.#troubles.delete(partition) && this.#troubles.size === 0)
      this.#runtime.log.info(`the broker takes ${this.#on.kind} again`);
  }
}
