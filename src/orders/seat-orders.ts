import type { Fault } from '../model/sale.ts';
import { namedTwice, type SaleSeats, type SeatedItem } from '../model/sale-seats.ts';
import type { PlaceRequest, PlaceResult } from './place.ts';

/** What somebody orders: units or the best seats of an item, or seats by name. */
export interface OrderRequest extends Omit<PlaceRequest, 'itemCode' | 'quantity' | 'seats'> {
  /** May be left out if seats are named. */
  itemCode?: string | undefined;
  /** 1 if it is left out, or as many as there are named seats. */
  quantity?: number | undefined;
  /** Names of seats. */
  seats?: readonly string[] | undefined;
  /** The best seats that are all neighbours of each other. */
  together?: boolean | undefined;
}

/** As `PlaceResult`, with names of seats. */
export type OrderResult =
  | Exclude<PlaceResult, { code: 'seat_taken' }>
  | { ok: false; code: 'seat_taken'; seats: string[] }
  | { ok: false; code: 'invalid_request'; errors: Fault[] };

export interface SeatOrdersDependencies {
  /** What is kept of the seats of a sale; null: nothing. */
  peek(saleId: string): SaleSeats | null;
  /** Null: there is no such sale. `has`: whether the kept maps have what is asked for. */
  seatsOf(saleId: string, has: (seats: SaleSeats) => boolean): Promise<SaleSeats | null>;
  place(request: PlaceRequest): Promise<PlaceResult>;
  again(request: PlaceRequest): Promise<PlaceResult | null>;
}

const NOT_FOUND: OrderResult = { ok: false, code: 'not_found' };

/**
 * The way from names of seats to seat numbers, before the gate. Counted items pass: whether an item is seated is asked only after the
 * gate, which answers an order for units of a seated item with `not_found`, or if it is known already.
 */
export class SeatOrders {
  readonly #on: SeatOrdersDependencies;

  constructor(dependencies: SeatOrdersDependencies) {
    this.#on = dependencies;
  }

  async place(request: OrderRequest): Promise<OrderResult> {
    return await this.#with<never>(request, (wanted) => this.#on.place(wanted));
  }

  /** What a repeat gets; null: it is none. */
  again(request: OrderRequest): Promise<OrderResult | null> {
    return this.#with<null>(request, (wanted) => this.#on.again(wanted));
  }

  async #with<None extends null>(
    { itemCode, quantity, seats: names, together, ...rest }: OrderRequest,
    run: (request: PlaceRequest) => Promise<PlaceResult | None>,
  ): Promise<OrderResult | None> {
    const { saleId } = rest;
    if (names !== undefined) {
      const wish = await this.#named(saleId, names, { itemCode, quantity, together });
      if ('ok' in wish) return wish;
      const { item, seats } = wish;
      return this.#done(item, { ...rest, itemCode: item.code, quantity: seats.length, seats }, run);
    }
    if (itemCode === undefined) return invalid('/item', 'is missing');
    const request = { ...rest, itemCode, quantity: quantity ?? 1 };
    if (together === true) {
      const sale = await this.#saleWith(saleId, itemCode);
      const item = sale?.coded(itemCode);
      if (item) return this.#done(item, { ...request, seats: 'together' }, run);
      return sale?.isCounted(itemCode) ? invalid('/together', 'this item has no numbered seats') : NOT_FOUND;
    }
    let item = this.#on.peek(saleId)?.coded(itemCode);
    if (!item) {
      const placed = await run(request);
      if (placed === null || placed.ok || placed.code !== 'not_found') return placed as OrderResult | None;
      item = (await this.#saleWith(saleId, itemCode))?.coded(itemCode);
      if (!item) return NOT_FOUND;
    }
    return this.#done(item, { ...request, seats: 'any' }, run);
  }

  #saleWith(saleId: string, itemCode: string): Promise<SaleSeats | null> {
    return this.#on.seatsOf(saleId, (seats) => seats.coded(itemCode) !== null || seats.isCounted(itemCode));
  }

  /** All seats are of one item, and none is named twice. */
  async #named(
    saleId: string,
    names: readonly string[],
    { itemCode, quantity, together }: Pick<OrderRequest, 'itemCode' | 'quantity' | 'together'>,
  ): Promise<OrderResult | { item: SeatedItem; seats: number[] }> {
    if (together !== undefined) return invalid('/together', 'is not for seats that are named');
    if (quantity !== undefined && quantity !== names.length) {
      return invalid('/quantity', `differs from the number of seats, which is ${names.length}`);
    }
    const twice = namedTwice(names);
    if (twice !== null) return invalid(`/seats/${twice}`, 'is named twice');
    const sale = await this.#on.seatsOf(saleId, (seats) => names.every((name) => seats.find(name) !== null));
    if (sale === null) return NOT_FOUND;
    const { found, unknown } = sale.findAll(names);
    if (found.length > 1) return invalid('/seats', 'all seats of an order must be of one item');
    const [one] = found;
    if (one !== undefined && itemCode !== undefined && one.item.code !== itemCode) {
      return invalid('/item', `is not the item of these seats, which is ${one.item.code}`);
    }
    return unknown.length > 0 || one === undefined ? NOT_FOUND : one;
  }

  async #done<None extends null>(
    item: SeatedItem,
    request: PlaceRequest,
    run: (request: PlaceRequest) => Promise<PlaceResult | None>,
  ): Promise<OrderResult | None> {
    const placed = await run(request);
    if (placed === null || placed.ok || placed.code !== 'seat_taken') return placed as OrderResult | None;
    // The map was there before the order: it need not be read for this.
    const sale = await this.#on.seatsOf(request.saleId, (seats) => seats.item(item.id) !== null);
    return { ok: false, code: 'seat_taken', seats: sale === null ? [] : sale.names(item.id, placed.seats) };
  }
}

function invalid(path: string, message: string): OrderResult {
  return { ok: false, code: 'invalid_request', errors: [{ path, message }] };
}
