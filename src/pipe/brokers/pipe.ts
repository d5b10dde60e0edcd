import { KeepAlive } from '../../base/keep-alive.ts';
import type { RedisTarget } from '../../base/redis/address.ts';
import type { Runtime } from '../../base/runtime.ts';
import { isNewerEntry } from '../../model/stream-entry.ts';
import { isNewerParcel } from '../parcel.ts';
import type { DeadLetters, Handle, PipeCounters, SharedPipe } from '../port.ts';
import { CatchUp } from '../redis-streams/catch-up.ts';
import { BatchDelivery } from '../redis-streams/delivery.ts';
import { type Entry, readEntry, sizeOf } from '../redis-streams/entry.ts';
import { writeForeign } from '../redis-streams/letter.ts';
import { RedisDeadLetters } from '../redis-streams/letters.ts';
import { Limiter } from '../redis-streams/limiter.ts';
import { type Look, ordersIn, type StreamName, StreamStore } from '../redis-streams/store.ts';
import type { Carrier, Delivery } from './port.ts';
import { type Lead, Relay, type RelayCounters } from './relay.ts';

export interface BrokerPipeOptions {
  readonly redis: RedisTarget;
  readonly prefix: string;
  readonly carrier: Carrier;
  readonly lead: Lead;
  /** How long one command to Redis may take. */
  readonly commandMs?: number;
  /** Orders of one batch: bounds one transaction. */
  readonly batchMax?: number;
  /** Sales whose batches are handled at the same time. */
  readonly salesMax?: number;
  /** Interval of the sweeps over all sales, for lost wake-ups and messages that are due again. */
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
interface Arrived {
  readonly epoch: number;
  readonly entryId: string;
  /** Null: a probe. */
  readonly entry: Entry | null;
  readonly done: (() => void)[];
}

class Sale {
  readonly id: string;
  queue: Arrived[] = [];
  /** All entries that wait or are in hand, by epoch and id: a second copy joins the first. */
  readonly known = new Map<string, Arrived>();
  /** The batch that is stored and about to be decided. */
  ending: Promise<void> = Promise.resolve();
  state: 'idle' | 'queued' | 'visited' = 'idle';

  constructor(id: string) {
    this.id = id;
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
 * dead letters and the gate's bound are those of Redis Streams, whichever broker is used; a broker that loses everything loses no
 * order; and a shop moves to another pipe by a change of its settings.
 */
export class BrokerPipe implements SharedPipe {
  readonly letters: DeadLetters;
  readonly #store: StreamStore;
  readonly #catchUp: CatchUp;
  readonly #runtime: Runtime;
  readonly #keepAlive: KeepAlive;
  readonly #ownsAnchor: boolean;
  readonly #carrier: Carrier;
  readonly #relay: Relay;
  readonly #delivery: BatchDelivery;
  readonly #limiter: Limiter;
  readonly #batchMax: number;
  readonly #sales = new Map<string, Sale>();
  #queue: Sale[] = [];
  readonly #visits = new Set<Promise<void>>();
  #opening: Promise<void> | null = null;
  #stopping: Promise<void> | null = null;
  #depth = 0;
  #lettersSeen = 0;
  #recovered = 0;

  constructor(options: BrokerPipeOptions, runtime: Runtime) {
    const { redis, prefix, commandMs = 2000, carrier, lead } = options;
    this.#runtime = runtime;
    this.#carrier = carrier;
    this.#batchMax = options.batchMax ?? 512;
    this.#limiter = new Limiter(options.salesMax ?? 8);
    this.#ownsAnchor = options.keepAlive === undefined;
    this.#keepAlive = options.keepAlive ?? new KeepAlive(runtime.timers);
    const policy = { triesMax: options.triesMax ?? 5, retryMs: options.retryMs ?? 1000 };
    this.#store = new StreamStore(
      // One group per broker: a broker that is new gets everything that is undecided, whichever pipe had it before.
      {
        redis,
        prefix,
        commandMs,
        keepAlive: this.#keepAlive,
        as: { group: `relay:${carrier.name}`, consumer: 'relay' },
      },
      runtime,
      {
        wake: (saleId, epoch) => this.#relay.wake(saleId, epoch),
        interrupted: () => this.#relay.sweepSoon(),
      },
    );
    this.#catchUp = new CatchUp(this.#store, runtime, policy.retryMs);
    this.#delivery = new BatchDelivery(
      {
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
    this.letters = new RedisDeadLetters(this.#store, runtime.clock);
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

  consume(handle: Handle, ready: (() => Promise<unknown>) | null = null): void {
    const started = this.#delivery.started;
    this.#delivery.start(handle, ready);
    if (started || this.#stopping !== null) return;
    this.open().then(
      () => this.#receive(),
      (error: unknown) => {
        if (this.#stopping === null) this.#runtime.log.fatal({ err: error }, 'the broker cannot be used');
      },
    );
  }

  /** A process that does not consume needs no broker: it uses RedisStreamsPipe. */
  observe(): void {}

  depthOf(saleId: string): Promise<number> {
    return this.#store.depth(saleId);
  }

  caughtUp(saleId: string, withinMs = Infinity, idleMs = Infinity): Promise<boolean> {
    return this.#catchUp.wait(saleId, withinMs, idleMs);
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
    this.#depth = looks.reduce((sum, look) => sum + look.waiting + ordersIn(look), 0);
    this.#lettersSeen = looks.reduce((sum, { letters }) => sum + letters, foreign);
  }

  // What the broker brings

  #receive(): void {
    if (this.#stopping === null) this.#carrier.receive((delivery) => this.#arrived(delivery));
  }

  /** Gives back what is not in hand. Others also get what is in hand, a second time. */
  async #giveBack(): Promise<void> {
    this.#queue = [];
    for (const sale of this.#sales.values()) {
      for (const { epoch, entryId } of sale.queue) sale.known.delete(`${epoch} ${entryId}`);
      sale.queue = [];
      if (sale.state === 'queued') sale.state = 'idle';
      this.#forget(sale);
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
    if (parcel === null) {
      if (isNewerParcel(delivery.body)) this.#leaveToNewer(delivery);
      else void this.#putAside(delivery);
      return;
    }
    const { saleId, epoch, entryId, fields } = parcel;
    if (fields !== null && isNewerEntry(fields)) {
      this.#leaveToNewer(delivery);
      return;
    }
    const sale = this.#sales.get(saleId) ?? new Sale(saleId);
    this.#sales.set(saleId, sale);
    const name = `${epoch} ${entryId}`;
    const known = fields === null ? undefined : sale.known.get(name);
    if (known) {
      known.done.push(delivery.done);
      return;
    }
    const entry = fields === null ? null : readEntry(saleId, entryId, fields);
    const arrived = { epoch, entryId, entry, done: [delivery.done] };
    if (entry) sale.known.set(name, arrived);
    sale.queue.push(arrived);
    this.#enqueue(sale);
  }

  /** The broker brought a copy. The entry stays in the stream, and a probe brings it to a worker that can read it. */
  #leaveToNewer({ parcel, done }: Delivery): void {
    this.#delivery.noteNewer(parcel === null ? {} : { saleId: parcel.saleId, epoch: parcel.epoch }, 1);
    done();
  }

  /** A foreign message: it is kept for the operator to see. */
  async #putAside({ id, body, done }: Delivery): Promise<void> {
    const { log, clock } = this.#runtime;
    for (;;) {
      try {
        const error = 'not written by a relay';
        const letter = writeForeign({ error, attempts: 1, body, diedAtMs: clock.now() });
        const kept = await this.#store.putForeign(`foreign-${id}`, letter);
        log.error({ id, kept, begin: body.slice(0, 100) }, 'the broker brought something that is not ours');
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

  // One sale after the other, as in the pipe on Redis Streams

  #enqueue(sale: Sale): void {
    if (sale.state !== 'idle' || this.#stopping !== null) return;
    sale.state = 'queued';
    this.#queue.push(sale);
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

  async #visit(sale: Sale): Promise<void> {
    sale.state = 'visited';
    this.#keepAlive.hold();
    try {
      // Entries that arrive in one turn share a batch.
      await new Promise<void>((resolve) => this.#runtime.timers.nextTurn(resolve));
      const first = sale.queue[0];
      if (first?.entry === null) await this.#answer(sale, sale.queue.shift()!);
      else if (first) await this.#handOver(sale, this.#take(sale, first.epoch));
    } catch (error) {
      this.#delivery.noteOutage(error);
    } finally {
      sale.state = 'idle';
      this.#keepAlive.drop();
      this.#limiter.give();
    }
    if (sale.queue.length > 0) this.#enqueue(sale);
    else this.#forget(sale);
  }

  /** Whole entries of one stream, up to the next probe. */
  #take(sale: Sale, epoch: number): Arrived[] {
    let orders = 0;
    let count = 0;
    for (const { entry, epoch: of } of sale.queue) {
      if (entry === null || of !== epoch) break;
      orders += sizeOf(entry);
      if (count > 0 && orders > this.#batchMax) break;
      count++;
    }
    return sale.queue.splice(0, count);
  }

  /** The next batch is stored while this one is being decided: one ahead, not more. */
  async #handOver(sale: Sale, batch: readonly Arrived[]): Promise<void> {
    const stream = { saleId: sale.id, epoch: batch[0]!.epoch };
    const { decided } = await this.#delivery.begin(
      stream,
      batch.map(({ entry }) => entry!),
    );
    await sale.ending;
    const ending = decided.then((isDecided) => {
      for (const { epoch, entryId, done } of batch) {
        sale.known.delete(`${epoch} ${entryId}`);
        if (isDecided) for (const each of done) each();
      }
    });
    sale.ending = ending;
    const visit = ending.finally(() => {
      this.#visits.delete(visit);
      this.#forget(sale);
    });
    this.#visits.add(visit);
  }

  #forget(sale: Sale): void {
    const idle = sale.state === 'idle' && sale.queue.length === 0 && sale.known.size === 0;
    if (idle && this.#sales.get(sale.id) === sale) this.#sales.delete(sale.id);
  }

  async #answer(sale: Sale, probe: Arrived): Promise<void> {
    try {
      if (!(await this.#lookFor(sale, probe))) return;
    } catch (error) {
      // Redis is out; another probe follows.
      this.#delivery.noteOutage(error);
    }
    for (const each of probe.done) each();
  }

  /** Everything before the probe has arrived: the broker has lost what is still in the stream. Handles that. False: left. */
  async #lookFor(sale: Sale, { epoch, entryId: upTo }: Arrived): Promise<boolean> {
    const stream: StreamName = { saleId: sale.id, epoch };
    await sale.ending;
    let after: string | null = null;
    for (;;) {
      const page = await this.#store.between(stream, after, upTo, this.#batchMax);
      if (page.length === 0) return true;
      after = page.at(-1)!.id;
      const lost = page.filter(({ fields }) => !isNewerEntry(fields));
      if (lost.length < page.length) this.#delivery.noteNewer(stream, page.length - lost.length);
      if (lost.length === 0) continue;
      this.#recovered += lost.length;
      this.#runtime.log.warn(
        { saleId: sale.id, epoch, entries: lost.length },
        'the broker has lost entries of the stream',
      );
      const entries = lost.map(({ id, fields }) => readEntry(sale.id, id, fields));
      let from = 0;
      for (let orders = 0, at = 0; at < entries.length; at++) {
        orders += sizeOf(entries[at]!);
        if (at + 1 < entries.length && orders < this.#batchMax) continue;
        if (!(await this.#delivery.settle(stream, entries.slice(from, at + 1)))) return false;
        from = at + 1;
        orders = 0;
      }
    }
  }
}
