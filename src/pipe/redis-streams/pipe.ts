import { KeepAlive } from '../../base/keep-alive.ts';
import type { RedisTarget } from '../../base/redis/address.ts';
import type { Runtime } from '../../base/runtime.ts';
import { isNewerEntry } from '../../model/stream-entry.ts';
import type { DeadLetters, Handle, PipeCounters, SharedPipe } from '../port.ts';
import { CatchUp } from './catch-up.ts';
import { BatchDelivery } from './delivery.ts';
import { type Entry, readEntry, sizeOf } from './entry.ts';
import { RedisDeadLetters } from './letters.ts';
import { Limiter } from './limiter.ts';
import { type Look, ordersIn, type StreamName, StreamStore, type Written } from './store.ts';

export interface RedisStreamsOptions {
  readonly redis: RedisTarget;
  readonly prefix: string;
  /** How long one command may take. */
  readonly commandMs?: number;
  /** Orders of one batch: bounds one transaction. */
  readonly batchMax?: number;
  /** Sales whose batches are handled at the same time. */
  readonly salesMax?: number;
  /** Another worker claims entries that their owner did not touch for so long. */
  readonly claimIdleMs?: number;
  /** Interval of the sweeps over all sales, for lost wake-ups, messages that are due again, and entries of dead processes. */
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
const ORDERS_PER_ENTRY = 8;
/** Entries of one call: about a millisecond of the server's time. */
const HAND_BACK_MAX = 500;

/** What this process knows of a sale that has something in the pipe. */
class Sale {
  readonly id: string;
  /** Epochs whose streams are to be read, to be claimed from, and to be asked for entries that were sent in a lost reply. */
  readonly toRead = new Set<number>();
  readonly toClaim = new Set<number>();
  readonly unsure = new Set<number>();
  /** Entries that were read and did not fit into the batch: the next one begins with them. */
  over: Held | null = null;
  inHand: Held | null = null;
  ordersPerEntry = ORDERS_PER_ENTRY;
  state: 'idle' | 'queued' | 'visited' = 'idle';

  constructor(id: string) {
    this.id = id;
  }

  get hasMore(): boolean {
    return this.over !== null || this.toRead.size > 0;
  }
}

/** Entries of one stream that Redis has given to this consumer. */
interface Held {
  readonly epoch: number;
  readonly entries: Entry[];
}

/**
 * The consumer's side of the pipe on Redis Streams. The gate's script writes the entries; see docs/internals/distributed.md.
 *
 * It uses no blocking commands, and a quiet sale costs one look per sweep: a wake-up names the stream to read, and a sweep makes up
 * for lost wake-ups. One task at a time visits a sale: it takes one batch, hands it over and decides it; then the next sale has its
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
export class RedisStreamsPipe implements SharedPipe {
  readonly letters: DeadLetters;
  readonly #store: StreamStore;
  readonly #catchUp: CatchUp;
  readonly #runtime: Runtime;
  readonly #keepAlive: KeepAlive;
  readonly #ownsAnchor: boolean;
  readonly #batchMax: number;
  readonly #claimIdleMs: number;
  readonly #sweepMs: number;
  readonly #consumerIdleMs: number;
  readonly #sales = new Map<string, Sale>();
  readonly #limiter: Limiter;
  #queue: Sale[] = [];
  readonly #delivery: BatchDelivery;
  /** Streams that we have read, when we last looked for names of dead consumers there, and when we may claim there again. */
  readonly #streams = new Map<string, StreamName & { tidiedMs: number; claimAfterMs: number }>();
  #sweeping: Promise<void> | null = null;
  #cancelTimers: (() => void)[] = [];
  #stopping: Promise<void> | null = null;
  readonly #visits = new Set<Promise<void>>();
  #depth = 0;
  #lettersSeen = 0;
  #claimed = 0;

  constructor(options: RedisStreamsOptions, runtime: Runtime) {
    this.#runtime = runtime;
    this.#batchMax = options.batchMax ?? 512;
    this.#claimIdleMs = options.claimIdleMs ?? 5000;
    this.#sweepMs = options.sweepMs ?? 1000;
    const policy = { triesMax: options.triesMax ?? 5, retryMs: options.retryMs ?? 1000 };
    this.#consumerIdleMs = options.consumerIdleMs ?? 60_000;
    this.#limiter = new Limiter(options.salesMax ?? 8);
    this.#ownsAnchor = options.keepAlive === undefined;
    this.#keepAlive = options.keepAlive ?? new KeepAlive(runtime.timers);
    const { redis, prefix, commandMs = 2000 } = options;
    this.#store = new StreamStore({ redis, prefix, commandMs, keepAlive: this.#keepAlive }, runtime, {
      wake: (saleId, epoch) => this.#wake(saleId, epoch),
      // Wake-ups sent meanwhile are lost, and another server may have taken over.
      interrupted: () => this.#sweepSoon(),
    });
    this.#catchUp = new CatchUp(this.#store, runtime, policy.retryMs);
    this.#delivery = new BatchDelivery(
      {
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
    this.letters = new RedisDeadLetters(this.#store, runtime.clock);
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

  consume(handle: Handle, ready: (() => Promise<unknown>) | null = null): void {
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
      const { looks, failure } = await this.#store.look(await this.#store.saleIds());
      this.#count(looks, await this.#store.foreignCount());
      if (failure != null) throw failure;
      this.#delivery.noteBack();
    } catch (error) {
      this.#delivery.noteOutage(error);
    }
  }

  /** `foreign`: foreign messages, counted also where no broker is in use any more. */
  #count(looks: readonly Look[], foreign: number): void {
    this.#depth = looks.reduce((sum, look) => sum + look.waiting + ordersIn(look), 0);
    this.#lettersSeen = looks.reduce((sum, { letters }) => sum + letters, foreign);
  }

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
    const [cancelSweeps, cancelKeeping] = this.#cancelTimers;
    cancelSweeps?.();
    this.#queue = [];
    this.#delivery.stop();
    await this.#sweeping;
    while (this.#visits.size > 0) await Promise.all(this.#visits);
    cancelKeeping?.();
    for (const sale of this.#sales.values()) {
      if (sale.over) await this.#handBack(sale, sale.over.epoch, idsOf(sale.over.entries));
    }
    this.#sales.clear();
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

  #wake(saleId: string, epoch: number): void {
    if (!this.#delivery.started || this.#stopping !== null) return;
    const sale = this.#saleOf(saleId);
    sale.toRead.add(epoch);
    this.#enqueue(sale);
  }

  #saleOf(saleId: string): Sale {
    const known = this.#sales.get(saleId);
    if (known) return known;
    const sale = new Sale(saleId);
    this.#sales.set(saleId, sale);
    return sale;
  }

  /** A sale that is being visited is enqueued at the end of the visit, if there is more by then. */
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
      const saleIds = await this.#store.saleIds();
      const { looks, failure } = await this.#store.look(saleIds);
      this.#count(looks, await this.#store.foreignCount());
      const failures = await Promise.all(looks.map((look) => this.#doFor(look)));
      // Sales that a visit could not read because Redis was out.
      for (const sale of this.#sales.values()) if (sale.hasMore) this.#enqueue(sale);
      const first = [deaf, failure, ...failures].find((one) => one != null);
      if (first !== undefined) throw first;
      await this.#tidy(new Set(saleIds));
      this.#delivery.noteBack();
    } catch (error) {
      this.#delivery.noteOutage(error);
    }
  }

  /** Does what a sweep has found for one sale. Returns the error if that failed, else null. */
  async #doFor({ saleId, due, streams }: Look): Promise<unknown> {
    try {
      for (const { epoch, entries } of streams) {
        if (entries > 0) {
          const claimAfterMs = this.#streams.get(`${saleId} ${epoch}`)?.claimAfterMs ?? 0;
          if (this.#runtime.clock.monotonic() >= claimAfterMs) this.#saleOf(saleId).toClaim.add(epoch);
          this.#wake(saleId, epoch);
        } else if (await this.#store.dropEpoch({ saleId, epoch })) {
          this.#streams.delete(`${saleId} ${epoch}`);
        }
      }
      if (due > 0) for (const epoch of await this.#store.moveDue(saleId)) this.#wake(saleId, epoch);
      return null;
    } catch (error) {
      return error;
    }
  }

  /** Deletes the names of consumers that are gone. */
  async #tidy(saleIds: ReadonlySet<string>): Promise<void> {
    const nowMs = this.#runtime.clock.monotonic();
    for (const [name, stream] of this.#streams) {
      if (!saleIds.has(stream.saleId)) this.#streams.delete(name);
      if (!saleIds.has(stream.saleId) || nowMs - stream.tidiedMs < this.#consumerIdleMs) continue;
      stream.tidiedMs = nowMs;
      await this.#store.forgetConsumers(stream, this.#consumerIdleMs);
    }
  }

  // One sale

  /** Handles one batch. A sale with more goes to the end of the queue, so that no sale waits for all of another. */
  async #visit(sale: Sale): Promise<void> {
    sale.state = 'visited';
    // Keeps the process alive while it has a batch in hand.
    this.#keepAlive.hold();
    let failed = false;
    try {
      const held = await this.#take(sale);
      if (held !== null) {
        sale.inHand = held;
        const stream = { saleId: sale.id, epoch: held.epoch };
        if (!(await this.#delivery.settle(stream, held.entries))) await this.#leave(sale, held);
      }
    } catch (error) {
      failed = true;
      this.#delivery.noteOutage(error);
    } finally {
      sale.inHand = null;
      sale.state = 'idle';
      this.#keepAlive.drop();
      this.#limiter.give();
    }
    // After a failure the next successful sweep enqueues it again, so that nothing loops against a server that is out.
    if (sale.hasMore && !failed) this.#enqueue(sale);
    else if (!sale.hasMore && sale.unsure.size === 0 && this.#sales.get(sale.id) === sale) this.#sales.delete(sale.id);
  }

  /** The next batch, from the stream of the oldest epoch that has entries. */
  async #take(sale: Sale): Promise<Held | null> {
    const epochs = sale.over ? [sale.over.epoch] : [...sale.toRead].sort((one, other) => one - other);
    for (const epoch of epochs) {
      const held: Held = { epoch, entries: [] };
      if (sale.over?.epoch === epoch) {
        held.entries.push(...sale.over.entries.filter(({ lost }) => !lost));
        sale.over = null;
      }
      // Before reading: a wake-up that arrives meanwhile may be for an entry that this read misses.
      const wasToRead = sale.toRead.delete(epoch);
      try {
        if (wasToRead) await this.#fill(sale, held);
      } catch (error) {
        sale.toRead.add(epoch);
        sale.unsure.add(epoch);
        if (held.entries.length === 0) throw error;
        this.#delivery.noteOutage(error);
      }
      if (held.entries.length > 0) return this.#cut(sale, held);
    }
    return null;
  }

  /** Reads until the batch is full or nothing is left. Hands back what a newer version has written. */
  async #fill(sale: Sale, held: Held): Promise<void> {
    const newer: string[] = [];
    try {
      await this.#gather(sale, held, newer);
    } finally {
      if (newer.length > 0) await this.#leaveToNewer(sale, held.epoch, newer);
    }
  }

  async #gather(sale: Sale, held: Held, newer: string[]): Promise<void> {
    const stream = { saleId: sale.id, epoch: held.epoch };
    const known = new Set(held.entries.map(({ id }) => id));
    let orders = held.entries.reduce((sum, entry) => sum + sizeOf(entry), 0);
    const add = (written: readonly Written[]): number => {
      let added = 0;
      for (const { id, fields } of written) {
        if (known.has(id)) continue;
        known.add(id);
        if (isNewerEntry(fields)) {
          newer.push(id);
          continue;
        }
        const entry = readEntry(sale.id, id, fields);
        held.entries.push(entry);
        added += sizeOf(entry);
      }
      orders += added;
      return added;
    };
    if (sale.unsure.has(held.epoch)) {
      add((await this.#store.readOwn(stream, this.#batchMax * 2)) ?? []);
      sale.unsure.delete(held.epoch);
    }
    if (sale.toClaim.delete(held.epoch)) {
      let cursor: string | null = '0-0';
      while (cursor !== null && orders < this.#batchMax) {
        const reply = await this.#store.claim(stream, this.#claimIdleMs, this.#countFor(sale, orders), cursor);
        this.#claimed += add(reply.entries);
        cursor = reply.cursor;
      }
      // The next batch claims the rest.
      if (cursor !== null) {
        sale.toClaim.add(held.epoch);
        sale.toRead.add(held.epoch);
      }
    }
    while (orders < this.#batchMax) {
      const count = this.#countFor(sale, orders);
      const written = await this.#store.read(stream, count);
      if (written === null) return;
      this.#remember(stream);
      const added = add(written);
      if (written.length > 0) sale.ordersPerEntry = Math.max(added / written.length, 1);
      if (written.length < count) return;
    }
    sale.toRead.add(held.epoch);
  }

  /** Others may claim them at once. This worker does not for a while: it would only be in the way of one that can read them. */
  async #leaveToNewer(sale: Sale, epoch: number, ids: readonly string[]): Promise<void> {
    const stream = { saleId: sale.id, epoch };
    this.#delivery.noteNewer(stream, ids.length);
    this.#remember(stream).claimAfterMs = this.#runtime.clock.monotonic() + this.#claimIdleMs;
    for (let from = 0; from < ids.length; from += HAND_BACK_MAX) {
      await this.#handBack(sale, epoch, ids.slice(from, from + HAND_BACK_MAX));
    }
  }

  #countFor(sale: Sale, orders: number): number {
    return Math.max(Math.ceil((this.#batchMax - orders) / sale.ordersPerEntry), 1);
  }

  #remember(stream: StreamName): { claimAfterMs: number } {
    const name = `${stream.saleId} ${stream.epoch}`;
    const known = this.#streams.get(name);
    if (known) return known;
    const met = { ...stream, tidiedMs: this.#runtime.clock.monotonic(), claimAfterMs: 0 };
    this.#streams.set(name, met);
    return met;
  }

  /** Entries are never split: those that do not fit stay in hand for the next batch. */
  #cut(sale: Sale, held: Held): Held {
    let orders = 0;
    let count = 0;
    for (const entry of held.entries) {
      orders += sizeOf(entry);
      if (count > 0 && orders > this.#batchMax) break;
      count++;
    }
    if (count === held.entries.length) return held;
    sale.over = { epoch: held.epoch, entries: held.entries.slice(count) };
    return { epoch: held.epoch, entries: held.entries.slice(0, count) };
  }

  async #leave(sale: Sale, held: Held): Promise<void> {
    await this.#handBack(sale, held.epoch, idsOf(held.entries));
    if (sale.over) await this.#handBack(sale, sale.over.epoch, idsOf(sale.over.entries));
    sale.over = null;
  }

  /** Touches all entries in hand, three times within the limit after which others claim them. */
  async #keepYoung(): Promise<void> {
    const all = [...this.#sales.values()].flatMap((sale) =>
      [sale.inHand, sale.over].flatMap((held) => (held === null ? [] : [{ sale, held }])),
    );
    await Promise.all(
      all.map(async ({ sale, held: { epoch, entries } }) => {
        const ids = idsOf(entries);
        if (ids.length === 0) return;
        try {
          const lost = new Set(await this.#store.keep({ saleId: sale.id, epoch }, ids));
          for (const entry of entries) if (lost.has(entry.id)) entry.lost = true;
        } catch (error) {
          // At worst another worker handles them too.
          this.#delivery.noteOutage(error);
        }
      }),
    );
  }

  async #handBack(sale: Sale, epoch: number, ids: readonly string[]): Promise<void> {
    try {
      await this.#store.handBack({ saleId: sale.id, epoch }, ids);
    } catch (error) {
      // Others claim them when they have been idle for `claimIdleMs`.
      this.#runtime.log.debug({ err: error, saleId: sale.id }, 'could not hand a batch back');
    }
  }
}

/** Ids of the entries that no other worker has claimed. */
function idsOf(entries: readonly Entry[]): string[] {
  return entries.filter(({ lost }) => !lost).map(({ id }) => id);
}
