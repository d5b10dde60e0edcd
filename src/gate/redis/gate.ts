import { TerminalError, unavailable } from '../../base/errors.ts';
import { KeepAlive } from '../../base/keep-alive.ts';
import type { RedisTarget } from '../../base/redis/address.ts';
import { type EpochKeys, keyName, Layout, type SaleKeys } from '../../base/redis/layout.ts';
import { RedisLink } from '../../base/redis/link.ts';
import type { Runtime } from '../../base/runtime.ts';
import { each } from '../../base/sweep.ts';
import { SHARED, SHARED_OF_SEATS } from '../../model/formats.ts';
import type { SaleSnapshot, SaleValues } from '../../model/snapshot.ts';
import {
  type AdmitRequest,
  applyLatest,
  type BlockedSeats,
  type BoundTo,
  type Held,
  type HoldRef,
  type HouseHold,
  houseHoldId,
  type ItemView,
  type Latest,
  type SeatRevision,
  type SeatsForHouse,
  type SeatsHeld,
  type SeatsMove,
  type SeatsSeen,
  type SharedGate,
  type Verdict,
} from '../port.ts';
import { Admissions } from './admissions.ts';
import { Breakers } from './breakers.ts';
import { COUNTED_ORDERS } from './counted-orders.ts';
import { Epochs } from './epochs.ts';
import { type FormatState, PrefixFormat } from './format.ts';
import { epochKeys, install, valueArgs } from './install.ts';
import { Room } from './room.ts';
import { scriptNamed } from './scripts.ts';
import { SEAT_ORDERS } from './seat-orders.ts';
import { dotted, rangesText, readSeats, seatsIn } from './seats.ts';

export interface RedisGateOptions {
  readonly target: RedisTarget;
  readonly prefix?: string;
  /** The shop whose ledger the gates belong to; left out: the prefix is not claimed. */
  readonly shopId?: string;
  /** The process that waits for its orders' decisions: `from` in their messages. Empty: none waits. */
  readonly process?: string;
  /** How long one command may take. */
  readonly commandMs?: number;
  /** For how long an admission whose reply was lost is sent again. */
  readonly retryMs?: number;
  /** How many orders of a sale may be on their way to the ledger. */
  readonly pipeMax?: number;
}

/** Orders of one call of settle: see BATCH_MAX in admissions.ts. */
const REFS_MAX = 256;
const SCAN_COUNT = 500;
/**
 * How long Redis keeps the note that a finished sale was emptied: far longer than a key is kept. If the note is gone, the ledger's
 * epoch is raised and the note is made again.
 */
const EMPTIED_SECONDS = 7 * 24 * 3600;
/** How often a call follows an epoch that changes under it. */
const TRIES_MAX = 8;

/**
 * The gate in Redis, shared by many processes. Every decision is one script on one server, by that server's clock; an
 * admission is in the sale's stream in the same step.
 *
 * It guarantees what the port says while Redis keeps its data. A Redis that lost data, was restarted or was promoted is *stale*:
 * it admits nothing until a gate with a higher epoch is installed. Holds in a lagging copy can still be settled and read.
 */
export class RedisGate implements SharedGate {
  readonly #runtime: Runtime;
  readonly #keepAlive: KeepAlive;
  readonly #link: RedisLink;
  readonly #layout: Layout;
  readonly #shopId: string | null;
  readonly #format: PrefixFormat;
  /** Why this process must not touch the keys under the prefix any more, or null. */
  #barred: TerminalError | null = null;
  readonly #epochs = new Epochs();
  readonly #breakers: Breakers;
  readonly #room: Room;
  readonly #admissions: Admissions;
  readonly #seatAdmissions: Admissions;

  constructor(options: RedisGateOptions, runtime: Runtime) {
    const {
      target,
      prefix = 'doorbuster',
      process = '',
      commandMs = 1000,
      retryMs = 1000,
      pipeMax = 100_000,
    } = options;
    this.#runtime = runtime;
    this.#keepAlive = new KeepAlive(runtime.timers);
    this.#layout = new Layout(prefix);
    this.#shopId = options.shopId ?? null;
    this.#link = new RedisLink(target, { commandMs }, runtime, this.#keepAlive, {
      message: () => undefined,
      interrupted: () => {
        if (this.#link.lost) this.#breakers.trip(null, 'the connection to Redis is lost');
      },
    });
    this.#format = new PrefixFormat(this.#link, this.#layout.format, SHARED, process || runtime.random.secret(8));
    const probe = (saleId: string | null): Promise<unknown> =>
      this.#link.script(scriptNamed('probe'), [this.#layout.probe(saleId)], []);
    this.#breakers = new Breakers(runtime, this.#link.cluster, probe, () => {
      this.#admissions.dropWaiting();
      this.#seatAdmissions.dropWaiting();
    });
    // A write without effect, which a full server refuses too.
    this.#room = new Room(runtime, (saleId) => {
      const key = this.#layout.probe(this.#link.cluster ? saleId : null);
      return this.#link.call('SETRANGE', [key, 0, '']);
    });
    const on = {
      link: this.#link,
      layout: this.#layout,
      runtime,
      breakers: this.#breakers,
      room: this.#room,
      epochs: this.#epochs,
      pipeMax,
      process,
      retryMs,
    };
    this.#admissions = new Admissions(on, COUNTED_ORDERS);
    this.#seatAdmissions = new Admissions(on, SEAT_ORDERS);
  }

  /** Why orders fail now (Redis does not answer), or null. */
  get reason(): string | null {
    return this.#breakers.reason;
  }

  /** Why orders are refused though Redis answers (it is full), or null. */
  get full(): string | null {
    return this.#room.reason;
  }

  /**
   * Takes the prefix for our shop, or finds that we have it: two ledgers behind one prefix would carry each other's orders
   * away. Fails for good if another shop has it, or if its keys have a format that this version does not read; from then on
   * this gate touches none of them. A Redis that has forgotten everything is taken again.
   */
  async claim(): Promise<void> {
    if (this.#shopId === null) return;
    try {
      // The format first: a prefix that has a shop and no format is of a version that knew no formats.
      await this.#format.join((await this.owner()) === null);
      this.#mustBeOurs(await this.#link.script(scriptNamed('claim'), [this.#layout.shop], [this.#shopId]));
    } catch (error) {
      if (error instanceof TerminalError) this.#barred = error;
      throw error;
    }
  }

  /** The shop that has the prefix, which is ours; null: none has it yet. Fails as `claim` does, and takes nothing. */
  async owner(): Promise<string | null> {
    const owner = (await this.#link.call('GET', [this.#layout.shop])) as string | null;
    if (owner !== null) this.#mustBeOurs(owner);
    return owner;
  }

  /** The format of the keys under the prefix. Fails as `claim` does, and takes nothing. */
  format(): Promise<FormatState> {
    return this.#format.look(this.#runtime.clock.now());
  }

  #mustBeOurs(owner: unknown): void {
    if (owner === this.#shopId) return;
    throw new TerminalError(
      'bad_config',
      `another shop (${owner}) has the Redis key ${this.#layout.shop}, this database is shop ${this.#shopId}: give each shop a REDIS_PREFIX or a Redis of its own; if that shop is gone for good, delete its keys`,
    );
  }

  /** The ledger has this epoch: a gate with a lower one is stale from now on. */
  knowsEpoch(saleId: string, epoch: number): void {
    this.#epochs.saw(saleId, epoch);
  }

  async install(snapshot: SaleSnapshot, latest?: () => Promise<Latest | null>): Promise<void> {
    const on = { link: this.#link, layout: this.#layout, runtime: this.#runtime };
    const { saleId, epoch } = snapshot;
    // Before the first key: Redis may have been emptied and taken by another shop since.
    await this.claim();
    if (snapshot.items.some(({ seats }) => seats !== undefined)) await this.#mayWriteSeats();
    const inForce = await install(on, snapshot, latest !== undefined);
    this.#epochs.saw(saleId, inForce);
    if (!latest || inForce !== epoch) return;
    // The gate is in place and still shut. `latest` includes every change committed before this read; a later one finds the gate.
    const now = await latest();
    if (now !== null) await applyLatest(this, saleId, now);
    await this.#run('unshut', [this.#layout.sale(saleId).gate], [epoch]);
  }

  /** A version before seats would sell a seated item as a counted one, and free units of an order without its seats. */
  async #mayWriteSeats(): Promise<void> {
    if (this.#shopId === null) return;
    if ((await this.#format.join(false, SHARED_OF_SEATS)) >= SHARED_OF_SEATS) return;
    throw unavailable(
      'seats cannot be sold while a process of a version before seats runs, and for half a minute after',
    );
  }

  async shut(saleId: string, upTo = Infinity): Promise<void> {
    const args = upTo === Infinity ? [] : [upTo];
    await this.#run('shut', [this.#layout.sale(saleId).gate], args);
  }

  async remove(saleId: string): Promise<void> {
    await this.#remove(saleId, 'whatever is left');
  }

  retire(saleId: string): Promise<'removed' | 'busy' | 'stale'> {
    return this.#remove(saleId, 'finished');
  }

  async #remove(saleId: string, condition: 'finished' | 'whatever is left'): Promise<'removed' | 'busy' | 'stale'> {
    const sale = this.#layout.sale(saleId);
    let epochs: string[] = [];
    for (let tries = 0; ; tries++) {
      if (tries === TRIES_MAX) throw unavailable(`sale ${saleId} is being rebuilt again and again`);
      const keys = epochs.map((each) => sale.of(each));
      const [what, ...more] = (await this.#run(
        'remove',
        [...[sale.gate, sale.epochs, sale.retry, sale.dead, sale.decided, sale.emptied], ...keys.flatMap(epochKeys)],
        [condition, EMPTIED_SECONDS, ...epochs],
      )) as string[];
      if (what === 'removed') break;
      if (what === 'busy' || what === 'stale') return what;
      epochs = more;
    }
    await this.#link.call('SREM', [this.#layout.sales, saleId]);
    return 'removed';
  }

  async emptiedAt(saleId: string): Promise<number | null> {
    this.#mustAnswer(saleId);
    const epoch = (await this.#link.call('GET', [this.#layout.sale(saleId).emptied])) as string | null;
    return epoch === null ? null : Number(epoch);
  }

  async setEmptied(saleId: string, epoch: number): Promise<void> {
    await this.#link.call('SET', [this.#layout.sale(saleId).emptied, epoch, 'EX', EMPTIED_SECONDS]);
  }

  admit(request: AdmitRequest): Promise<Verdict> {
    return (request.seats === undefined ? this.#admissions : this.#seatAdmissions).admit(request);
  }

  async keyOf(saleId: string, buyer: string, key: string): Promise<BoundTo | null> {
    this.#mustAnswer(saleId);
    const binding = await this.#inForce('key-of', saleId, (of) => [of.keys], [keyName(buyer, key)]);
    if (typeof binding !== 'string') return null;
    const [orderId, , ...fingerprint] = binding.split(' ');
    return { orderId: orderId!, fingerprint: fingerprint.join(' ') };
  }

  async settle(saleId: string, holds: readonly HoldRef[]): Promise<void> {
    const chunks: Promise<unknown>[] = [];
    for (let from = 0; from < holds.length; from += REFS_MAX) {
      const some = holds.slice(from, from + REFS_MAX);
      const ids = some.map(({ orderId }) => orderId);
      const buyers = some.map(({ buyer }) => buyer);
      chunks.push(this.#inForce('settle', saleId, (of) => [of.items, of.holds], [some.length, ...ids, ...buyers]));
    }
    await Promise.all(chunks);
  }

  release(saleId: string, hold: HoldRef): Promise<void> {
    return this.#end(saleId, hold, null);
  }

  withdraw(saleId: string, hold: HoldRef & { readonly key: string | null }): Promise<void> {
    return this.#end(saleId, hold, hold.key);
  }

  async #end(saleId: string, { orderId, buyer }: HoldRef, key: string | null): Promise<void> {
    const name = key === null ? '' : keyName(buyer, key);
    const keys = ({ items, holds, keys, seats, changes }: EpochKeys): string[] => [items, holds, keys, seats, changes];
    await this.#inForce('end', saleId, keys, [1, orderId, buyer, name]);
  }

  /** For reads that a caller waits for: fails at once while Redis is out. */
  #mustAnswer(saleId: string): void {
    const reason = this.#breakers.reasonOf(saleId);
    if (reason !== null) throw unavailable(reason);
  }

  async holdOf(saleId: string, { orderId, buyer }: HoldRef): Promise<Held | null> {
    this.#mustAnswer(saleId);
    const found = await this.#inForce('hold-of', saleId, (of) => [of.items, of.holds], [orderId, buyer]);
    if (!found) return null;
    const [state, taken, epoch, text, seats] = found as [string, string, string, string, string];
    const slots = taken.split('.').map(Number);
    const held = { queued: state === 'q', ...itemOf(text), quantity: slots.length, slots, epoch: Number(epoch) };
    return seats === '' ? held : { ...held, seats: seatsIn(seats) };
  }

  async epochOf(saleId: string): Promise<number | null> {
    const sale = this.#layout.sale(saleId);
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const known = this.#epochs.of(saleId);
      const { items, stream, seats } = sale.of(known);
      const epoch = (await this.#run('epoch-of', [sale.gate, items, stream, seats], [known])) as number;
      if (epoch === 0 || epoch < known) return null;
      if (epoch === known) return epoch;
      // Ask again with the key names of this epoch, to see whether its keys exist too.
      this.#epochs.saw(saleId, epoch);
    }
    throw unavailable(`the gate of sale ${saleId} is being rebuilt again and again`);
  }

  async applySale(saleId: string, values: SaleValues): Promise<void> {
    await this.#run('apply-sale', [this.#layout.sale(saleId).gate], valueArgs(values));
  }

  async applyTotal(saleId: string, itemId: string, total: number, rev: number): Promise<void> {
    await this.#inForce('apply-total', saleId, (of) => [of.items], [itemId, total, rev]);
  }

  async holdForHouse(saleId: string, itemId: string, units: number, holdId: string): Promise<boolean> {
    const said = await this.#inForce('house-hold', saleId, (of) => [of.items, of.house], [itemId, units, holdId]);
    return said === 'held';
  }

  async dropHouseHold(
    saleId: string,
    itemId: string,
    holdId: string,
    lowered?: { total: number; rev: number },
  ): Promise<void> {
    const { total, rev } = lowered ?? { total: '', rev: '' };
    const keys = ({ items, house, seats, changes }: EpochKeys): string[] => [items, house, seats, changes];
    await this.#inForce('house-drop', saleId, keys, [itemId, holdId, total, rev]);
  }

  async paid(saleId: string, orders: readonly HoldRef[]): Promise<void> {
    const keys = ({ items, holds, seats, changes }: EpochKeys): string[] => [items, holds, seats, changes];
    for (let from = 0; from < orders.length; from += REFS_MAX) {
      const some = orders.slice(from, from + REFS_MAX);
      const refs = [...some.map(({ orderId }) => orderId), ...some.map(({ buyer }) => buyer)];
      await this.#inForce('paid', saleId, keys, [some.length, ...refs]);
    }
  }

  async holdSeats(
    saleId: string,
    itemId: string,
    seats: readonly number[],
    { holdId, order, blocked }: SeatsForHouse,
  ): Promise<SeatsHeld> {
    const args = [itemId, holdId, dotted(seats), order?.orderId ?? '', order?.buyer ?? '', blocked ? 1 : 0];
    const said = (await this.#inForce('house-seats', saleId, houseKeys, args)) as [string, string?] | null;
    const [what, taken] = said ?? ['stale'];
    return what === 'taken' ? { outcome: 'seat_taken', seats: seatsIn(taken!) } : { outcome: what as 'held' | 'stale' };
  }

  async applyBlocked(saleId: string, { itemId, rev, seats: blocked }: BlockedSeats, holdId = ''): Promise<void> {
    const keys = ({ items, house, seats, changes }: EpochKeys): string[] => [items, house, seats, changes];
    await this.#inForce('apply-blocked', saleId, keys, [itemId, rev, rangesText(blocked), holdId]);
  }

  async moveSeats(saleId: string, { itemId, orderId, buyer, to, rev, auditId }: SeatsMove): Promise<void> {
    const args = [itemId, orderId, buyer, dotted(to), rev, houseHoldId(auditId)];
    await this.#inForce('move-seats', saleId, houseKeys, args);
  }

  async seats(saleId: string, since?: SeatRevision): Promise<SeatsSeen | null> {
    this.#mustAnswer(saleId);
    const args = since === undefined ? ['', ''] : [since.epoch, since.n];
    const keys = ({ items, seats, changes }: EpochKeys): string[] => [items, seats, changes];
    const reply = (await this.#inForce('seats', saleId, keys, args)) as [epoch: string, ...rest: string[]] | null;
    return reply && readSeats(Number(reply[0]), reply.slice(1));
  }

  async view(saleId: string): Promise<ItemView[] | null> {
    this.#mustAnswer(saleId);
    const flat = (await this.#inForce('view', saleId, (of) => [of.items], [])) as string[] | null;
    if (flat === null) return null;
    const fields = new Map<string, string>();
    for (let at = 0; at < flat.length; at += 2) fields.set(flat[at]!, flat[at + 1]!);
    return Array.from({ length: Number(fields.get('n') ?? 0) }, (_, at) => viewOf(fields, at + 1));
  }

  /** Ids of the sales that have keys. */
  async saleIds(): Promise<string[]> {
    return (await this.#link.call('SMEMBERS', [this.#layout.sales])) as string[];
  }

  async enlist(saleIds: readonly string[]): Promise<void> {
    for (let from = 0; from < saleIds.length; from += SCAN_COUNT) {
      await this.#link.call('SADD', [this.#layout.sales, ...saleIds.slice(from, from + SCAN_COUNT)]);
    }
  }

  async houseHolds(saleId: string): Promise<HouseHold[]> {
    const found = (await this.#inForce('house-list', saleId, (of) => [of.items, of.house], [])) as string[] | null;
    return (found ?? []).map((line) => {
      const [holdId, itemId, ageMs] = line.split('\n') as [string, string, string];
      return { holdId, itemId, ageMs: Number(ageMs) };
    });
  }

  pruneKeys(olderMs: number): Promise<void> {
    return this.pruneKeysBefore((nowMs) => nowMs - olderMs);
  }

  /** `instant` gets the time of the sale's own server. */
  async pruneKeysBefore(instant: (nowMs: number) => number): Promise<void> {
    // One sale at a time: scanning takes Redis' time.
    await each(await this.saleIds(), 1, (saleId) => this.#pruneSale(saleId, instant));
  }

  async #pruneSale(saleId: string, instant: (nowMs: number) => number): Promise<void> {
    const sale = this.#layout.sale(saleId);
    const begun = (await this.#run('prune-begin', [sale.gate], [])) as [string, string] | null;
    if (begun === null) return;
    const [epoch, nowMs] = begun;
    const beforeMs = instant(Number(nowMs));
    const { holds, keys } = sale.of(epoch);
    let cursor = '0';
    do {
      const scan = ['HSCAN', [keys, cursor, 'COUNT', SCAN_COUNT]] as const;
      const [next, flat] = (await this.#link.call(...scan)) as [string, string[]];
      cursor = next;
      const old: string[] = [];
      for (let at = 0; at < flat.length; at += 2) {
        if (Number(flat[at + 1]!.split(' ', 2)[1]) < beforeMs) old.push(flat[at]!, flat[at + 1]!);
      }
      for (let from = 0; from < old.length; from += 2 * REFS_MAX) {
        const some = old.slice(from, from + 2 * REFS_MAX);
        const said = await this.#run('prune-keys', [sale.gate, holds, keys], [epoch, ...some]);
        // The gate was rebuilt meanwhile, from a ledger that no longer has these keys either.
        if (typeof said === 'number') return;
      }
    } while (cursor !== '0');
  }

  /** Runs a script on the keys of a sale, unless they are not ours to touch any more. */
  #run(name: string, keys: readonly string[], args: readonly (string | number)[]): Promise<unknown> {
    if (this.#barred !== null) throw unavailable(this.#barred.message);
    return this.#link.script(scriptNamed(name), keys, args);
  }

  /** Runs a script on the epoch in force, whichever that is. Null: there is no gate. */
  async #inForce(
    script: string,
    saleId: string,
    keys: (of: EpochKeys) => string[],
    args: readonly (string | number)[],
  ): Promise<unknown> {
    const sale: SaleKeys = this.#layout.sale(saleId);
    let epoch = this.#epochs.of(saleId);
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const reply = await this.#run(script, [sale.gate, ...keys(sale.of(epoch))], [epoch, ...args]);
      if (typeof reply !== 'number') return reply;
      if (reply === 0) return null;
      epoch = reply;
      this.#epochs.saw(saleId, epoch);
    }
    throw unavailable(`the gate of sale ${saleId} is being rebuilt again and again`);
  }

  close(): void {
    this.#breakers.close();
    this.#room.close();
    this.#admissions.close();
    this.#seatAdmissions.close();
    this.#link.close();
    this.#keepAlive.close();
  }
}

function houseKeys({ items, holds, house, seats, changes }: EpochKeys): string[] {
  return [items, holds, house, seats, changes];
}

/** `<item id> <amount> <currency> <code>`; a code may contain blanks. */
function itemOf(text: string): Pick<Held, 'itemId' | 'itemCode' | 'price'> {
  const [itemId, amount, currency, ...code] = text.split(' ');
  return { itemId: itemId!, itemCode: code.join(' '), price: { amount: Number(amount), currency: currency! } };
}

function viewOf(fields: ReadonlyMap<string, string>, number: number): ItemView {
  const count = (name: string): number => Number(fields.get(`${name}:${number}`));
  const { itemId, itemCode } = itemOf(fields.get(`s:${number}`)!);
  const [total, blocked, held, queued, house] = ['t', 'b', 'h', 'q', 'o'].map(count) as [
    number,
    number,
    number,
    number,
    number,
  ];
  return {
    itemId,
    code: itemCode,
    total,
    free: total - blocked - held - house,
    queued,
    held: held - queued,
    house,
    blocked,
    rev: count('r'),
  };
}
