import { expect } from 'vitest';
import type { AdminCall, Ledger, NewSeats, SeatsMoved, SeatsOfItem } from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import { type OrderMessage, type OrderRecord, orderFingerprint } from '../../src/model/order.ts';
import type { ItemRecord, NewItem, NewSale, SaleRecord } from '../../src/model/sale.ts';
import { buildSeatMap, type SeatMap } from '../../src/model/seat-map.ts';
import { newSale } from '../support/new-sale.ts';
import { LifeKit, PAY_WITHIN_MS, PRICE, SALE } from './ledger-life-kit.ts';
import { T0 } from './manual.ts';

export const STALLS = '501';
export const STANDING = '502';
export const BALCONY = '503';

/** A map of rows with at most 500 seats each. */
export function mapOf(size: number, section = 'Stalls'): SeatMap {
  const rows: { section: string; row: string; from: number; to: number }[] = [];
  for (let from = 0; from < size; from += 500) {
    rows.push({ section, row: `R${rows.length}`, from: 1, to: Math.min(500, size - from) });
  }
  return buildSeatMap(rows);
}

export function seatedItem(code: string, seats: SeatMap): NewItem {
  return { code, name: code, price: PRICE, stock: seats.size, seats };
}

/** A hall: stalls of 40 seats and a balcony of 12, and between them standing room. */
export class SeatKit extends LifeKit {
  /** That its gate would give; a rebuild raises it. */
  epoch = 1;

  /** Items of sale 500 are 501 (stalls), 502 (standing) and 503 (balcony). */
  async createHall(saleId = SALE, over: Partial<NewSale> = {}): Promise<SaleRecord> {
    const items = [
      seatedItem('stalls', mapOf(40)),
      { code: 'standing', name: 'standing', price: PRICE, stock: 100 },
      seatedItem('balcony', mapOf(12, 'Balcony')),
    ];
    const window = { opensAtMs: T0, closesAtMs: T0 + 72 * 3600 * 1000 };
    const sale = newSale({ ...window, perBuyer: 100, payWithinSeconds: PAY_WITHIN_MS / 1000, items, ...over });
    const itemIds = sale.items.map((_, at) => String(Number(saleId) + 1 + at));
    const change = await this.ledger.createSale({ ...sale, id: saleId, itemIds }, this.call());
    if (change.outcome !== 'changed') throw new Error(change.outcome);
    return change.sale;
  }

  /** An honest message for these seats of the stalls (or `itemId`). */
  seated(buyer: string, seats: number[], over: Partial<OrderMessage> = {}): OrderMessage {
    const itemCode = over.itemId === BALCONY ? 'balcony' : 'stalls';
    return this.message(buyer, {
      itemId: STALLS,
      itemCode,
      slots: seats.map((_, at) => at + 1),
      quantity: seats.length,
      seats,
      epoch: this.epoch,
      fingerprint: orderFingerprint(itemCode, seats.length, { seats }),
      ...over,
    });
  }

  standing(buyer: string, over: Partial<OrderMessage> = {}): OrderMessage {
    return this.message(buyer, { itemId: STANDING, itemCode: 'standing', epoch: this.epoch, ...over });
  }

  /** `reserved`, or why it was rejected; what is answered is what is stored. */
  async verdicts(...batch: OrderMessage[]): Promise<string[]> {
    const stored = await this.commit(...batch);
    for (const { order } of stored) expect(await this.stored(order.id)).toEqual(order);
    await this.judge();
    return stored.map(({ order }) => order.reason ?? order.status);
  }

  async verdict(message: OrderMessage): Promise<string> {
    return (await this.verdicts(message))[0]!;
  }

  async sits(buyer: string, seats: number[], over: Partial<OrderMessage> = {}): Promise<OrderRecord> {
    const [stored] = await this.commit(this.seated(buyer, seats, over));
    expect(stored!.order).toMatchObject({ status: 'reserved', seats });
    return stored!.order;
  }

  async paidFor(order: OrderRecord): Promise<OrderRecord> {
    const { outcome, order: paid } = await this.one(this.taken(order, `till-${order.id}`));
    expect(outcome).toBe('moved');
    return paid!;
  }

  override async item(code = 'stalls', saleId = SALE): Promise<ItemRecord> {
    return await super.item(code, saleId);
  }

  async setBlocked(
    blocked: boolean,
    seats: readonly number[] | readonly SeatsOfItem[],
    call: AdminCall = this.call(),
  ): Promise<Awaited<ReturnType<Ledger['setBlocked']>>> {
    const wanted = isOfItems(seats) ? seats : [{ itemId: STALLS, seats }];
    const change = await this.ledger.setBlocked(SALE, wanted, blocked, call);
    await this.judge();
    return change;
  }

  async block(...seats: number[]): Promise<string> {
    return (await this.setBlocked(true, seats)).outcome;
  }

  async unblock(...seats: number[]): Promise<string> {
    return (await this.setBlocked(false, seats)).outcome;
  }

  async blocked(itemId = STALLS): Promise<number[]> {
    return (await this.ledger.blockedSeats(SALE)).find((one) => one.itemId === itemId)!.seats;
  }

  async moveTo(order: { id: string }, seats: number[], over: Partial<NewSeats> = {}): Promise<SeatsMoved> {
    const wanted = { orderId: order.id, seats, by: actor('admin', 'alice'), auditId: this.id(), fence: null, ...over };
    const moved = await this.ledger.moveSeats(wanted);
    if (moved.outcome !== 'unknown') expect(await this.stored(order.id), 'as it is stored').toEqual(moved.order);
    await this.judge();
    return moved;
  }

  /** What must change nothing at all. */
  async unchanged<T>(what: () => Promise<T>): Promise<T> {
    const before = await this.everything();
    const result = await what();
    expect(await this.everything(), JSON.stringify(result)).toEqual(before);
    return result;
  }
}

function isOfItems(seats: readonly number[] | readonly SeatsOfItem[]): seats is readonly SeatsOfItem[] {
  return typeof seats[0] === 'object';
}
