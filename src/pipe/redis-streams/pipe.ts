import { Anchor } from '../../base/anchor.ts';
import type { RedisTarget } from '../../base/redis/address.ts';
import type { Runtime } from '../../base/runtime.ts';
import { isNewerEntry } from '../../model/stream-entry.ts';
import type { DeadLetters, Handle, PipeCounters, SharedPipe } from '../port.ts';
import { CatchUp } from './catch-up.ts';
import { type Entry, readEntry, sizeOf } from './entry.ts';
import { Handover } from './handover.ts';
import { RedisDeadLetters } from './letters.ts';
import { Slots } from './slots.ts';
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
  /** What its owner did not touch for so long is claimed by another. */
  readonly claimIdleMs?: number;
  /** How often all sales are looked at: for what no wake-up told, what is due again, and what a dead process left. */
  readonly sweepMs?: number;
  /** A message that was undeliverable so often becomes a dead letter. */
  readonly triesMax?: number;
  /** Until the second try of such a message; twice as long until the third, and so on. */
  readonly retryMs?: number;
  /** The name of a consumer that did nothing for so long is forgotten, if nothing is pending under it. */
  readonly consumerIdleMs?: number;
  /** A consumer whose handler rejects for so long lets others have its batches, if it can say when it is ready again. */
  readonly rejectedMsMax?: number;
  readonly anchor?: Anchor;
}

const OBSERVE_MS = 2000;
/** What a first read asks for; from then on by the mean size of the entries seen. */
const ORDERS_PER_ENTRY = 8;
/** Entries of one call: about a millisecond of the server's time. */
const HAND_BACK_MAX = 500;

/** What this process knows of a sale that has something in the pipe. */
class Sale {
  readonly id: string;
  /** Epochs whose streams are to be read, to be searched for what others left, and to be asked for what we were sent. */
  readonly toRead = new Set<number>();
  readonly toClaim = new Set<number>();
  readonly unsure = new Set<number>();
  /** Read, and more than fits into one batch: the next one begins with these. */
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

/** Entries of one stream that were given to us. */
interface Held {
  readonly epoch: number;
  readonly entries: Entry[];
}

/**
 * The consumer's side of the pipe on Redis Streams. The gate's script writes the entries; see docs/internals/distributed.md.
 *
 * Nothing blocks in Redis, and nothing is asked about a sale that is quiet but once per sweep: a wake-up names the stream to
 * be read, and a sweep finds what a lost wake-up would have told. A sale is visited by one task at a time, which takes one
 * batch, hands it over and decides it; then it is the turn of the next sale.
 *
 *   read, claimed        → in hand: kept young, so that nobody else claims it; a process that dies lets it grow old
 *   in hand → decided    one script takes the entries out of the stream and puts what is undeliverable elsewhere
 *   in hand → in hand    the handler rejected: again after 25 ms … 2 s, for as long as it takes; no try is counted
 *   in hand → handed back    stop(), or the handler rejected for long: others may have it at once
 *   read → handed back       a newer version wrote the entry: it waits for a worker that can read it
 *
 * At least once: a process that was stopped for longer than `claimIdleMs` wakes up with a batch that another handles, too.
 */
export class RedisStreamsPipe implements SharedPipe {
  readonly letters: DeadLetters;
  readonly #store: StreamStore;
  readonly #catchUp: CatchUp;
  readonly #runtime: Runtime;
  readonly #anchor: Anchor;
  readonly #ownsAnchor: boolean;
  readonly #batchMax: number;
  readonly #claimIdleMs: number;
  readonly #sweepMs: number;
  readonly #consumerIdleMs: number;
  readonly #sales = new Map<string, Sale>();
  readonly #slots: Slots;
  #queue: Sale[] = [];
  readonly #handover: Handover;
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
    this.#slots = new Slots(options.salesMax ?? 8);
    this.#ownsAnchor = options.anchor === undefined;
    this.#anchor = options.anchor ?? new Anchor(runtime.timers);
    const { redis, prefix, commandMs = 2000 } = options;
    this.#store = new StreamStore({ redis, prefix, commandMs, anchor: this.#anchor }, runtime, {
      wake: (saleId, epoch) => this.#wake(saleId, epoch),
      // What was sent meanwhile is lost, and another server may be there now.
      interrupted: () => this.#sweepSoon(),
    });
    this.#catchUp = new CatchUp(this.#store, runtime, policy.retryMs);
    this.#handover = new Handover(
      {
        store: this.#store,
        catchUp: this.#catchUp,
        policy,
        slots: this.#slots,
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

  /** This process among those that read the streams. */
  get consumer(): string {
    return this.#store.consumer;
  }

  /** Why Redis cannot be reached, or null while it can. */
  get reason(): string | null {
    return this.#handover.reason;
  }

  get counters(): PipeCounters {
    return {
      depth: this.#depth,
      letters: this.#lettersSeen,
      ...this.#handover.counters,
      claimed: this.#claimed,
    };
  }

  consume(handle: Handle, ready: (() => Promise<unknown>) | null = null): void {
    this.#handover.start(handle, ready);
    if (this.#cancelTimers.length > 0 || this.#stopping !== null) return;
    const { timers } = this.#runtime;
    this.#cancelTimers.push(timers.every(this.#sweepMs, () => this.#sweepSoon()));
    this.#cancelTimers.push(timers.every(this.#claimIdleMs / 3, () => void this.#keepYoung()));
    this.#sweepSoon();
  }

  /** Without consuming: looks now and then, so that `counters` and `reason` say what is the case. */
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
      this.#handover.noteBack();
    } catch (error) {
      this.#handover.noteOutage(error);
    }
  }

  /** `foreign`: what a broker brought and is not ours; also where none is in use any more. */
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
    this.#handover.stop();
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
      // A name without anything pending is forgotten by others.
      this.#runtime.log.debug({ err: error }, 'could not take the name of this consumer away');
    }
  }

  async close(): Promise<void> {
    this.#catchUp.close();
    await this.stop();
    this.#store.close();
    if (this.#ownsAnchor) this.#anchor.close();
  }

  // What is to be read

  #wake(saleId: string, epoch: number): void {
    if (!this.#handover.started || this.#stopping !== null) return;
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

  /** One that is being visited is enqueued at the end of its visit, if there is more by then. */
  #enqueue(sale: Sale): void {
    if (sale.state !== 'idle' || this.#stopping !== null) return;
    sale.state = 'queued';
    this.#queue.push(sale);
    this.#pump();
  }

  #pump(): void {
    while (!this.#handover.isAway && this.#queue.length > 0 && this.#slots.tryTake()) {
      const visit = this.#visit(this.#queue.shift()!).finally(() => {
        this.#visits.delete(visit);
        this.#pump();
      });
      this.#visits.add(visit);
    }
  }

  #sweepSoon(): void {
    if (!this.#handover.started || this.#stopping !== null) return;
    this.#sweeping ??= this.#sweep().finally(() => {
      this.#sweeping = null;
    });
  }

  async #sweep(): Promise<void> {
    try {
      // Wake-ups are wanted, but who can read goes on without them.
      const deaf = await this.#store.listen().catch((error: unknown) => error);
      const saleIds = await this.#store.saleIds();
      const { looks, failure } = await this.#store.look(saleIds);
      this.#count(looks, await this.#store.foreignCount());
      const failures = await Promise.all(looks.map((look) => this.#doFor(look)));
      // What a visit could not read because Redis was out.
      for (const sale of this.#sales.values()) if (sale.hasMore) this.#enqueue(sale);
      const first = [deaf, failure, ...failures].find((one) => one != null);
      if (first !== undefined) throw first;
      await this.#tidy(new Set(saleIds));
      this.#handover.noteBack();
    } catch (error) {
      this.#handover.noteOutage(error);
    }
  }

  /** What a sweep has found to do for one sale. Returns why it could not. */
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

  /** Names of consumers that are gone. */
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

  /** One batch; a sale with more goes to the end of the queue, so that no sale waits for the whole of another. */
  async #visit(sale: Sale): Promise<void> {
    sale.state = 'visited';
    // A process does not end with a batch in hand because nothing else is to do.
    this.#anchor.hold();
    let failed = false;
    try {
      const held = await this.#take(sale);
      if (held !== null) {
        sale.inHand = held;
        const stream = { saleId: sale.id, epoch: held.epoch };
        if (!(await this.#handover.settle(stream, held.entries))) await this.#leave(sale, held);
      }
    } catch (error) {
      failed = true;
      this.#handover.noteOutage(error);
    } finally {
      sale.inHand = null;
      sale.state = 'idle';
      this.#anchor.drop();
      this.#slots.give();
    }
    // After a failure the next sweep that gets through brings it back: no loop against a server that is out.
    if (sale.hasMore && !failed) this.#enqueue(sale);
    else if (!sale.hasMore && sale.unsure.size === 0 && this.#sales.get(sale.id) === sale) this.#sales.delete(sale.id);
  }

  /** The next batch, of one stream: the oldest epoch that has something. */
  async #take(sale: Sale): Promise<Held | null> {
    const epochs = sale.over ? [sale.over.epoch] : [...sale.toRead].sort((one, other) => one - other);
    for (const epoch of epochs) {
      const held: Held = { epoch, entries: [] };
      if (sale.over?.epoch === epoch) {
        held.entries.push(...sale.over.entries.filter(({ lost }) => !lost));
        sale.over = null;
      }
      // Beforehand: a wake-up that comes while we read is for what we may not see any more.
      const wasToRead = sale.toRead.delete(epoch);
      try {
        if (wasToRead) await this.#fill(sale, held);
      } catch (error) {
        sale.toRead.add(epoch);
        sale.unsure.add(epoch);
        if (held.entries.length === 0) throw error;
        this.#handover.noteOutage(error);
      }
      if (held.entries.length > 0) return this.#cut(sale, held);
    }
    return null;
  }

  /** Reads until a batch is together or nothing is left. What a newer version has written is handed back. */
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
      // The rest of what others left comes with the next batch.
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

  /** Others may have them at once. To claim them again at every sweep would only get in the way of whoever can read them. */
  async #leaveToNewer(sale: Sale, epoch: number, ids: readonly string[]): Promise<void> {
    const stream = { saleId: sale.id, epoch };
    this.#handover.noteNewer(stream, ids.length);
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

  /** Entries are never divided: what does not fit waits, in hand, for the next batch. */
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

  /** All that is in hand, three times in the span after which others would take it. */
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
          // At worst another handles them, too.
          this.#handover.noteOutage(error);
        }
      }),
    );
  }

  async #handBack(sale: Sale, epoch: number, ids: readonly string[]): Promise<void> {
    try {
      await this.#store.handBack({ saleId: sale.id, epoch }, ids);
    } catch (error) {
      // Then others claim them when they have been idle for long enough.
      this.#runtime.log.debug({ err: error, saleId: sale.id }, 'could not hand a batch back');
    }
  }
}

/** Of those that are still ours. */
function idsOf(entries: readonly Entry[]): string[] {
  return entries.filter(({ lost }) => !lost).map(({ id }) => id);
}
