import type { Actor } from '../../model/actor.ts';
import type { OrderRecord } from '../../model/order.ts';
import type { SeatMap } from '../../model/seat-map.ts';
import type { SnapshotPage } from '../../model/snapshot.ts';
import type { AdminCall, SaleChange } from './sales.ts';

/**
 * Numbered seats. A seat is its number in its item's map (model/seat-map.ts); lists of seats are ascending. Orders take their
 * seats when they are stored, and give them back when they end (OrderLedger, PaymentLedger): a seat has at most one live order,
 * or the house (P1).
 */
export interface SeatLedger {
  /** The maps of the seated items of a sale, by item id. They never change. */
  seatMaps(saleId: string): Promise<Map<string, SeatMap>>;
  /** The blocked seats of each seated item, with the item's `rev` of the same instant. */
  blockedSeats(saleId: string): Promise<BlockedSeats[]>;
  /**
   * The live orders of a sale, page by page, without keys: for a sale that has no gate any more. An order that ends or is paid
   * meanwhile may be shown as it was.
   */
  seatHolds(saleId: string): AsyncIterable<SnapshotPage>;
  /**
   * Blocks seats for the house, or makes them free again: all or none, of any number of items of the sale, up to
   * BLOCKED_AT_ONCE_MAX. A seat that is so already stays so. Those that orders have are named in the refusal.
   */
  setBlocked(
    saleId: string,
    seats: readonly SeatsOfItem[],
    blocked: boolean,
    call: AdminCall,
  ): Promise<SaleChange | { outcome: 'seat_taken'; taken: SeatsOfItem[] }>;
  /**
   * Moves an order to free seats of its item, as many as it has: claims, order, audit, event, and a row that tells the gate, in
   * one transaction. It may keep some of its seats.
   */
  moveSeats(wanted: NewSeats): Promise<SeatsMoved>;

  // Moves on their way to the gate

  /** Oldest first; `olderMs`: only those that have been there for so long; `after`: the next page. */
  seatMoves(limit: number, olderMs: number, after?: SeatMove): Promise<WaitingSeatMove[]>;
  /** The gate has them. They are forgotten by `pruneReleases`. */
  seatMovesTold(moves: readonly Pick<SeatMove, 'orderId' | 'version'>[]): Promise<void>;
  /**
   * Every move of the sale above the `rev` of its item, whether a gate has had it or not, as `releasesSince`: a gate that is
   * built from an older snapshot may have the order in its old seats.
   */
  seatMovesSince(saleId: string, revs: ReadonlyMap<string, number>): AsyncIterable<SeatMove[]>;
}

/** Seats that one call may block: the audit has their numbers in one row. */
export const BLOCKED_AT_ONCE_MAX = 1000;

export interface SeatsOfItem {
  readonly itemId: string;
  readonly seats: readonly number[];
}

export interface BlockedSeats {
  readonly itemId: string;
  readonly rev: number;
  readonly seats: number[];
}

export interface NewSeats {
  readonly orderId: string;
  readonly seats: readonly number[];
  readonly by: Actor;
  /** Also names the gate's hold on the new seats. */
  readonly auditId: string;
  /** The token of the order's lock, as of a `Move`. */
  readonly fence: string | null;
}

/**
 *   moved        now, by this call; `told` is the row that the gate is told by
 *   repeat       it has these seats already
 *   seat_taken   others have `taken`; nothing has changed
 *   not_movable  it is neither reserved nor paid, or its item is counted
 *   fenced       the order's lock has passed to somebody else since
 *   unknown      there is no such order
 */
export type SeatsMoved =
  | { readonly outcome: 'moved'; readonly order: OrderRecord; readonly from: number[]; readonly told: SeatMove }
  | { readonly outcome: 'repeat' | 'not_movable' | 'fenced'; readonly order: OrderRecord }
  | { readonly outcome: 'seat_taken'; readonly order: OrderRecord; readonly taken: number[] }
  | { readonly outcome: 'unknown' };

/** A move that the ledger has committed, as the gate has to hear of it. */
export interface SeatMove {
  readonly orderId: string;
  /** The version that it gave the order: with it the move is known. */
  readonly version: number;
  readonly saleId: string;
  readonly itemId: string;
  readonly buyer: string;
  readonly from: number[];
  readonly to: number[];
  /** The audit id of the call: see `NewSeats`. */
  readonly auditId: string;
  readonly rev: number;
  readonly createdAtMs: number;
}

export interface WaitingSeatMove extends SeatMove {
  /** By the ledger's clock. */
  readonly waitedMs: number;
}
