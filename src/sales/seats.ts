import { RetryableError, unavailable } from '../base/errors.ts';
import type { IdSequence } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import { type Gate, houseHoldId } from '../gate/port.ts';
import type { AdminCall, KeyLedger, SaleChange, SaleLedger, SeatLedger, SeatsOfItem } from '../ledger/port.ts';
import { mayAdmit, type SaleRecord } from '../model/sale.ts';
import type { SaleSeats } from '../model/sale-seats.ts';
import type { Caller } from './manage.ts';

export interface BlockSeatsDependencies {
  readonly runtime: Runtime;
  readonly gate: Pick<Gate, 'epochOf' | 'dropHouseHold' | 'holdSeats' | 'applyBlocked'>;
  readonly ledger: Pick<SaleLedger, 'getSale' | 'saleAtRest' | 'finishTask'> &
    Pick<SeatLedger, 'setBlocked' | 'blockedSeats'> &
    Pick<KeyLedger, 'findKey'>;
  readonly auditIds: Pick<IdSequence, 'next'>;
  /** Null: there is no such sale. `has`: what the maps must have, if the sale has it. */
  seatsOf(saleId: string, has: (seats: SaleSeats) => boolean): Promise<SaleSeats | null>;
  /** How a sale reads in an answer. */
  present(sale: SaleRecord): string;
  /** A sale has changed: whoever watches it should look. */
  changed(saleId: string): void;
  /** Nothing is begun any more. */
  closing(): boolean;
}

/** `seats`: names of those that orders have, or that are on their way to one. */
export type SeatsChange = SaleChange | { outcome: 'seat_taken'; seats: string[] };

/** How often it is tried to tell the gate what became of seats that the house holds for a change whose outcome is not known. */
const SETTLE_MS = 500;

/**
 * Seats that the house keeps back. Blocking goes gate, ledger, gate: the house holds the seats, so that nobody gets them meanwhile; the
 * ledger blocks them; the gate gets all blocked seats of the item as of the ledger's rev, and the hold ends in the same step. Making
 * them free again goes ledger, then gate. A crash between ledger and gate, or a COMMIT whose reply is lost, leaves the ledger's task
 * unfinished, and the upkeep tells the gate; a hold that is left behind is dropped by the upkeep (gate/upkeep.ts).
 */
export class BlockSeats {
  readonly #on: BlockSeatsDependencies;
  /** Changes whose outcome is not known, by audit id. */
  readonly #inDoubt = new Map<string, { saleId: string; itemIds: string[] }>();

  constructor(dependencies: BlockSeatsDependencies) {
    this.#on = dependencies;
  }

  /** No seat is named twice. */
  async set(saleId: string, names: readonly string[], blocked: boolean, caller: Caller): Promise<SeatsChange> {
    const { auditIds, ledger, present, changed, runtime } = this.#on;
    const sale = await this.#on.seatsOf(saleId, (seats) => names.every((name) => seats.find(name) !== null));
    if (sale === null) return { outcome: 'not_found' };
    const { found, unknown } = sale.findAll(names);
    if (unknown.length > 0) return { outcome: 'not_found' };
    const seats = found.map(({ item, seats: own }) => ({ itemId: item.id, seats: own }));
    const call: AdminCall = { ...caller, auditId: await auditIds.next(), answer: present };
    const change = await (blocked ? this.#block(sale, seats, call) : this.#free(sale, seats, call));
    if (change.outcome === 'replayed') await this.#tell(saleId, null);
    if (change.outcome === 'changed') {
      changed(saleId);
      ledger
        .finishTask(call.auditId)
        .catch((error: unknown) => runtime.log.debug({ err: error }, 'a task could not be finished'));
    }
    return change;
  }

  async #free(sale: SaleSeats, seats: readonly SeatsOfItem[], call: AdminCall): Promise<SeatsChange> {
    const change = await this.#on.ledger.setBlocked(sale.saleId, seats, false, call);
    if (change.outcome === 'changed') await this.#tell(sale.saleId, null);
    return this.#named(change, sale);
  }

  async #block(sale: SaleSeats, seats: readonly SeatsOfItem[], call: AdminCall): Promise<SeatsChange> {
    const { gate, ledger } = this.#on;
    const { saleId } = sale;
    if ((await gate.epochOf(saleId)) === null) {
      const record = await ledger.getSale(saleId);
      if (record === null) return { outcome: 'not_found' };
      // A finished sale without a gate cannot be selling: the ledger alone decides. One that is being rebuilt will sell these seats.
      if (mayAdmit(record)) throw unavailable('the gate of this sale is being rebuilt');
      return this.#named(await ledger.setBlocked(saleId, seats, true, call), sale);
    }
    const { auditId } = call;
    const held: string[] = [];
    try {
      const taken = await this.#hold(saleId, seats, auditId, held);
      // The ledger is asked even if somebody has them: a repeat of the key gets its first answer.
      if (taken.length > 0 && !(call.keyed && (await ledger.findKey(call.keyed)))) {
        await this.#drop(saleId, held, auditId);
        return this.#named({ outcome: 'seat_taken', taken }, sale);
      }
      const change = await ledger.setBlocked(saleId, seats, true, call);
      if (change.outcome === 'changed') await this.#tell(saleId, auditId);
      else await this.#drop(saleId, held, auditId);
      return this.#named(change, sale);
    } catch (error) {
      // They may be blocked all the same: nobody gets them until that is known.
      if (error instanceof RetryableError) this.#doubt(auditId, saleId, held);
      else await this.#drop(saleId, held, auditId);
      throw error;
    }
  }

  /** Holds the seats of one item after the other, as far as they are free. Returns those that are not. `held`: items that were asked. */
  async #hold(saleId: string, seats: readonly SeatsOfItem[], auditId: string, held: string[]): Promise<SeatsOfItem[]> {
    const taken: SeatsOfItem[] = [];
    for (const { itemId, seats: own } of seats) {
      held.push(itemId);
      const answer = await this.#on.gate.holdSeats(saleId, itemId, own, {
        holdId: holdOf(auditId, itemId),
        blocked: true,
      });
      if (answer.outcome === 'stale') throw unavailable('the gate of this sale is being rebuilt');
      if (answer.outcome === 'seat_taken') taken.push({ itemId, seats: answer.seats });
    }
    return taken;
  }

  async #drop(saleId: string, itemIds: readonly string[], auditId: string): Promise<void> {
    for (const itemId of itemIds) await this.#on.gate.dropHouseHold(saleId, itemId, holdOf(auditId, itemId));
  }

  /** The gate hears what is blocked now; what the house held for the change with this audit id ends. */
  async #tell(saleId: string, auditId: string | null): Promise<void> {
    const { gate, ledger } = this.#on;
    for (const blocked of await ledger.blockedSeats(saleId)) {
      await gate.applyBlocked(saleId, blocked, auditId === null ? undefined : holdOf(auditId, blocked.itemId));
    }
  }

  /** One loop for all of them. Should this process die first, the upkeep drops holds that are old. */
  #doubt(auditId: string, saleId: string, itemIds: string[]): void {
    if (itemIds.length === 0) return;
    this.#inDoubt.set(auditId, { saleId, itemIds });
    if (this.#inDoubt.size === 1) void this.#settle();
  }

  async #settle(): Promise<void> {
    const { ledger, runtime, closing } = this.#on;
    while (this.#inDoubt.size > 0) {
      await sleep(runtime.timers, SETTLE_MS);
      if (closing()) return;
      for (const [auditId, { saleId, itemIds }] of [...this.#inDoubt]) {
        try {
          // No change of the sale is under way then.
          if ((await ledger.saleAtRest(saleId)) !== null) await this.#tell(saleId, auditId);
          await this.#drop(saleId, itemIds, auditId);
          this.#inDoubt.delete(auditId);
        } catch (error) {
          runtime.log.debug(
            { err: error, saleId, auditId },
            'seats that were held to block them cannot be settled yet',
          );
          break;
        }
      }
    }
  }

  #named(change: SaleChange | { outcome: 'seat_taken'; taken: readonly SeatsOfItem[] }, sale: SaleSeats): SeatsChange {
    if (change.outcome !== 'seat_taken') return change;
    return { outcome: 'seat_taken', seats: change.taken.flatMap(({ itemId, seats }) => sale.names(itemId, seats)) };
  }
}

/** A hold of the house is of one item. */
function holdOf(auditId: string, itemId: string): string {
  return `${houseHoldId(auditId)}:${itemId}`;
}
