import { BusyError, messageOf, RetryableError } from '../base/errors.ts';
import { KeepAlive } from '../base/keep-alive.ts';
import type { RedisTarget } from '../base/redis/address.ts';
import { Layout } from '../base/redis/layout.ts';
import type { Runtime } from '../base/runtime.ts';
import { oneAtATime, within } from '../base/timers.ts';
import { PrefixClaim } from '../gate/redis/claim.ts';
import { RedisGate } from '../gate/redis/gate.ts';
import { LeftInPipe } from '../ledger/left-in-pipe.ts';
import type { Ledger, LikeMode } from '../ledger/port.ts';
import { Writer } from '../ledger/writer.ts';
import { createLocks, type Locks } from '../locks/locks.ts';
import type { OrderMessage } from '../model/order.ts';
import type { SaleRecord } from '../model/sale.ts';
import { QueuedOrders } from '../orders/queued-orders.ts';
import { DecisionChannel } from '../orders/redis/decision-channel.ts';
import { BrokerPipe } from '../pipe/brokers/pipe.ts';
import type { Carrier } from '../pipe/brokers/port.ts';
import type { Lead } from '../pipe/brokers/relay.ts';
import type { Channels } from '../pipe/channels.ts';
import { LIKES } from '../pipe/likes.ts';
import { ORDERS } from '../pipe/orders.ts';
import type { SharedPipe, Undeliverable } from '../pipe/port.ts';
import { RedisStreamsPipe } from '../pipe/redis-streams/pipe.ts';
import { DirectLikes } from '../social/likes/direct.ts';
import { leaveToLedger } from '../social/likes/leave.ts';
import { LikeStore } from '../social/likes/redis/store.ts';
import { SharedLikes } from './likes.ts';
import { type LifeOptions, NO_PAYMENTS, type Readiness, Shop } from './shop.ts';

export interface DistributedOptions {
  readonly redis: RedisTarget;
  readonly prefix: string;
  /** How long an answer waits for the commit, before the order is answered as queued. */
  readonly answerWithinMs: number;
  /** Orders of one sale that may wait for the ledger; beyond, new ones are refused. */
  readonly pipeMax: number;
  /** How long a rebuild waits at most for orders in the pipe, while they are being decided. */
  readonly rebuildDrainMs?: number;
  /** Whether this process carries orders to the ledger. */
  readonly worker: boolean;
  /** A broker that carries orders to the workers; null: they read the streams in Redis. */
  readonly carrier?: Carrier | null;
  /** How likes are decided: in Redis (the default), or in the ledger. */
  readonly likes?: LikeMode;
  /** The same broker for likes, where Redis decides them. */
  readonly likesCarrier?: Carrier | null;
  /**
   * `buyer`: a batch is written under its buyers' locks (docs/concepts/sources.md, 000). Not needed, and tested to be not
   * needed.
   */
  readonly writerLock: 'off' | 'buyer';
  readonly life?: LifeOptions;
  /** How long one command to Redis may take. */
  readonly commandMs?: number;
}

/** While the ledger is out, orders are taken as long as there are ids: a block lasts for as many orders as fit into a pipe. */
const ORDER_ID_BLOCK = 100_000;
const COMMAND_MS = 1000;
const REBUILD_DRAIN_MS = 60_000;
/** Orders in the pipe are not waited for any longer while none is decided: no worker may be there to carry them. */
const REBUILD_IDLE_MS = 3000;
const LOCKED_MAX = 100;
const OWED_MS_MAX = 2000;
const STOP_MS_MAX = 5000;
const BROKER_MS_MAX = 5000;
const LEAVE_MS_MAX = 1000;
const RELAY_LEASE_MS = 3000;
const ORDER_LOCK_OUTAGE_MS = 500;
const LOOK_EVERY_MS = 500;
const PROBE_EVERY_MS = 2000;
const CLAIM_EVERY_MS = 1000;

/**
 * One process of a shop that many share: Redis has the gate and the pipe, a database the ledger.
 *
 *     place ──▶ gate ═══▶ pipe ──▶ (a worker, here or elsewhere) writer ──▶ ledger
 *                 ▲                                   │ commit, then gate, then acknowledge
 *                 └──────────── settle ───────────────┴──▶ decisions ──▶ pending ──▶ the answer
 */
export class DistributedShop extends Shop {
  readonly #gate: RedisGate;
  readonly #pipe: SharedPipe<OrderMessage>;
  readonly #locks: Locks;
  readonly #orderLocks: Locks;
  readonly #decisions: DecisionChannel;
  readonly #queuedOrders: QueuedOrders;
  readonly #writer: Writer;
  readonly #leftInPipe: LeftInPipe;
  readonly #keepAlive: KeepAlive;
  readonly #options: DistributedOptions;
  readonly #stopTimers: (() => void)[] = [];
  readonly #claim: PrefixClaim;
  /** Null: the ledger decides likes. */
  readonly #likes: SharedLikes | null;
  /** Nothing in Redis is to be changed any more. */
  readonly #ended = new AbortController();
  #ledgerOut: string | null = null;

  /**
   * Needs a ledger whose schema is up to date, and a prefix that no other ledger has. Redis need not be there yet: until then
   * orders get `unavailable`.
   */
  static async open(ledger: Ledger, options: DistributedOptions, runtime: Runtime): Promise<DistributedShop> {
    const shop = new DistributedShop(ledger, options, runtime);
    try {
      await shop.#claim.ask();
      await shop.webhooks.open();
      await shop.#decisions.listen();
      // So that it can take orders also when the ledger goes out before the first.
      await shop.prefetchIds();
      await shop.#openBroker();
      if (shop.#likes === null) await ledger.likes.setLikeMode('direct');
      else await shop.#likes.open();
    } catch (error) {
      await shop.close();
      throw error;
    }
    if (shop.#claim.reason === null) await shop.#begin();
    shop.#stopTimers.push(
      runtime.timers.every(
        CLAIM_EVERY_MS,
        oneAtATime(() => shop.#keepPrefix()),
      ),
    );
    return shop;
  }

  private constructor(ledger: Ledger, options: DistributedOptions, runtime: Runtime) {
    const process = runtime.random.secret(8);
    const keepAlive = new KeepAlive(runtime.timers);
    const common = {
      target: options.redis,
      prefix: options.prefix,
      process,
      commandMs: options.commandMs ?? COMMAND_MS,
      keepAlive,
    };
    const orders: Channels<OrderMessage> = { ...ORDERS, bound: options.pipeMax };
    const gate = new RedisGate({ ...common, shopId: ledger.shopId, pipeMax: orders.bound }, runtime);
    const lockPrefix = new Layout(options.prefix).locks;
    const locks = createLocks({
      redis: options.redis,
      prefix: lockPrefix,
      log: runtime.log,
      runtime,
    });
    const { carrier = null, likesCarrier = null, worker, prefix, redis } = options;
    const ground: PipeGround = { ...common, redis, locks, runtime };
    const pipe = sharedPipe(orders, worker ? carrier : null, ground);
    const drain = { drainMsMax: options.rebuildDrainMs ?? REBUILD_DRAIN_MS, drainIdleMsMax: REBUILD_IDLE_MS };
    const likes =
      options.likes === 'direct'
        ? null
        : new SharedLikes({
            ...{ runtime, ledger, redis, prefix, commandMs: common.commandMs, locks, ...drain },
            pipe: sharedPipe(LIKES, worker ? likesCarrier : null, ground),
            closedBecause: () => this.#claim.reason,
          });
    // An order's lock only saves work: a call that does not get it soon goes on without it.
    const orderLocks = createLocks({
      redis: options.redis,
      prefix: lockPrefix,
      log: runtime.log,
      runtime,
      outageMs: ORDER_LOCK_OUTAGE_MS,
    });
    super(
      {
        ledger,
        gate,
        pipe,
        letters: pipe.letters,
        ...(likes !== null && { likeLetters: likes }),
        rebuild: drain,
        cluster: {
          process,
          locks,
          tell: (other, orders) => void this.#decisions.tell(other, orders),
          owed: (orderId) => this.#queuedOrders.get(orderId),
          ticket: (orderId) => this.#decisions.readTicket(orderId),
        },
        locks: orderLocks,
        life: options.life ?? NO_PAYMENTS,
        room: null,
        likes:
          likes ??
          new DirectLikes(
            {
              setLike: (request) => this.watched(ledger.likes.setLike(request)),
              likeShard: (shard) => this.watched(ledger.likes.likeShard(shard)),
            },
            runtime.clock,
          ),
        patience: { answerWithinMs: options.answerWithinMs, queued: (message) => this.#remember(message) },
        orderIdBlock: ORDER_ID_BLOCK,
        metrics: {
          pipeDepth: () => pipe.counters.depth,
          ledgerBacklog: () => ledger.backlog,
          unresolved: () => 0,
          owed: () => this.#queuedOrders.size,
          deadLetters: () => pipe.counters.letters,
          ...(likes !== null && {
            likes: () => {
              const { depth: waiting, letters } = likes.pipe.counters;
              return { waiting, letters, asStored: likes.asStored };
            },
          }),
          ...(pipe instanceof BrokerPipe && {
            relay: () => {
              const { relayed, resent, recovered } = pipe.counters;
              return { relayed, resent, recovered };
            },
          }),
        },
      },
      runtime,
    );
    this.#options = options;
    this.#keepAlive = keepAlive;
    this.#gate = gate;
    this.#claim = new PrefixClaim(() => gate.claim());
    this.#pipe = pipe;
    this.#likes = likes;
    this.#locks = locks;
    this.#orderLocks = orderLocks;
    this.#decisions = new DecisionChannel(common, runtime, (orderId, decision) =>
      this.pending.heard(orderId, decision),
    );
    this.#queuedOrders = new QueuedOrders({
      runtime,
      gate,
      ledger,
      rebuild: (saleId, above) => void this.rebuilder.rebuild(saleId, above),
      // A worker announces what it has decided.
      ended: (order, here) => {
        if (!here) return this.events.tellWatchers(order);
        this.metrics.lostToRebuild();
        this.events.announce('order.rejected', order);
      },
    });
    this.#leftInPipe = new LeftInPipe(ledger, runtime);
    this.#writer = new Writer(
      ledger,
      runtime,
      {
        decided: (stored, messages) => this.decisions.follow(stored, messages),
        committed: (orders, durationMs) => this.metrics.commit(orders, durationMs),
      },
      this.#leftInPipe,
    );
    this.#stopTimers.push(
      runtime.timers.every(
        LOOK_EVERY_MS,
        oneAtATime(() => this.#look()),
      ),
      runtime.timers.every(
        LOOK_EVERY_MS,
        oneAtATime(() => this.#lookAtSales()),
      ),
      runtime.timers.every(
        PROBE_EVERY_MS,
        oneAtATime(() => this.#probe()),
      ),
    );
  }

  /** A broker that is out is waited for while orders are taken; one that is not what we need fails the start. */
  async #openBroker(): Promise<void> {
    if (this.#pipe instanceof BrokerPipe) await within(this.runtime.timers, this.#pipe.open(), BROKER_MS_MAX);
  }

  /**
   * Once a second: Redis may have been out at the start, have forgotten everything, or be another one by now. Whoever finds
   * that another shop has the prefix leaves everything there alone.
   */
  async #keepPrefix(): Promise<void> {
    if (this.closing || this.#claim.isTaken) return;
    const wasOurs = this.#claim.reason === null;
    try {
      await this.#claim.ask();
    } catch (error) {
      this.runtime.log.fatal(
        { reason: messageOf(error) },
        'this process sells and carries nothing until it is started again',
      );
      this.#ended.abort();
      await Promise.all([this.upkeep.stop(), this.#pipe.stop(), this.#likes?.stop()]);
      return;
    }
    if (!wasOurs && this.#claim.reason === null && !this.closing) await this.#begin();
  }

  /** The prefix is ours. */
  async #begin(): Promise<void> {
    if (this.#options.worker) {
      this.#work();
      this.#likes?.work();
    } else {
      this.#pipe.observe();
      this.#likes?.pipe.observe();
    }
    if (this.#likes === null) await within(this.runtime.timers, this.#leaveLikes(), LEAVE_MS_MAX);
  }

  /** Goes on in the background while Redis is out. */
  async #leaveLikes(): Promise<void> {
    const { runtime, ledger } = this;
    const { redis: target, prefix, commandMs = COMMAND_MS } = this.#options;
    const store = new LikeStore({ target, prefix, commandMs }, runtime);
    try {
      await leaveToLedger({ runtime, store, ledger: ledger.likes }, this.#ended.signal);
    } finally {
      store.close();
    }
  }

  #work(): void {
    const { writerLock } = this.#options;
    this.#pipe.consume(
      writerLock === 'buyer' ? (batch) => this.#writeLocked(batch) : (batch) => this.#writer.write(batch),
      () => this.ledger.probe(),
    );
    this.startWork();
  }

  /** No other worker writes orders of these buyers meanwhile (docs/concepts/sources.md, 000). No promise needs this. */
  async #writeLocked(batch: OrderMessage[]): Promise<readonly Undeliverable<OrderMessage>[]> {
    const undeliverable: Undeliverable<OrderMessage>[] = [];
    // A multi-lock takes no more names at once.
    for (let from = 0; from < batch.length; from += LOCKED_MAX) {
      const some = batch.slice(from, from + LOCKED_MAX);
      const names = new Set(some.map(({ saleId, buyer }) => `order:${saleId}:${buyer}`));
      const found = await this.#locks.multi([...names]).run(async () => {
        const handled = await this.#writer.write(some);
        await handled.told;
        return handled.undeliverable;
      });
      undeliverable.push(...found);
    }
    return undeliverable;
  }

  override get blockedMs(): number {
    return 0;
  }

  get locks(): Locks {
    return this.#locks;
  }

  /**
   * With the ledger out orders are still taken (202): that is no reason to send the crowd elsewhere. Neither is a full Redis,
   * which all processes share: what needs no room goes on.
   */
  override readiness(): Readiness {
    const prefix = this.#claim.reason;
    const gate = prefix ?? this.#gate.reason ?? this.#gate.full ?? this.rebuildReason ?? 'ok';
    const likes = this.#likes?.reason ?? null;
    const pipe = this.closingReason ?? this.#pipe.reason ?? (likes === null ? 'ok' : `likes: ${likes}`);
    const ledger = this.#ledgerOut ?? this.#leftInPipe.reason ?? 'ok';
    const ok = prefix === null && this.#gate.reason === null && this.closingReason === null;
    return { status: ok ? 'ok' : 'unavailable', parts: { gate, pipe, ledger } };
  }

  protected override cannotPlace(): string | null {
    return this.#claim.reason;
  }

  protected override cannotChange(): string | null {
    return this.#claim.isTaken ? this.#claim.reason : null;
  }

  protected override ledgerFailed(error: unknown): void {
    // One held row keeps this call from being served, and no other.
    if (error instanceof BusyError) return;
    if (error instanceof RetryableError && error.code === 'unavailable') this.#ledgerOut ??= error.message;
  }

  async #probe(): Promise<void> {
    try {
      await this.ledger.probe();
      if (this.#ledgerOut !== null) this.runtime.log.info('the ledger is back');
      this.#ledgerOut = null;
    } catch (error) {
      if (this.#ledgerOut === null && !this.closing) {
        this.runtime.log.error({ reason: messageOf(error) }, 'the ledger is out; orders are queued');
      }
      this.#ledgerOut = messageOf(error);
    }
  }

  /** Whoever creates a sale waits for its gate, but not for a Redis that is out: the gate is built when Redis is back. */
  protected override install(saleId: string, above: number): Promise<void> {
    return this.rebuildFor(saleId, above);
  }

  /** A sale that is not noted as emptied is rebuilt, which notes it: quick where nothing is in the pipe. */
  protected override async isEmptied({ id, items }: SaleRecord): Promise<boolean> {
    const isNoted = async (): Promise<boolean> => {
      const emptied = await this.#gate.emptiedAt(id);
      return emptied !== null && items.every(({ epoch }) => epoch <= emptied);
    };
    if (await isNoted()) return true;
    await within(this.runtime.timers, this.rebuilder.rebuild(id), this.#options.answerWithinMs);
    return await isNoted();
  }

  /** Its gate knows already; the upkeep takes it away once nothing of the sale is in the pipe. */
  protected override async saleClosed(): Promise<void> {}

  /** An order that is answered as queued is owed to its buyer: this process sees to its end. */
  async #remember(message: OrderMessage): Promise<void> {
    this.#queuedOrders.add(message);
    await this.#decisions.writeTicket(message.orderId, message.saleId, message.buyer);
  }

  /** Other processes may change sales that are watched here. */
  async #lookAtSales(): Promise<void> {
    try {
      await this.board.poll();
    } catch (error) {
      this.runtime.log.debug({ err: error }, 'watched sales cannot be read');
    }
  }

  /** Other processes may decide orders that are watched here. */
  async #look(): Promise<void> {
    const ids = this.events.watched;
    if (ids.length === 0) return;
    try {
      for (const order of (await this.ledger.storedAmong(ids)).values()) this.events.tellWatchers(order);
    } catch (error) {
      this.runtime.log.debug({ err: error }, 'watched orders cannot be read');
    }
  }

  protected override async finish(): Promise<void> {
    for (const stop of this.#stopTimers) stop();
    this.#ended.abort();
    // A batch whose database hangs is left in the pipe: another worker takes it over.
    await Promise.all([within(this.runtime.timers, this.#pipe.stop(), STOP_MS_MAX), this.#likes?.stop()]);
    // The orders that we answered 202 are looked at once more: those that are decided by now need not be remembered.
    await within(this.runtime.timers, this.#queuedOrders.look(), OWED_MS_MAX);
    if (this.#queuedOrders.size > 0) {
      this.runtime.log.warn(
        { orders: this.#queuedOrders.size },
        'closing with queued orders: the pipe carries them on',
      );
    }
    this.#queuedOrders.close();
    await Promise.all([this.#locks.close(), this.#orderLocks.close()]);
    this.#decisions.close();
    void this.#pipe.close();
    this.#likes?.close();
    this.#gate.close();
    this.#keepAlive.close();
  }
}

interface PipeGround {
  readonly redis: RedisTarget;
  readonly prefix: string;
  readonly commandMs: number;
  readonly keepAlive: KeepAlive;
  readonly locks: Locks;
  readonly runtime: Runtime;
}

/** The pipe for one kind of message. `carrier`: the broker of this kind; null: the process reads the streams, or carries nothing. */
function sharedPipe<M>(channels: Channels<M>, carrier: Carrier | null, on: PipeGround): SharedPipe<M> {
  const { redis, prefix, commandMs, keepAlive, locks, runtime } = on;
  const common = { channels, redis, prefix, commandMs, keepAlive };
  if (carrier === null) return new RedisStreamsPipe(common, runtime);
  // A short lease: two that lead only make duplicates, and a dead one is missed soon.
  const lead: Lead = (job, work) => locks.leader(job, ({ signal }) => work(signal), { lease: RELAY_LEASE_MS });
  return new BrokerPipe({ ...common, carrier, lead }, runtime);
}
