import { Anchor } from '../base/anchor.ts';
import { BusyError, messageOf, RetryableError, TerminalError, unavailable } from '../base/errors.ts';
import { idTimeMs } from '../base/ids.ts';
import type { RedisTarget } from '../base/redis/address.ts';
import type { Runtime } from '../base/runtime.ts';
import { oneAtATime, sleep, within } from '../base/timers.ts';
import { RedisGate } from '../gate/redis/gate.ts';
import type { Ledger, StoredOrder } from '../ledger/port.ts';
import { StreamWriter } from '../ledger/stream-writer.ts';
import { createLocks, type Locks } from '../locks/locks.ts';
import { hasGivenBack, type OrderMessage, type OrderRecord } from '../model/order.ts';
import type { SaleRecord } from '../model/sale.ts';
import { queuedOrder } from '../orders/acks.ts';
import { Owed } from '../orders/owed.ts';
import { OrderWire } from '../orders/redis/wire.ts';
import { BrokerPipe } from '../pipe/brokers/pipe.ts';
import type { Carrier } from '../pipe/brokers/port.ts';
import type { DeadLetters, SharedPipe, Undeliverable } from '../pipe/port.ts';
import { RedisStreamsPipe } from '../pipe/redis-streams/pipe.ts';
import { Keeper } from './keeper.ts';
import { presentOrder } from './present.ts';
import { Rebuilder } from './rebuild.ts';
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
  /**
   * `buyer`: a batch is written under its buyers' locks (docs/concepts/sources.md, 000). Not needed, and tested to be not
   * needed.
   */
  readonly writerLock: 'off' | 'buyer';
  readonly life?: LifeOptions;
  /** How long one command to Redis may take. */
  readonly commandMs?: number;
}

/** While the ledger is out orders go on as long as there are ids: a block lasts for as many orders as wait in a pipe. */
const ORDER_ID_BLOCK = 100_000;
const COMMAND_MS = 1000;
const REBUILD_DRAIN_MS = 60_000;
const LOCKED_MAX = 100;
const INSTALL_MS_MAX = 5000;
const KEEPER_MS_MAX = 2000;
const STOP_MS_MAX = 5000;
const BROKER_MS_MAX = 5000;
const RELAY_LEASE_MS = 3000;
const ORDER_LOCK_OUTAGE_MS = 500;
const LOOK_EVERY_MS = 500;
const LOOK_MS_MAX = 1000;
const PROBE_EVERY_MS = 2000;
const CLAIM_EVERY_MS = 1000;

/**
 * One process of a shop that many share: Redis has the gate and the pipe, a database the ledger.
 *
 *     place ──▶ gate ═══▶ pipe ──▶ (a worker, here or elsewhere) writer ──▶ ledger
 *                 ▲                                   │ commit, then gate, then acknowledge
 *                 └──────────── settle ───────────────┴──▶ wire ──▶ acks ──▶ the answer
 */
export class DistributedShop extends Shop {
  readonly #gate: RedisGate;
  readonly #pipe: SharedPipe;
  readonly #locks: Locks;
  readonly #orderLocks: Locks;
  readonly #wire: OrderWire;
  readonly #owed: Owed;
  readonly #rebuilder: Rebuilder;
  readonly #writer: StreamWriter;
  readonly #keeper: Keeper | null;
  readonly #anchor: Anchor;
  readonly #process: string;
  readonly #options: DistributedOptions;
  readonly #stopTimers: (() => void)[] = [];
  #ledgerOut: string | null = null;
  /** Whose the prefix in Redis is: nothing is sold or carried before it is known to be ours. */
  #prefix: 'ours' | { readonly reason: string; readonly taken: boolean } = {
    reason: 'Redis was not asked yet',
    taken: false,
  };

  /**
   * Needs a ledger whose schema is up to date, and a prefix that no other ledger has. Redis need not be there yet: until then
   * orders get `unavailable`.
   */
  static async open(ledger: Ledger, options: DistributedOptions, runtime: Runtime): Promise<DistributedShop> {
    const shop = new DistributedShop(ledger, options, runtime);
    try {
      await shop.#askPrefix();
      await shop.webhooks.open();
      await shop.#wire.listen();
      // So that it can take orders also when the ledger goes out before the first.
      await shop.prefetchIds();
      await shop.#openBroker();
    } catch (error) {
      await shop.close();
      throw error;
    }
    if (shop.#prefix === 'ours') shop.#begin();
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
    const anchor = new Anchor(runtime.timers);
    const common = {
      target: options.redis,
      prefix: options.prefix,
      process,
      commandMs: options.commandMs ?? COMMAND_MS,
      anchor,
    };
    const gate = new RedisGate({ ...common, shopId: ledger.shopId, pipeMax: options.pipeMax }, runtime);
    const locks = createLocks({
      redis: options.redis,
      prefix: `${options.prefix}:lock`,
      log: runtime.log,
      runtime,
    });
    const { carrier = null, worker } = options;
    const pipe =
      carrier !== null && worker
        ? new BrokerPipe(
            {
              ...common,
              redis: options.redis,
              carrier,
              // A short lease: two that lead only make duplicates, and a dead one is missed soon.
              lead: (job, work) => locks.leader(job, ({ signal }) => work(signal), { lease: RELAY_LEASE_MS }),
            },
            runtime,
          )
        : new RedisStreamsPipe({ ...common, redis: options.redis }, runtime);
    // An order's lock saves calls; where it cannot be had soon, one goes on without.
    const orderLocks = createLocks({
      redis: options.redis,
      prefix: `${options.prefix}:lock`,
      log: runtime.log,
      runtime,
      outageMs: ORDER_LOCK_OUTAGE_MS,
    });
    super(
      {
        ledger,
        gate,
        locks: orderLocks,
        life: options.life ?? NO_PAYMENTS,
        patience: { answerWithinMs: options.answerWithinMs, queued: (message) => this.#remember(message) },
        orderIdBlock: ORDER_ID_BLOCK,
        metrics: {
          pipeDepth: () => pipe.counters.depth,
          ledgerBacklog: () => ledger.backlog,
          unresolved: () => 0,
          owed: () => this.#owed.size,
          deadLetters: () => pipe.counters.letters,
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
    this.#process = process;
    this.#anchor = anchor;
    this.#gate = gate;
    this.#pipe = pipe;
    this.#locks = locks;
    this.#orderLocks = orderLocks;
    this.#wire = new OrderWire(common, runtime, (orderId, decision) => this.acks.heard(orderId, decision));
    this.#rebuilder = new Rebuilder({
      runtime,
      gate,
      pipe,
      ledger,
      locks: this.#locks,
      drainMsMax: options.rebuildDrainMs ?? REBUILD_DRAIN_MS,
      rebuilding: () => this.rebuilding(),
      rebuilt: (_, pauseMs) => this.metrics.rebuilt(pauseMs),
      inPlace: (snapshot) => this.releaseSince(snapshot),
    });
    this.#owed = new Owed({
      runtime,
      gate,
      ledger,
      rebuild: (saleId, above) => void this.#rebuilder.rebuild(saleId, above),
      // What a worker has decided, that worker has announced.
      ended: (order, here) => {
        if (!here) return this.tellWatchers(presentOrder(order));
        this.metrics.lostToRebuild();
        this.announce('order.rejected', order);
      },
    });
    this.#writer = new StreamWriter(ledger, runtime, {
      decided: (stored, messages) => this.#decided(stored, messages),
      committed: (orders, durationMs) => this.metrics.commit(orders, durationMs),
    });
    this.#keeper = options.worker
      ? new Keeper({ runtime, gate, ledger, locks: this.#locks, rebuilder: this.#rebuilder })
      : null;
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

  /** One that is out is waited for while orders are taken; one that is not what we need ends the start. */
  async #openBroker(): Promise<void> {
    if (this.#pipe instanceof BrokerPipe) await this.#within(BROKER_MS_MAX, this.#pipe.open());
  }

  /** A Redis that is out is asked again. */
  async #askPrefix(): Promise<void> {
    try {
      await this.#gate.claim();
      this.#prefix = 'ours';
    } catch (error) {
      if (error instanceof TerminalError) throw error;
      if (this.#prefix !== 'ours') this.#prefix = { reason: messageOf(error), taken: false };
    }
  }

  /**
   * Once a second: Redis may have been out at the start, have forgotten everything, or be another one by now. Whoever finds
   * that another shop has the prefix leaves everything there alone.
   */
  async #keepPrefix(): Promise<void> {
    const before = this.#prefix;
    if (this.closing || (before !== 'ours' && before.taken)) return;
    try {
      await this.#askPrefix();
    } catch (error) {
      this.#prefix = { reason: messageOf(error), taken: true };
      this.runtime.log.fatal(
        { reason: messageOf(error) },
        'this process sells and carries nothing until it is started again',
      );
      await Promise.all([this.#keeper?.stop(), this.#pipe.stop()]);
      return;
    }
    if (before !== 'ours' && this.#prefix === 'ours' && !this.closing) this.#begin();
  }

  #begin(): void {
    if (this.#options.worker) this.#work();
    else this.#pipe.observe();
  }

  #work(): void {
    const { writerLock } = this.#options;
    this.#pipe.consume(
      writerLock === 'buyer' ? (batch) => this.#writeLocked(batch) : (batch) => this.#writer.write(batch),
      () => this.ledger.probe(),
    );
    this.#keeper?.start();
    this.sweeper.start(this.#locks);
    this.webhooks.start(this.#locks);
  }

  /** Nobody else writes orders of these buyers meanwhile (docs/concepts/sources.md, 000). The ledger holds without it. */
  async #writeLocked(batch: OrderMessage[]): Promise<readonly Undeliverable[]> {
    const undeliverable: Undeliverable[] = [];
    // A multi-lock takes so many at once.
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

  override get deadLetters(): DeadLetters {
    return this.#pipe.letters;
  }

  get locks(): Locks {
    return this.#locks;
  }

  /**
   * With the ledger out orders are still taken (202): that is no reason to send the crowd elsewhere. Neither is a full Redis,
   * which all processes share: what needs no room goes on.
   */
  override readiness(): Readiness {
    const rebuilding = this.#rebuilder.size;
    const prefix = this.#notOurs();
    const gate =
      prefix ??
      this.#gate.reason ??
      this.#gate.full ??
      (rebuilding === 0 ? 'ok' : `being rebuilt for ${rebuilding} sale(s)`);
    const pipe = this.closingReason ?? this.#pipe.reason ?? 'ok';
    const ledger = this.#ledgerOut ?? this.#writer.reason ?? 'ok';
    const ok = prefix === null && this.#gate.reason === null && this.closingReason === null;
    return { status: ok ? 'ok' : 'unavailable', parts: { gate, pipe, ledger } };
  }

  #notOurs(): string | null {
    return this.#prefix === 'ours' ? null : this.#prefix.reason;
  }

  protected override cannotPlace(): string | null {
    return this.#notOurs();
  }

  protected override cannotChange(): string | null {
    return this.#prefix !== 'ours' && this.#prefix.taken ? this.#prefix.reason : null;
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

  /** Who makes a sale waits for its gate, but not for a Redis that is out: then it is built when that is back. */
  protected override async install(saleId: string): Promise<void> {
    const built = this.#rebuilder.rebuild(saleId).then(() => true);
    const late = sleep(this.runtime.timers, INSTALL_MS_MAX).then(() => false);
    if (!(await Promise.race([built, late]))) throw unavailable('it is stored, and its gate is not open yet');
  }

  protected override rebuild(saleId: string): void {
    void this.#rebuilder.rebuild(saleId);
  }

  /** Where it is not noted, the rebuilder sees to it: that is quick where nothing is in the pipe. */
  protected override async isEmptied({ id, items }: SaleRecord): Promise<boolean> {
    const isNoted = async (): Promise<boolean> => {
      const emptied = await this.#gate.emptiedAt(id);
      return emptied !== null && items.every(({ epoch }) => epoch <= emptied);
    };
    if (await isNoted()) return true;
    await within(this.runtime.timers, this.#rebuilder.rebuild(id), this.#options.answerWithinMs);
    return await isNoted();
  }

  /** Its gate says so already; whoever leads takes it away when nothing of it is in the pipe. */
  protected override async saleClosed(): Promise<void> {}

  // Orders that wait for the ledger

  async #remember(message: OrderMessage): Promise<void> {
    this.#owed.add(message);
    await this.#wire.writeTicket(message.orderId, message.saleId, message.buyer);
  }

  protected override async storedOrder(orderId: string): Promise<OrderRecord | null> {
    const asked = this.ledger.getOrder(orderId).then((order) => ({ order }));
    const answer = await within(this.runtime.timers, asked, LOOK_MS_MAX);
    if (answer === null) throw unavailable('the ledger does not answer');
    return answer.order;
  }

  protected override async queuedOrder(orderId: string, ledgerOut: boolean): Promise<OrderRecord | null> {
    const owed = this.#owed.get(orderId);
    const ticket = owed ?? (await this.#wire.readTicket(orderId));
    if (ticket === null) return null;
    const { saleId, buyer } = ticket;
    // The hold first, then the ledger, and the ledger wins: the other way round it could be decided in between.
    const held = await this.#gate.holdOf(saleId, { orderId, buyer });
    const stored = ledgerOut ? null : await this.storedOrder(orderId);
    if (stored !== null) return stored;
    if (held?.queued) return queuedOrder({ ...held, orderId, saleId, buyer }, idTimeMs(orderId));
    if (held !== null) throw unavailable('it is decided, and the ledger cannot be read now');
    // Its gate may be gone; as long as we remember it, it is not decided. Another process cannot show it, but knows of it.
    if (owed === null) throw unavailable('the order is being decided');
    return queuedOrder(owed, idTimeMs(orderId));
  }

  /** Sales that somebody watches here may be changed elsewhere. */
  async #lookAtSales(): Promise<void> {
    try {
      await this.board.poll();
    } catch (error) {
      this.runtime.log.debug({ err: error }, 'watched sales cannot be read');
    }
  }

  /** Orders that somebody watches here may be decided elsewhere. */
  async #look(): Promise<void> {
    const ids = this.watchedOrders;
    if (ids.length === 0) return;
    try {
      for (const order of (await this.ledger.storedAmong(ids)).values()) this.tellWatchers(presentOrder(order));
    } catch (error) {
      this.runtime.log.debug({ err: error }, 'watched orders cannot be read');
    }
  }

  // What follows from the ledger's decisions: commit, then gate, then acknowledge

  async #decided(stored: readonly StoredOrder[], messages: readonly OrderMessage[]): Promise<void> {
    const reserved = new Map<string, OrderMessage[]>();
    const ended: OrderRecord[] = [];
    const waiting = new Map<string, OrderRecord[]>();
    const refused = new Map<string, number>();
    const reasons = new Map<string, string[]>();
    for (const [at, { order, inserted }] of stored.entries()) {
      const message = messages[at]!;
      if (order.status === 'rejected') {
        refused.set(order.saleId, Math.max(message.epoch, refused.get(order.saleId) ?? 0));
        if (inserted) this.#refused(order);
        if (inserted) gather(reasons, order.reason!, order.id);
      } else if (hasGivenBack(order.status)) {
        ended.push(order);
      } else {
        gather(reserved, order.saleId, message);
        if (inserted) this.announce('order.reserved', order);
      }
      if (message.from === this.#process) this.acks.decided(order);
      else if (message.from !== undefined) gather(waiting, message.from, order);
    }
    for (const [saleId, holds] of reserved) await this.#gate.settle(saleId, holds);
    // An ended order holds nothing. A copy of its admission that Redis executed late has made a hold for it again: settled,
    // that would stand for ever (P4). Where there is none, releasing does nothing.
    await Promise.all(ended.map(({ id, saleId, buyer }) => this.#gate.release(saleId, { orderId: id, buyer })));
    // Units of an order that a backstop refused do not go back to free: the gate's count is what was wrong. It is shut
    // before the message is acknowledged: should this process die, others find it so and rebuild it. A gate of a higher
    // epoch than the message's is not the one that admitted it.
    for (const [saleId, epoch] of refused) await this.#gate.shut(saleId, epoch);
    for (const [saleId, epoch] of refused) void this.#rebuilder.rebuild(saleId, epoch);
    for (const [process, orders] of waiting) void this.#wire.tell(process, orders);
    for (const saleId of reserved.keys()) this.board.touch(saleId);
    for (const { saleId } of ended) this.board.touch(saleId);
    for (const [reason, ids] of reasons) {
      const level = reason === 'gate_rebuilt' ? 'warn' : 'error';
      const some = { reason, orders: ids.length, first: ids.slice(0, 3) };
      this.runtime.log[level](some, 'the ledger refused what a gate had admitted');
    }
  }

  #refused(order: OrderRecord): void {
    this.metrics.backstop(order.reason!);
    this.announce('order.rejected', order);
  }

  protected override async finish(): Promise<void> {
    for (const stop of this.#stopTimers) stop();
    this.#rebuilder.close();
    // With Redis out the keeper's lock cannot be given back: its lease ends by itself.
    const kept = this.#within(KEEPER_MS_MAX, this.#keeper?.stop());
    // A batch whose database hangs is left in the pipe: another worker takes it over.
    await Promise.all([kept, this.#within(STOP_MS_MAX, this.#pipe.stop())]);
    // Who was answered 202 by us is looked after once more: what is decided by now need not be remembered.
    await this.#within(KEEPER_MS_MAX, this.#owed.look());
    if (this.#owed.size > 0) {
      this.runtime.log.warn(
        { orders: this.#owed.size },
        'closing with orders that are queued: the pipe brings them on',
      );
    }
    this.#owed.close();
    await Promise.all([this.#locks.close(), this.#orderLocks.close()]);
    this.#wire.close();
    void this.#pipe.close();
    this.#gate.close();
    this.#anchor.close();
  }

  async #within(ms: number, work: Promise<unknown> | undefined): Promise<void> {
    if (work) await within(this.runtime.timers, work, ms);
  }
}

function gather<V>(map: Map<string, V[]>, key: string, value: V): void {
  const values = map.get(key);
  if (values) values.push(value);
  else map.set(key, [value]);
}
