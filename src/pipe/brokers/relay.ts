import { backOffMs } from '../../base/back-off.ts';
import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { type Parcel, partitionOf } from '../parcel.ts';
import { Limiter } from '../redis-streams/limiter.ts';
import type { Look, Marks, StreamStore, Written } from '../redis-streams/store.ts';
import type { Carrier } from './port.ts';

/** Runs `work` in one process of the shop at a time. A second one would only make duplicates. */
export type Lead = (job: string, work: (signal: AbortSignal) => Promise<void>) => { stop(): Promise<void> };

export interface RelayOptions {
  /** Reads under the name of the relay, whichever process leads: a new leader is given again what the last one had. */
  readonly store: StreamStore;
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

/** Entries of one sale that are sent at a time. */
const ENTRIES_MAX = 128;
const SALES_AT_ONCE = 16;
const PROBE_MS_MAX = 60_000;
const AGAIN_MS_MIN = 50;
const AGAIN_MS_MAX = 2000;

/** Not confirmed by the broker: distinguished from failures of Redis. */
class BrokerError extends Error {}

/** What the leader knows of a sale's streams. */
class Sale {
  readonly id: string;
  readonly partition: number;
  readonly toSend = new Set<number>();
  /** Epochs whose pending entries this leader has sent again. It knows itself what it was given since. */
  readonly sure = new Set<number>();
  /** A sweep has found entries: check whether they move. */
  look = false;
  readonly oldest = new Map<number, { first: string; sinceMs: number; askMs: number }>();
  state: 'idle' | 'queued' | 'visited' = 'idle';

  constructor(id: string, partition: number) {
    this.id = id;
    this.partition = partition;
  }
}

/**
 * Carries entries from the streams that the gate writes to a broker. The streams are the outbox, so there is no moment in which an
 * admitted order is stored nowhere. An entry is acknowledged (in the relay's group) when the broker has
 * confirmed it, and stays in its stream until a worker has decided it.
 *
 *   given → sent → confirmed → acknowledged
 *     │       └─ not confirmed: given again, sent again
 *     └─ the leader died: the next one is given the same first
 *
 * One process leads a partition. The leader also puts back messages that are due for another try, removes empty streams of old
 * epochs, and looks for entries that the broker has lost (`probe`).
 */
export class Relay {
  readonly #on: RelayOptions;
  readonly #runtime: Runtime;
  readonly #leading = new Map<number, AbortSignal>();
  readonly #sales = new Map<string, Sale>();
  readonly #limiter = new Limiter(SALES_AT_ONCE);
  readonly #visits = new Map<Promise<void>, number>();
  readonly #jobs: { stop(): Promise<void> }[] = [];
  #partitions = 0;
  #queue: Sale[] = [];
  #sweeping: Promise<void> | null = null;
  #cancelSweeps = (): void => {};
  readonly #stopped = new AbortController();
  /** Partitions for which the broker refused parcels. While one waits, nothing of its sales is sent. */
  readonly #troubles = new Map<number, { failures: number; waiting: boolean }>();
  #relayed = 0;
  #resent = 0;
  #probes = 0;

  constructor(options: RelayOptions, runtime: Runtime) {
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
    for (const sale of this.#sales.values()) if (sale.partition === partition) this.#sales.delete(sale.id);
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
  wake(saleId: string, epoch: number): void {
    if (this.#stopped.signal.aborted || this.#leading.size === 0) return;
    const partition = partitionOf(saleId, this.#partitions);
    if (!this.#leading.has(partition)) return;
    const sale = this.#saleOf(saleId, partition);
    sale.toSend.add(epoch);
    this.#enqueue(sale);
  }

  #saleOf(saleId: string, partition: number): Sale {
    const known = this.#sales.get(saleId);
    if (known) return known;
    const sale = new Sale(saleId, partition);
    this.#sales.set(saleId, sale);
    return sale;
  }

  #enqueue(sale: Sale): void {
    if (sale.state !== 'idle' || this.#stopped.signal.aborted) return;
    if (this.#troubles.get(sale.partition)?.waiting) return;
    sale.state = 'queued';
    this.#queue.push(sale);
    this.#pump();
  }

  #pump(): void {
    while (this.#queue.length > 0 && this.#limiter.tryTake()) {
      const sale = this.#queue.shift()!;
      const visit = this.#visit(sale).finally(() => {
        this.#visits.delete(visit);
        this.#limiter.give();
        this.#pump();
      });
      this.#visits.set(visit, sale.partition);
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
      const saleIds = await store.saleIds();
      const { looks, failure } = await store.look(saleIds);
      looked(looks, await store.foreignCount());
      const failures = await Promise.all(looks.map((look) => this.#doFor(look)));
      const first = [deaf, failure, ...failures].find((one) => one != null);
      if (first !== undefined) throw first;
      const kept = new Set(saleIds);
      for (const sale of this.#sales.values()) {
        if (!kept.has(sale.id) && sale.state === 'idle') this.#sales.delete(sale.id);
      }
      back();
    } catch (error) {
      outage(error);
    }
  }

  async #doFor({ saleId, due, streams }: Look): Promise<unknown> {
    const partition = partitionOf(saleId, this.#partitions);
    if (!this.#leading.has(partition)) return null;
    const { store } = this.#on;
    try {
      for (const { epoch, entries } of streams) {
        if (entries > 0) {
          this.#saleOf(saleId, partition).look = true;
          this.wake(saleId, epoch);
        } else if (await store.dropEpoch({ saleId, epoch })) {
          const sale = this.#sales.get(saleId);
          sale?.sure.delete(epoch);
          sale?.oldest.delete(epoch);
        }
      }
      if (due > 0) for (const epoch of await store.moveDue(saleId)) this.wake(saleId, epoch);
      return null;
    } catch (error) {
      return error;
    }
  }

  // One sale

  async #visit(sale: Sale): Promise<void> {
    sale.state = 'visited';
    let failed = false;
    try {
      // Read before sending: when everything is sent, all entries up to these marks have been sent.
      const marks = sale.look ? await this.#on.store.marks(sale.id) : null;
      sale.look = false;
      let sentAll = true;
      for (const epoch of [...sale.toSend].sort((one, other) => one - other)) {
        // Before reading: a wake-up that arrives meanwhile may be for an entry that this read misses.
        sale.toSend.delete(epoch);
        if (!(await this.#sendAll(sale, epoch))) sentAll = false;
      }
      if (marks && sentAll) await this.#probe(sale, marks);
    } catch (error) {
      if (error instanceof BrokerError) this.#failed(sale.partition, error.cause);
      else this.#on.outage(error);
      failed = true;
    } finally {
      sale.state = 'idle';
    }
    // After a failure it is enqueued when its partition is tried again, or by the next successful sweep.
    if (sale.toSend.size > 0 && !failed && this.#leads(sale)) this.#enqueue(sale);
  }

  #leads(sale: Sale): boolean {
    return this.#leading.has(sale.partition) && this.#sales.get(sale.id) === sale && !this.#stopped.signal.aborted;
  }

  /** Returns whether everything was sent. */
  async #sendAll(sale: Sale, epoch: number): Promise<boolean> {
    const { store } = this.#on;
    const stream = { saleId: sale.id, epoch };
    try {
      if (!sale.sure.has(epoch)) {
        let after = '0';
        for (;;) {
          if (!this.#leads(sale)) return false;
          const own = await store.readOwnAfter(stream, after, ENTRIES_MAX);
          if (own === null || own.last === after) break;
          await store.acknowledge(stream, own.gone);
          await this.#send(sale, epoch, own.entries);
          this.#resent += own.entries.length;
          after = own.last;
        }
        sale.sure.add(epoch);
      }
      for (;;) {
        if (!this.#leads(sale)) return false;
        const entries = await store.read(stream, ENTRIES_MAX);
        if (entries === null || entries.length === 0) return true;
        await this.#send(sale, epoch, entries);
      }
    } catch (error) {
      // Entries may have been given to us in a lost reply, or sent and not confirmed: send the pending ones again.
      sale.sure.delete(epoch);
      sale.toSend.add(epoch);
      throw error;
    }
  }

  async #send(sale: Sale, epoch: number, entries: readonly Written[]): Promise<void> {
    if (entries.length === 0) return;
    const { store } = this.#on;
    const parcels = entries.map(({ id, fields }) => ({ saleId: sale.id, epoch, entryId: id, fields }));
    await this.#carry(sale.partition, parcels);
    this.#relayed += entries.length;
    const ids = entries.map(({ id }) => id);
    // Not awaited: if it fails, they are sent again.
    store.acknowledge({ saleId: sale.id, epoch }, ids).catch((error: unknown) => {
      sale.sure.delete(epoch);
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
  async #probe(sale: Sale, { streams }: Marks): Promise<void> {
    const { probeMs } = this.#on;
    const nowMs = this.#runtime.clock.monotonic();
    for (const { epoch, first, last } of streams) {
      const known = sale.oldest.get(epoch);
      if (known?.first !== first) {
        sale.oldest.set(epoch, { first, sinceMs: nowMs, askMs: nowMs + probeMs });
        continue;
      }
      if (nowMs < known.askMs) continue;
      known.askMs = nowMs + Math.min(2 * (nowMs - known.sinceMs), Math.max(PROBE_MS_MAX, probeMs));
      await this.#carry(sale.partition, [{ saleId: sale.id, epoch, entryId: last, fields: null }]);
      this.#probes++;
    }
  }

  // The broker is out: entries wait in the stream, and the gate slows down

  #failed(partition: number, error: unknown): void {
    const { log, timers } = this.#runtime;
    if (this.#troubles.size === 0 && !this.#stopped.signal.aborted) {
      log.error({ reason: messageOf(error) }, 'the broker takes nothing; orders wait in the stream');
    }
    const before = this.#troubles.get(partition);
    if (before?.waiting) return;
    const failures = before?.failures ?? 0;
    const trouble = { failures: failures + 1, waiting: true };
    this.#troubles.set(partition, trouble);
    timers.after(backOffMs(failures, AGAIN_MS_MIN, AGAIN_MS_MAX), () => {
      trouble.waiting = false;
      for (const sale of this.#sales.values()) {
        if (sale.partition === partition && sale.toSend.size > 0 && this.#leads(sale)) this.#enqueue(sale);
      }
    });
  }

  #worked(partition: number): void {
    if (this.#troubles.delete(partition) && this.#troubles.size === 0)
      this.#runtime.log.info('the broker takes orders again');
  }
}
