import { KeepAlive } from '../../base/keep-alive.ts';
import type { RedisTarget } from '../../base/redis/address.ts';
import type { Runtime } from '../../base/runtime.ts';
import { isNewerEntry } from '../../model/entry.ts';
import type { Channels } from '../channels.ts';
import { isNewerParcel } from '../parcel.ts';
import type { DeadLetters, Handle, PipeCounters, SharedPipe } from '../port.ts';
import { CatchUp } from '../redis-streams/catch-up.ts';
import { BatchDelivery } from '../redis-streams/delivery.ts';
import { type Entry, readEntry, sizeOf } from '../redis-streams/entry.ts';
import { writeForeign } from '../redis-streams/letter.ts';
import { RedisDeadLetters } from '../redis-streams/letters.ts';
import { Limiter } from '../redis-streams/limiter.ts';
import { type Look, messagesIn, type StreamName, StreamStore } from '../redis-streams/store.ts';
import type { Carrier, Delivery } from './port.ts';
import { type Lead, Relay, type RelayCounters } from './relay.ts';

export interface BrokerPipeOptions<M> {
  readonly channels: Channels<M>;
  readonly redis: RedisTarget;
  readonly prefix: string;
  /** Of this kind alone: another one has other queues or another topic. */
  readonly carrier: Carrier;
  readonly lead: Lead;
  /** How long one command to Redis may take. */
  readonly commandMs?: number;
  /** Messages of one batch: bounds one transaction. */
  readonly batchMax?: number;
  /** Channels whose batches are handled at the same time. */
  readonly channelsMax?: number;
  /** Interval of the sweeps over all channels, for lost wake-ups and messages that are due again. */
  readonly sweepMs?: number;
  /** After so many failed tries an undeliverable message becomes a dead letter. */
  readonly triesMax?: number;
  /** Time until the second try of such a message; it doubles with each further try. */
  readonly retryMs?: number;
  /** A consumer whose handler rejects for so long leaves its batches to others, until its `ready` resolves. */
  readonly rejectedMsMax?: number;
  /** A probe is sent when a stream's oldest entry has not moved for so long: the broker may have lost it. */
  readonly probeMs?: number;
  readonly keepAlive?: KeepAlive;
}

export interface BrokerPipeCounters extends PipeCounters, RelayCounters {
  /** Entries that the broker had lost and that were read from the stream instead. */
  readonly recovered: number;
}

/** An entry that came through the broker; `done` has one callback for each copy that came. */
interface Arrived<M> {
  readonly epoch: number;
  readonly entryId: string;
  /** Null: a probe. */
  readonly entry: Entry<M> | null;
  readonly done: (() => void)[];
}

class Channel<M> {
  readonly name: string;
  queue: Arrived<M>[] = [];
  /** All entries that wait or are in hand, by epoch and id: a second copy joins the first. */
  readonly known = new Map<string, Arrived<M>>();
  /** The batch that is stored and about to be decided. */
  ending: Promise<void> = Promise.resolve();
  state: 'idle' | 'queued' | 'visited' = 'idle';

  constructor(name: string) {
    this.name = name;
  }
}

/**
 * The pipe through a broker:
 *
 *   gate ══▶ stream ──relay──▶ broker ──▶ (one worker per partition) handle ──▶ decide: out of the stream ──▶ done at the broker
 *               ▲                                                          │
 *               └───────────── what the broker has lost: `probe` ──────────┘
 *
 * The stream stays the truth: an entry leaves it when it is decided, not when the broker has it. So depth, catching up, retries,
 * dead letters and the writer's bound are those of Redis Streams, whichever broker is used; a broker that loses everything loses no
 * message; and a shop moves to another pipe by a change of its settings.
 */
export class BrokerPipe<M> implements SharedPipe<M> {
  readonly letters: DeadLetters<M>;
  readonly #channels: Channels<M>;
  readonly #store: StreamStore<M>;
  readonly #catchUp: CatchUp<M>;
  readonly #runtime: Runtime;
  readonly #keepAlive: KeepAlive;
  readonly #ownsAnchor: boolean;
  readonly #carrier: Carrier;
  readonly #relay: Relay<M>;
  readonly #delivery: BatchDelivery<M>;
  readonly #limiter: Limiter;
  readonly #batchMax: number;
  readonly #active = new Map<string, Channel<M>>();
  #queue: Channel<M>[] = [];
  readonly #visits = new Set<Promise<void>>();
  #opening: Promise<void> | null = null;
  #stopping: Promise<void> | null = null;
  #depth = 0;
  #lettersSeen = 0;
  #recovered = 0;

  constructor(options: BrokerPipeOptions<M>, runtime: Runtime) {
    const { channels, redis, prefix, commandMs = 2000, carrier, lead } = options;
    this.#channels = channels;
    this.#runtime = runtime;
    this.#carrier = carrier;
    this.#batchMax = options.batchMax ?? 512;
    this.#limiter = new Limiter(options.channelsMax ?? 8);
    this.#ownsAnchor = options.keepAlive === undefined;
    this.#keepAlive = options.keepAlive ?? new KeepAlive(runtime.timers);
    const policy = { triesMax: options.triesMax ?? 5, retryMs: options.retryMs ?? 1000 };
    this.#store = new StreamStore(
      // One group per broker: a broker that is new gets everything that is undecided, whichever pipe had it before.
      {
        channels,
        redis,
        prefix,
        commandMs,
        keepAlive: this.#keepAlive,
        as: { group: `relay:${carrier.name}`, consumer: 'relay' },
      },
      runtime,
      {
        wake: (channel, epoch) => this.#relay.wake(channel, epoch),
        interrupted: () => this.#relay.sweepSoon(),
      },
    );
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
        away: () => void this.#giveBack(),
        back: () => this.#receive(),
      },
      runtime,
    );
    this.#relay = new Relay(
      {
        kind: channels.kind,
        store: this.#store,
        carrier,
        lead,
        sweepMs: options.sweepMs ?? 1000,
        probeMs: options.probeMs ?? 10_000,
        looked: (looks, foreign) => this.#count(looks, foreign),
        outage: (error) => this.#delivery.noteOutage(error),
        back: () => this.#delivery.noteBack(),
      },
      runtime,
    );
    this.letters = new RedisDeadLetters(channels, this.#store, runtime.clock);
  }

  get reason(): string | null {
    return this.#delivery.reason ?? this.#carrier.reason;
  }

  get counters(): BrokerPipeCounters {
    return {
      depth: this.#depth,
      letters: this.#lettersSeen,
      claimed: 0,
      recovered: this.#recovered,
      ...this.#delivery.counters,
      ...this.#relay.counters,
    };
  }

  /** Partitions whose entries this process relays to the broker. */
  get relaying(): readonly number[] {
    return this.#relay.leading;
  }

  /** Resolves when the broker is ready; rejects when it never will be. `consume` calls it too. */
  open(): Promise<void> {
    this.#opening ??= this.#carrier.open().then((partitions) => this.#relay.start(partitions));
    return this.#opening;
  }

  consume(handle: Handle<M>, ready: (() => Promise<unknown>) | null = null): void {
    const started = this.#delivery.started;
    this.#delivery.start(handle, ready);
    if (started || this.#stopping !== null) return;
    this.open().then(
      () => this.#receive(),
      (error: unknown) => {
        const { kind } = this.#channels;
        if (this.#stopping === null) this.#runtime.log.fatal({ kind, err: error }, 'the broker cannot be used');
      },
    );
  }

  /** A process that does not consume needs no broker: it uses RedisStreamsPipe. */
  observe(): void {}

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
    this.#queue = [];
    this.#delivery.stop();
    const relayed = this.#relay.stop();
    while (this.#visits.size > 0) await Promise.all(this.#visits);
    await this.#giveBack();
    await relayed;
  }

  async close(): Promise<void> {
    this.#catchUp.close();
    await this.stop();
    await this.#carrier.close();
    this.#store.close();
    if (this.#ownsAnchor) this.#keepAlive.close();
  }

  #count(looks: readonly Look[], foreign: number): void {
    this.#depth = looks.reduce((sum, look) => sum + look.waiting + messagesIn(look), 0);
    this.#lettersSeen = looks.reduce((sum, { letters }) => sum + letters, foreign);
  }

  // What the broker brings

  #receive(): void {
    if (this.#stopping === null) this.#carrier.receive((delivery) => this.#arrived(delivery));
  }

  /** Gives back what is not in hand. Others also get what is in hand, a second time. */
  async #giveBack(): Promise<void> {
    this.#queue = [];
    for (const channel of this.#active.values()) {
      for (const { epoch, entryId } of channel.queue) channel.known.delete(`${epoch} ${entryId}`);
      channel.queue = [];
      if (channel.state === 'queued') channel.state = 'idle';
      this.#forget(channel);
    }
    try {
      await this.#carrier.giveBack();
    } catch (error) {
      this.#runtime.log.warn({ err: error }, 'could not give back what the broker brought');
    }
  }

  #arrived(delivery: Delivery): void {
    if (this.#stopping !== null || this.#delivery.isAway) return;
    const { parcel } = delivery;
    // A parcel of another kind is in the wrong queue: no relay of ours sent it there.
    if (parcel === null || !this.#channels.has(parcel.channel)) {
      if (parcel === null && isNewerParcel(delivery.body)) this.#leaveToNewer(delivery);
      else void this.#putAside(delivery);
      return;
    }
    const { codec } = this.#channels;
    const { channel: name, epoch, entryId, fields } = parcel;
    if (fields !== null && isNewerEntry(fields, codec.format)) {
      this.#leaveToNewer(delivery);
      return;
    }
    const channel = this.#active.get(name) ?? new Channel<M>(name);
    this.#active.set(name, channel);
    const place = `${epoch} ${entryId}`;
    const known = fields === null ? undefined : channel.known.get(place);
    if (known) {
      known.done.push(delivery.done);
      return;
    }
    const entry = fields === null ? null : readEntry(codec, name, entryId, fields);
    const arrived = { epoch, entryId, entry, done: [delivery.done] };
    if (entry) channel.known.set(place, arrived);
    channel.queue.push(arrived);
    this.#enqueue(channel);
  }

  /** The broker brought a copy. The entry stays in the stream, and a probe brings it to a worker that can read it. */
  #leaveToNewer({ parcel, done }: Delivery): void {
    this.#delivery.noteNewer(parcel === null ? {} : { channel: parcel.channel, epoch: parcel.epoch }, 1);
    done();
  }

  /** A foreign message: it is kept for the operator to see. */
  async #putAside({ parcel, id: given, body, done }: Delivery): Promise<void> {
    const { log, clock } = this.#runtime;
    const { kind } = this.#channels;
    const id = parcel === null ? given : `${parcel.channel.replace(':', '.')}-${parcel.entryId}`;
    for (;;) {
      try {
        const error = 'not written by a relay';
        const letter = writeForeign({ error, attempts: 1, body, diedAtMs: clock.now() });
        const kept = await this.#store.putForeign(`foreign-${id}`, letter);
        log.error({ kind, id, kept, begin: body.slice(0, 100) }, 'the broker brought something that is not ours');
        done();
        return;
      } catch (error) {
        this.#delivery.noteOutage(error);
      }
      await this.#delivery.sleep(1000);
      // The broker delivers it again.
      if (this.#stopping !== null) return;
    }
  }

  // One channel after the other, as in the pipe on Redis Streams

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

  async #visit(channel: Channel<M>): Promise<void> {
    channel.state = 'visited';
    this.#keepAlive.hold();
    try {
      // Entries that arrive in one turn share a batch.
      await new Promise<void>((resolve) => this.#runtime.timers.nextTurn(resolve));
      const first = channel.queue[0];
      if (first?.entry === null) await this.#answer(channel, channel.queue.shift()!);
      else if (first) await this.#handOver(channel, this.#take(channel, first.epoch));
    } catch (error) {
      this.#delivery.noteOutage(error);
    } finally {
      channel.state = 'idle';
      this.#keepAlive.drop();
      this.#limiter.give();
    }
    if (channel.queue.length > 0) this.#enqueue(channel);
    else this.#forget(channel);
  }

  /** Whole entries of one stream, up to the next probe. */
  #take(channel: Channel<M>, epoch: number): Arrived<M>[] {
    let messages = 0;
    let count = 0;
    for (const { entry, epoch: of } of channel.queue) {
      if (entry === null || of !== epoch) break;
      messages += sizeOf(entry);
      if (count > 0 && messages > this.#batchMax) break;
      count++;
    }
    return channel.queue.splice(0, count);
  }

  /** The next batch is stored while this one is being decided: one ahead, not more. */
  async #handOver(channel: Channel<M>, batch: readonly Arrived<M>[]): Promise<void> {
    const stream = { channel: channel.name, epoch: batch[0]!.epoch };
    const { decided } = await this.#delivery.begin(
      stream,
      batch.map(({ entry }) => entry!),
    );
    await channel.ending;
    const ending = decided.then((isDecided) => {
      for (const { epoch, entryId, done } of batch) {
        channel.known.delete(`${epoch} ${entryId}`);
        if (isDecided) for (const each of done) each();
      }
    });
    channel.ending = ending;
    const visit = ending.finally(() => {
      this.#visits.delete(visit);
      this.#forget(channel);
    });
    this.#visits.add(visit);
  }

  #forget(channel: Channel<M>): void {
    const idle = channel.state === 'idle' && channel.queue.length === 0 && channel.known.size === 0;
    if (idle && this.#active.get(channel.name) === channel) this.#active.delete(channel.name);
  }

  async #answer(channel: Channel<M>, probe: Arrived<M>): Promise<void> {
    try {
      if (!(await this.#lookFor(channel, probe))) return;
    } catch (error) {
      // Redis is out; another probe follows.
      this.#delivery.noteOutage(error);
    }
    for (const each of probe.done) each();
  }

  /** Everything before the probe has arrived: the broker has lost what is still in the stream. Handles that. False: left. */
  async #lookFor(channel: Channel<M>, { epoch, entryId: upTo }: Arrived<M>): Promise<boolean> {
    const { codec } = this.#channels;
    const stream: StreamName = { channel: channel.name, epoch };
    await channel.ending;
    let after: string | null = null;
    for (;;) {
      const page = await this.#store.between(stream, after, upTo, this.#batchMax);
      if (page.length === 0) return true;
      after = page.at(-1)!.id;
      const lost = page.filter(({ fields }) => !isNewerEntry(fields, codec.format));
      if (lost.length < page.length) this.#delivery.noteNewer(stream, page.length - lost.length);
      if (lost.length === 0) continue;
      this.#recovered += lost.length;
      this.#runtime.log.warn(
        { channel: channel.name, epoch, entries: lost.length },
        'the broker has lost entries of the stream',
      );
      const entries = lost.map(({ id, fields }) => readEntry(codec, channel.name, id, fields));
      let from = 0;
      for (let messages = 0, at = 0; at < entries.length; at++) {
        messages += sizeOf(entries[at]!);
        if (at + 1 < entries.length && messages < this.#batchMax) continue;
        if (!(await this.#delivery.settle(stream, entries.slice(from, at + 1)))) return false;
        from = at + 1;
        messages = 0;
      }
    }
  }
}
