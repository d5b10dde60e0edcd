import { RetryableError } from '../base/errors.ts';
import type { Money } from '../model/money.ts';
import type { OrderMessage, PlacedBy } from '../model/order.ts';
import type { Refusal } from '../model/outcome.ts';
import type { SeatState } from '../model/seat-map.ts';
import type { SaleSnapshot, SaleValues } from '../model/snapshot.ts';

/**
 * The gate decides admission in one atomic step and keeps a hold per admitted order.
 *
 * Guarantees: key, window, limit and stock are judged and taken together or not at all (P1, P2, P5); an order id that
 * was admitted is answered the same again and takes nothing; settle, release and withdraw act on a hold and do
 * nothing without one (P4); absolute values from the ledger are applied only if newer than what is in force.
 * It does not guarantee durability: the ledger is the truth, and a gate is rebuilt from it.
 */
export interface Gate extends SeatGate {
  /**
   * Installs a sale from the ledger; replaces a gate only if `snapshot.epoch` is higher. Reads the content page by page; the old
   * gate stays in force until the last page. Calls `latest` when the new gate is in place and not open yet, to apply the changes
   * made since the snapshot.
   */
  install(snapshot: SaleSnapshot, latest?: () => Promise<Latest | null>): Promise<void>;
  /**
   * Stops admission: until a higher epoch is installed, orders meet `stale`. Holds stay, to be settled. An epoch above
   * `upTo` is left as it is.
   */
  shut(saleId: string, upTo?: number): Promise<void>;
  /** Removes a finished sale and everything kept for it; its orders then meet `stale`. */
  remove(saleId: string): Promise<void>;

  /** Fails with a NotAdmittedError where that is certain; after any other error the order may have been admitted. */
  admit(request: AdmitRequest): Promise<Verdict>;
  /** The order that a buyer's key is bound to; null: none that the gate knows of. Also answered by a gate that is shut. */
  keyOf(saleId: string, buyer: string, key: string): Promise<BoundTo | null>;

  /** The ledger has stored these orders as reserved: they are out of the pipe. */
  settle(saleId: string, holds: readonly HoldRef[]): Promise<void>;
  /** The ledger has committed that the units are free again (cancel, expiry, refund): the hold ends. */
  release(saleId: string, hold: HoldRef): Promise<void>;
  /** The order never came into being (the ledger did not take it): the hold ends and its key is free again. */
  withdraw(saleId: string, hold: HoldRef & { readonly key: string | null }): Promise<void>;
  /** The hold as it stands; null: there is none, or the gate does not hold the sale. */
  holdOf(saleId: string, hold: HoldRef): Promise<Held | null>;
  /** The epoch in force, or null while the gate is stale: orders of this sale would meet `stale`. */
  epochOf(saleId: string): Promise<number | null>;

  /** The sale's own values at `version`; an older version changes nothing. */
  applySale(saleId: string, values: SaleValues): Promise<void>;
  /** The item's total at `rev`; an older rev changes nothing. */
  applyTotal(saleId: string, itemId: string, total: number, rev: number): Promise<void>;
  /** Takes free units as a hold of the house, before the ledger lowers the total. False: not that many are free. */
  holdForHouse(saleId: string, itemId: string, units: number, holdId: string): Promise<boolean>;
  /** Ends a hold of the house, if it is there; the lowered total comes into force in the same step. */
  dropHouseHold(
    saleId: string,
    itemId: string,
    holdId: string,
    lowered?: { total: number; rev: number },
  ): Promise<void>;

  /** Counts of an item as the gate sees them, or null if it does not hold the sale. */
  view(saleId: string): Promise<ItemView[] | null>;
  /** Forgets keys that were bound more than `olderMs` ago by the gate's clock. The ledger keeps keys for 24 hours too. */
  pruneKeys(olderMs: number): Promise<void>;
}

/**
 * Numbered seats in the gate. A seat is its number in its item's map (model/seat-map.ts); lists of seats are ascending and name no
 * seat twice. Orders take and free seats by the calls of `Gate`: a release or a withdrawal frees the seats that the hold has then,
 * so that a late copy finds no hold and frees nothing. Each call here may come late, more than once and in any order, and also
 * after a rebuild: what it says is numbered, or is about a hold that is there or not.
 */
export interface SeatGate {
  /** The ledger has these orders as paid: their seats are sold. Without this call they are shown as reserved until a rebuild. */
  paid(saleId: string, holds: readonly HoldRef[]): Promise<void>;

  /**
   * Holds free seats for the house, before the ledger blocks them or moves an order there: all or none. The same `holdId` again
   * holds nothing more. Ends by `applyBlocked`, `moveSeats` or `dropHouseHold`.
   */
  holdSeats(saleId: string, itemId: string, seats: readonly number[], hold: SeatsForHouse): Promise<SeatsHeld>;
  /**
   * All blocked seats of an item as of `rev`, after a block or an unblock; an older rev changes nothing. In the same step the hold
   * of the house that was taken for it ends.
   */
  applyBlocked(saleId: string, blocked: BlockedSeats, holdId?: string): Promise<void>;
  /**
   * The ledger has moved an order to other seats: its hold has those from now on, and the hold of the house that was taken for it
   * (`houseHoldId`) ends. A move that is older than the last one of this order, or than the gate, changes nothing but that.
   */
  moveSeats(saleId: string, move: SeatsMove): Promise<void>;

  /**
   * The states of all seats of the sale, or what has changed since a revision that was read before. Also answered by a gate that is
   * shut. Null: the gate does not hold the sale, or it has no seats.
   */
  seats(saleId: string, since?: SeatRevision): Promise<SeatsSeen | null>;
}

export interface SeatsForHouse {
  readonly holdId: string;
  /** The order that is to be moved: seats that it has already are left to it, and are not in the way. */
  readonly order?: HoldRef;
  /** True: seats that are blocked already are not in the way. */
  readonly blocked?: boolean;
}

/** `stale`: the gate does not hold the sale or the item. */
export type SeatsHeld =
  | { readonly outcome: 'held' | 'stale' }
  | { readonly outcome: 'seat_taken'; readonly seats: number[] };

/** The hold of the house for a change with this audit id. */
export function houseHoldId(auditId: string): string {
  return `house:${auditId}`;
}

export interface BlockedSeats {
  readonly itemId: string;
  readonly rev: number;
  readonly seats: readonly number[];
}

/** A row of the ledger's `seatMoves`. */
export interface SeatsMove extends HoldRef {
  readonly itemId: string;
  readonly to: readonly number[];
  readonly auditId: string;
  readonly rev: number;
}

/** `n` is counted by the gate, from 0 in each epoch. Written as `epoch.n`. */
export interface SeatRevision {
  readonly epoch: number;
  readonly n: number;
}

/** How many changes a gate keeps: a change is that of one order or one call. */
export const SEAT_CHANGES_MAX = 4096;

/** `changes`: oldest first, if the gate has all of them since the revision that was asked for; otherwise the states of all seats. */
export type SeatsSeen = { readonly revision: SeatRevision } & (
  | { readonly changes: readonly SeatChange[] }
  | { readonly items: readonly { readonly itemId: string; readonly states: string }[] }
);

export interface SeatChange {
  readonly itemId: string;
  readonly seats: readonly number[];
  /** What all of them are now. A gate does not tell queued from reserved. */
  readonly state: SeatState;
}

/** A gate that lists its sales, so that finished ones can leave it. */
export interface KeptGate extends Gate {
  /** Ids of the sales that have keys. */
  saleIds(): Promise<string[]>;
  /**
   * Takes a finished sale out, in one step; a shared gate notes that it was emptied. `busy`: it may still admit, or something
   * of it is in the pipe or among the dead letters; until then its gate answers for the keys of what is on its way (P5).
   * `stale`: the pipe looks empty, but this gate may have forgotten: only the ledger's epoch can say so.
   */
  retire(saleId: string): Promise<'removed' | 'busy' | 'stale'>;
}

/** A gate that outlives the process. */
export interface SharedGate extends KeptGate {
  /** These are among the sales that something is kept for, should the list have been lost. */
  enlist(saleIds: readonly string[]): Promise<void>;
  /** The epoch up to which no admission can become an order that the ledger does not know; null: not noted. */
  emptiedAt(saleId: string): Promise<number | null>;
  /** The ledger has raised the epoch of a finished sale to this one: what was admitted before can only be rejected. */
  setEmptied(saleId: string, epoch: number): Promise<void>;
  /** The holds of the house. */
  houseHolds(saleId: string): Promise<HouseHold[]>;
}

export interface HouseHold {
  readonly holdId: string;
  readonly itemId: string;
  /** By the gate's clock. */
  readonly ageMs: number;
}

/** The ledger's current values, as far as a gate needs them. */
export interface Latest extends SaleValues {
  readonly items: readonly { readonly id: string; readonly total: number; readonly rev: number }[];
  /** Of the seated items. */
  readonly blockedSeats?: readonly BlockedSeats[];
}

/** Applies the ledger's current values to a gate. They are absolute and numbered: the gate ignores those that are not newer. */
export async function applyLatest(
  gate: Pick<Gate, 'applySale' | 'applyTotal' | 'applyBlocked'>,
  saleId: string,
  latest: Latest,
): Promise<void> {
  await gate.applySale(saleId, latest);
  for (const { id, total, rev } of latest.items) await gate.applyTotal(saleId, id, total, rev);
  for (const blocked of latest.blockedSeats ?? []) await gate.applyBlocked(saleId, blocked);
}

/** Holds are stored by buyer: with both ids a hold is found in one step, without a further index. */
export interface HoldRef {
  readonly orderId: string;
  readonly buyer: string;
}

/** What the gate knows of an order that holds units. */
export interface Held {
  /** Not yet decided by the ledger, as far as the gate has heard. */
  readonly queued: boolean;
  readonly itemId: string;
  readonly itemCode: string;
  readonly quantity: number;
  readonly slots: number[];
  /** The seats that it has now. Absent: the item is counted. */
  readonly seats?: number[];
  readonly price: Money;
  readonly epoch: number;
}

export interface BoundTo {
  readonly orderId: string;
  readonly fingerprint: string;
}

/** An AbortSignal, or anything like it. */
export interface Leaving {
  readonly aborted: boolean;
}

export interface AdmitRequest {
  saleId: string;
  orderId: string;
  itemCode: string;
  buyer: string;
  quantity: number;
  /** Of a seated item, which seats; absent: the item is counted. Asking for an item of the other kind is `not_found`. */
  seats?: SeatWish | undefined;
  key: string | null;
  fingerprint: string;
  /** Copied into the order's message. */
  placedBy?: PlacedBy | undefined;
  /** A request whose caller has left before it was sent is not sent any more. */
  signal?: Leaving | undefined;
}

/**
 * These very seats, ascending, as many as `quantity`: one that the map does not have is `not_found`. Or the best that are free by the
 * rule of model/best-seats.ts: `together`, all neighbours of each other; `any`, whether they are or not.
 */
export type SeatWish = readonly number[] | 'together' | 'any';

/** Whether a request asks for anything: whoever sends another one has not checked what the caller said. */
export function isSound({ seats, quantity }: Pick<AdmitRequest, 'seats' | 'quantity'>): boolean {
  if (!Number.isSafeInteger(quantity) || quantity < 1) return false;
  if (seats === undefined || typeof seats === 'string') return true;
  const ascends = seats.every((seat, at) => Number.isSafeInteger(seat) && seat > (at === 0 ? -1 : seats[at - 1]!));
  return ascends && seats.length === quantity;
}

/** The accepted order's message went into the pipe in the same step as the admission. */
export type Verdict = { outcome: 'admitted'; message: OrderMessage } | Refused;

export type Refused = (
  | { outcome: 'replayed'; orderId: string }
  | { outcome: 'sale_not_open' | 'sale_closed' | 'sale_paused'; opensAtMs: number; closesAtMs: number }
  | { outcome: 'limit_reached'; orderIds: string[]; perBuyer: number }
  | { outcome: 'seat_taken'; seats: number[] }
  | { outcome: Exclude<Refusal, 'limit_reached' | 'seat_taken' | 'sale_not_open' | 'sale_closed' | 'sale_paused'> }
  | { outcome: 'stale' }
) & {
  /**
   * The request was sent more than once, since a reply was lost: an earlier copy may have been admitted, or may yet be
   * executed. Absent: this order id has left no trace in the gate, and never will.
   */
  uncertain?: true;
};

/** An order that was certainly not admitted: never sent, or sent once and refused. Its id has left no trace in the gate. */
export class NotAdmittedError extends RetryableError {}

export interface ItemView {
  itemId: string;
  code: string;
  total: number;
  free: number;
  /** Admitted, not yet decided by the ledger. */
  queued: number;
  /** Held by live orders that the ledger has stored. */
  held: number;
  house: number;
  blocked: number;
  rev: number;
}
