import { invariant, TerminalError } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import { turn } from '../base/sweep.ts';
import { takeSlots } from '../model/limit.ts';
import type { OrderMessage } from '../model/order.ts';
import { windowRefusal } from '../model/sale.ts';
import { type SaleSnapshot, type SaleValues, saleValues } from '../model/snapshot.ts';
import { BoundKeys } from './bound-keys.ts';
import { LargeMap } from './large-map.ts';
import {
  addHold,
  addPage,
  chosenSeats,
  dropHold,
  freeUnits,
  type GateItem,
  type GateSale,
  type Hold,
  isKnown,
  keyName,
  leaveHouse,
  logSeats,
  messageOf,
  ordersOf,
  type Sitting,
  SOLD_OUT,
  seatingOf,
  slotsOf,
  unitsOf,
} from './memory-sale.ts';
import {
  type AdmitRequest,
  applyLatest,
  type BlockedSeats,
  type BoundTo,
  type Held,
  type HoldRef,
  houseHoldId,
  type ItemView,
  isSound,
  type KeptGate,
  type Latest,
  type SeatRevision,
  type SeatsForHouse,
  type SeatsHeld,
  type SeatsMove,
  type SeatsSeen,
  type Verdict,
} from './port.ts';
import { SeatLog } from './seat-log.ts';

const PRUNED_A_TURN = 2000;

const UNKNOWN: Verdict = { outcome: 'not_found' };
const KEY_REUSED: Verdict = { outcome: 'idempotency_key_reused' };
const STALE: Verdict = { outcome: 'stale' };

/**
 * The in-process gate: a product, not a mock, and the reference the Redis gate is compared with. Each method runs to
 * its end within one turn of the event loop, which makes it atomic; it is asynchronous only because the port is.
 * There is no cached "sold out": free units are computed from what is held, so a restock or a release is seen at once.
 */
export class MemoryGate implements KeptGate {
  readonly #runtime: Runtime;
  readonly #emit: (message: OrderMessage) => void;
  readonly #sales = new Map<string, GateSale>();

  /** `emit` puts an admitted order into the pipe; it is called inside the admission. */
  constructor(runtime: Runtime, emit: (message: OrderMessage) => void) {
    this.#runtime = runtime;
    this.#emit = emit;
  }

  async install(snapshot: SaleSnapshot, latest?: () => Promise<Latest | null>): Promise<void> {
    if (this.#isAtLeast(snapshot)) return;
    const sale: GateSale = {
      values: saleValues(snapshot),
      epoch: snapshot.epoch,
      shut: false,
      itemsByCode: new Map(),
      itemsById: new Map(),
      holds: new LargeMap(),
      buyers: new LargeMap(),
      keys: new BoundKeys(),
      log: snapshot.items.some(({ seats }) => seats !== undefined) ? new SeatLog() : null,
    };
    for (const { id, code, price, total, blocked, rev, seats, onSale = true } of snapshot.items) {
      const item: GateItem = {
        id,
        code,
        price,
        onSale,
        total,
        blocked,
        rev,
        heldUnits: 0,
        queuedUnits: 0,
        house: new Map(),
        houseUnits: 0,
        seating: seats === undefined ? null : seatingOf(seats, rev),
      };
      sale.itemsByCode.set(code, item);
      sale.itemsById.set(id, item);
    }
    for await (const page of snapshot.content) addPage(sale, snapshot.saleId, page);
    // What stood there before is no change.
    for (const { seating } of sale.itemsById.values()) seating?.hall.changes();

    // Another install may have finished while the snapshot was read.
    if (this.#isAtLeast(snapshot)) return;
    const inForce = this.#sales.get(snapshot.saleId);
    // Values and totals that arrived while the snapshot was read may be newer than it: those stay.
    if (inForce && inForce.values.version > snapshot.version) sale.values = inForce.values;
    for (const item of sale.itemsById.values()) {
      const before = inForce?.itemsById.get(item.id);
      if (before && before.rev > item.rev) Object.assign(item, { total: before.total, rev: before.rev });
    }
    this.#sales.set(snapshot.saleId, sale);
    if (latest === undefined) return;
    // The gate is in place and still shut. `latest` includes every change committed before this read; a later one finds the gate.
    sale.shut = true;
    const now = await latest();
    if (this.#sales.get(snapshot.saleId) !== sale) return;
    if (now !== null) await applyLatest(this, snapshot.saleId, now);
    sale.shut = false;
  }

  /** Whether the gate in force is at least as new as the snapshot. */
  #isAtLeast({ saleId, epoch }: SaleSnapshot): boolean {
    const inForce = this.#sales.get(saleId);
    return inForce !== undefined && inForce.epoch >= epoch;
  }

  async shut(saleId: string, upTo = Infinity): Promise<void> {
    const sale = this.#sales.get(saleId);
    if (sale && sale.epoch <= upTo) sale.shut = true;
  }

  async remove(saleId: string): Promise<void> {
    this.#sales.delete(saleId);
  }

  async saleIds(): Promise<string[]> {
    return [...this.#sales.keys()];
  }

  async retire(saleId: string): Promise<'removed' | 'busy'> {
    const sale = this.#sales.get(saleId);
    if (sale === undefined) return 'removed';
    if (windowRefusal(sale.values, this.#runtime.clock.now()) !== 'sale_closed') return 'busy';
    for (const { queuedUnits } of sale.itemsById.values()) if (queuedUnits > 0) return 'busy';
    this.#sales.delete(saleId);
    return 'removed';
  }

  async admit(request: AdmitRequest): Promise<Verdict> {
    if (!isSound(request)) throw new TerminalError('internal', 'an order for nothing');
    return this.#decide(request);
  }

  #decide(request: AdmitRequest): Verdict {
    const { saleId, orderId, itemCode, buyer, quantity, key } = request;
    const sale = this.#sales.get(saleId);
    if (sale === undefined || sale.shut) return STALE;
    const item = sale.itemsByCode.get(itemCode);
    if (item === undefined || !isKnown(item, request)) return UNKNOWN;

    const known = sale.holds.get(orderId);
    if (known !== undefined) return { outcome: 'admitted', message: messageOf(sale, known, request) };

    const nowMs = this.#runtime.clock.now();
    const name = key === null ? null : keyName(buyer, key);
    if (name !== null) {
      const bound = sale.keys.get(name);
      if (bound !== undefined) {
        return bound.fingerprint === request.fingerprint ? { outcome: 'replayed', orderId: bound.orderId } : KEY_REUSED;
      }
    }

    const closedBy = windowRefusal(sale.values, nowMs);
    if (closedBy !== null) {
      return { outcome: closedBy, opensAtMs: sale.values.opensAtMs, closesAtMs: sale.values.closesAtMs };
    }

    const mine = sale.buyers.get(buyer);
    const slots = mine === undefined && quantity === 1 ? ONE : takeSlots(slotsOf(mine), quantity, sale.values.perBuyer);
    if (slots === null) {
      return { outcome: 'limit_reached', orderIds: ordersOf(mine), perBuyer: sale.values.perBuyer };
    }

    let sitting: Sitting | null = null;
    if (item.seating !== null) {
      const seats = chosenSeats(item, item.seating.hall, request);
      if ('outcome' in seats) return seats;
      sitting = { seats, movedRev: 0 };
    } else if (freeUnits(item) < quantity) return SOLD_OUT;

    const hold: Hold = { orderId, item, buyer, slots: slots.length === 1 ? slots[0]! : slots, sitting, queued: true };
    addHold(sale, hold);
    logSeats(sale, item);
    item.queuedUnits += quantity;
    if (name !== null) sale.keys.bind(name, orderId, request.fingerprint, nowMs);
    const message = messageOf(sale, hold, request);
    this.#emit(message);
    return { outcome: 'admitted', message };
  }

  async keyOf(saleId: string, buyer: string, key: string): Promise<BoundTo | null> {
    const bound = this.#sales.get(saleId)?.keys.get(keyName(buyer, key));
    return bound === undefined ? null : { orderId: bound.orderId, fingerprint: bound.fingerprint };
  }

  async settle(saleId: string, holds: readonly HoldRef[]): Promise<void> {
    const sale = this.#sales.get(saleId);
    if (sale === undefined) return;
    for (const { orderId } of holds) {
      const hold = sale.holds.get(orderId);
      if (hold?.queued) {
        hold.queued = false;
        hold.item.queuedUnits -= unitsOf(hold);
      }
    }
  }

  async release(saleId: string, { orderId }: HoldRef): Promise<void> {
    const sale = this.#sales.get(saleId);
    if (sale) dropHold(sale, orderId);
  }

  async withdraw(saleId: string, { orderId, buyer, key }: HoldRef & { key: string | null }): Promise<void> {
    const sale = this.#sales.get(saleId);
    if (!sale || dropHold(sale, orderId) === null || key === null) return;
    sale.keys.free(keyName(buyer, key), orderId);
  }

  async holdOf(saleId: string, { orderId }: HoldRef): Promise<Held | null> {
    const sale = this.#sales.get(saleId);
    const hold = sale?.holds.get(orderId);
    if (sale === undefined || hold === undefined) return null;
    const { id, code, price } = hold.item;
    const slots = typeof hold.slots === 'number' ? [hold.slots] : hold.slots;
    const { queued, sitting } = hold;
    const held = { queued, itemId: id, itemCode: code, quantity: slots.length, slots, price, epoch: sale.epoch };
    return sitting === null ? held : { ...held, seats: sitting.seats };
  }

  async epochOf(saleId: string): Promise<number | null> {
    const sale = this.#sales.get(saleId);
    return sale === undefined || sale.shut ? null : sale.epoch;
  }

  async applySale(saleId: string, values: SaleValues): Promise<void> {
    const sale = this.#sales.get(saleId);
    if (sale && values.version > sale.values.version) sale.values = saleValues(values);
  }

  async applyTotal(saleId: string, itemId: string, total: number, rev: number): Promise<void> {
    const item = this.#sales.get(saleId)?.itemsById.get(itemId);
    if (item && rev > item.rev) {
      item.total = total;
      item.rev = rev;
    }
  }

  async holdForHouse(saleId: string, itemId: string, units: number, holdId: string): Promise<boolean> {
    const item = this.#sales.get(saleId)?.itemsById.get(itemId);
    if (item === undefined) return false;
    if (item.house.has(holdId)) return true;
    if (freeUnits(item) < units) return false;
    item.house.set(holdId, { units, seats: null });
    item.houseUnits += units;
    return true;
  }

  async dropHouseHold(
    saleId: string,
    itemId: string,
    holdId: string,
    lowered?: { total: number; rev: number },
  ): Promise<void> {
    const sale = this.#sales.get(saleId);
    const item = sale?.itemsById.get(itemId);
    if (sale === undefined || item === undefined) return;
    // The total is applied even if the hold is gone: the gate may have been rebuilt before the ledger lowered the total.
    if (lowered && lowered.rev > item.rev) {
      item.total = lowered.total;
      item.rev = lowered.rev;
    }
    leaveHouse(item, holdId);
    logSeats(sale, item);
  }

  async paid(saleId: string, holds: readonly HoldRef[]): Promise<void> {
    const sale = this.#sales.get(saleId);
    if (sale === undefined) return;
    for (const { orderId } of holds) {
      const hold = sale.holds.get(orderId);
      if (!hold?.sitting) continue;
      hold.item.seating!.hall.sell(hold.sitting.seats);
      logSeats(sale, hold.item);
    }
  }

  async holdSeats(
    saleId: string,
    itemId: string,
    seats: readonly number[],
    { holdId, order, blocked = false }: SeatsForHouse,
  ): Promise<SeatsHeld> {
    const sale = this.#sales.get(saleId);
    const item = sale?.itemsById.get(itemId);
    if (!sale || !item?.seating) return { outcome: 'stale' };
    if (item.house.has(holdId)) return { outcome: 'held' };
    const { hall } = item.seating;
    invariant(
      seats.every((seat) => hall.has(seat)),
      `item ${itemId} has no such seats`,
    );
    const mine = order && sale.holds.get(order.orderId);
    const left = new Set(mine?.item === item ? mine.sitting!.seats : []);
    const wanted = seats.filter((seat) => !left.has(seat) && !(blocked && hall.isBlocked(seat)));
    const taken = wanted.filter((seat) => !hall.isFree(seat));
    if (taken.length > 0) return { outcome: 'seat_taken', seats: taken };
    item.house.set(holdId, { units: wanted.length, seats: wanted });
    item.houseUnits += wanted.length;
    hall.take(wanted, 'house');
    logSeats(sale, item);
    return { outcome: 'held' };
  }

  async applyBlocked(saleId: string, { itemId, rev, seats }: BlockedSeats, holdId?: string): Promise<void> {
    const sale = this.#sales.get(saleId);
    const item = sale?.itemsById.get(itemId);
    if (!sale || !item?.seating) return;
    if (rev > item.seating.blockedRev) {
      item.blocked += item.seating.hall.block(seats);
      item.seating.blockedRev = rev;
    }
    if (holdId !== undefined) leaveHouse(item, holdId);
    logSeats(sale, item);
  }

  async moveSeats(saleId: string, { orderId, itemId, to, auditId, rev }: SeatsMove): Promise<void> {
    const sale = this.#sales.get(saleId);
    const item = sale?.itemsById.get(itemId);
    if (!sale || !item?.seating) return;
    leaveHouse(item, houseHoldId(auditId));
    const { hall, builtRev } = item.seating;
    const hold = sale.holds.get(orderId);
    const sitting = hold?.item === item ? hold.sitting : null;
    if (sitting && rev > Math.max(builtRev, sitting.movedRev)) {
      const as = hall.isSold(sitting.seats[0]!) ? 'sold' : 'reserved';
      const before = new Set(sitting.seats);
      const after = new Set(to);
      hall.leave(sitting.seats.filter((seat) => !after.has(seat)));
      hall.take(
        to.filter((seat) => !before.has(seat)),
        as,
      );
      Object.assign(sitting, { seats: [...to], movedRev: rev });
    }
    logSeats(sale, item);
  }

  async seats(saleId: string, since?: SeatRevision): Promise<SeatsSeen | null> {
    const sale = this.#sales.get(saleId);
    if (!sale?.log) return null;
    const { epoch, log, itemsByCode } = sale;
    const revision = { epoch, n: log.n };
    const changes = since?.epoch === epoch ? log.since(since.n) : null;
    if (changes !== null) return { revision, changes };
    const items = [...itemsByCode.values()].flatMap(({ id, seating }) =>
      seating === null ? [] : [{ itemId: id, states: seating.hall.states() }],
    );
    return { revision, items };
  }

  async view(saleId: string): Promise<ItemView[] | null> {
    const sale = this.#sales.get(saleId);
    if (!sale) return null;
    return Array.from(sale.itemsByCode.values(), (item) => ({
      itemId: item.id,
      code: item.code,
      total: item.total,
      free: freeUnits(item),
      queued: item.queuedUnits,
      held: item.heldUnits - item.queuedUnits,
      house: item.houseUnits,
      blocked: item.blocked,
      rev: item.rev,
    }));
  }

  async pruneKeys(olderMs: number): Promise<void> {
    const { clock, timers } = this.#runtime;
    const beforeMs = clock.now() - olderMs;
    let seen = 0;
    for (const { keys, holds } of this.#sales.values()) {
      // A queued order keeps its key, however old: the ledger has not stored it yet.
      for (const looked of keys.prune(beforeMs, (orderId) => holds.get(orderId)?.queued === true)) {
        seen += looked;
        if (seen < PRUNED_A_TURN) continue;
        // A big sale binds millions of keys a day: let other work run between the steps.
        seen = 0;
        await turn(timers);
      }
    }
  }
}

const ONE: number[] = [1];
