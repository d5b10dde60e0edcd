import { invariant, RetryableError, unavailable } from '../base/errors.ts';
import type { IdSequence } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import { applyLatest, type Gate } from '../gate/port.ts';
import type { AdminCall, KeyLedger, OrderLedger, SaleChange, SaleDeleted, SaleLedger } from '../ledger/port.ts';
import {
  type ItemPatch,
  mayAdmit,
  type NewItem,
  type NewSale,
  type SalePatch,
  type SaleRecord,
} from '../model/sale.ts';

/** Who asks, and under which key, if any. Calls with one key come one after the other. */
export type Caller = Pick<AdminCall, 'by' | 'keyed'>;

export interface ManageDependencies {
  runtime: Runtime;
  gate: Gate;
  ledger: SaleLedger & KeyLedger & Pick<OrderLedger, 'listOrders'>;
  saleIds: IdSequence;
  itemIds: IdSequence;
  auditIds: IdSequence;
  /** Builds the gate of a sale from the ledger, unless one of an epoch above `above` is in force. */
  install: (saleId: string, above: number) => Promise<void>;
  /** Shuts and drains the gate, asks `decide` with the ledger's epoch, and takes the gate away (true) or opens it again. */
  takeAway: (saleId: string, decide: (epoch: number) => Promise<boolean>) => Promise<boolean | null>;
  /** Whether messages of the sale wait among the dead letters: orders that somebody has yet to decide. */
  hasDeadLetters: (saleId: string) => Promise<boolean>;
  /** How a sale reads in an answer. */
  present: (sale: SaleRecord) => string;
  /** The id of the sale in such an answer. */
  saleIn: (answer: string) => string;
  /** A sale has changed: whoever watches it should look. */
  changed: (saleId: string) => void;
  /** Nothing is begun any more. */
  closing: () => boolean;
}

/** How often it is tried to give back units of a lowering whose outcome is not known. */
const GIVE_BACK_MS = 500;

/** What became of a wish to delete a sale. */
export type Deleted = Exclude<SaleDeleted['outcome'], 'rebuilt'>;

/**
 * Changes to a live sale. More stock, patch, pause, resume, close: ledger, then gate; the answer waits for both. Less
 * stock: the gate takes the units out first as a hold of the house, then the ledger lowers the total. A new item, a new price, an
 * item on or off sale: ledger, then a rebuild of the gate, since orders keep the price that they were admitted with. The gate gets
 * absolute values with the ledger's number and ignores older ones, so two changes cannot overtake each other. A crash
 * between ledger and gate, or a COMMIT whose reply is lost, leaves the ledger's task unfinished: the upkeep tells the gate
 * instead (gate/upkeep.ts). A repeat of the call is answered once the gate has been told.
 */
export class ManageSales {
  readonly #on: ManageDependencies;
  /** Units that the house has taken out for a change whose outcome is not known, by hold. */
  readonly #inDoubt = new Map<string, { saleId: string; itemId: string }>();

  constructor(dependencies: ManageDependencies) {
    this.#on = dependencies;
  }

  create(sale: NewSale, caller: Caller): Promise<SaleChange> {
    return this.#change(caller, async (call) => {
      const id = await this.#on.saleIds.next();
      const itemIds: string[] = [];
      for (const _ of sale.items) itemIds.push(await this.#on.itemIds.next());
      const change = await this.#on.ledger.createSale({ ...sale, id, itemIds }, call);
      if (change.outcome === 'changed') await this.#on.install(id, 0);
      return change;
    });
  }

  addItem(saleId: string, item: NewItem, caller: Caller): Promise<SaleChange> {
    return this.#change(caller, async (call) => {
      const id = await this.#on.itemIds.next();
      return this.#applied(await this.#on.ledger.addItem(saleId, { ...item, id }, call));
    });
  }

  patchItem(saleId: string, itemCode: string, patch: ItemPatch, version: number, caller: Caller): Promise<SaleChange> {
    return this.#change(caller, async (call) =>
      this.#applied(await this.#on.ledger.patchItem(saleId, itemCode, patch, version, call)),
    );
  }

  /**
   * A sale that has an order, or is about to, is refused before its gate is touched: whoever tries to delete a sale that sells must
   * not stop it. For any other, the gate is shut first, so that no order can come between the question and the answer.
   */
  async delete(saleId: string, { by }: Pick<Caller, 'by'>): Promise<Deleted> {
    const { gate, ledger, auditIds, takeAway, hasDeadLetters, changed } = this.#on;
    if ((await ledger.getSale(saleId)) === null) return 'not_found';
    if ((await ledger.listOrders({ saleId }, { limit: 1, before: null })).length > 0) return 'sale_has_orders';
    if ((await gate.view(saleId))?.some(({ queued, held }) => queued + held > 0)) return 'sale_has_orders';
    let auditId = '';
    let outcome: SaleDeleted['outcome'] | null = null;
    const taken = await takeAway(saleId, async (epoch) => {
      auditId = await auditIds.next();
      outcome = (await hasDeadLetters(saleId))
        ? 'sale_has_orders'
        : (await ledger.deleteSale(saleId, epoch, { auditId, by })).outcome;
      return outcome === 'deleted';
    });
    if (taken) {
      changed(saleId);
      this.#finished(auditId);
      return 'deleted';
    }
    const decided = outcome as SaleDeleted['outcome'] | null;
    // Not decided: an order is on its way to the ledger, or the gate was rebuilt by somebody else meanwhile.
    if (decided === null || decided === 'rebuilt') {
      if ((await ledger.getSale(saleId)) === null) return 'not_found';
      throw unavailable('orders of this sale are still being decided, or its gate is being rebuilt');
    }
    invariant(decided !== 'deleted', `sale ${saleId} was deleted and is kept`);
    return decided;
  }

  patch(saleId: string, patch: SalePatch, version: number, caller: Caller): Promise<SaleChange> {
    return this.#change(caller, async (call) =>
      this.#applied(await this.#on.ledger.patchSale(saleId, patch, version, call)),
    );
  }

  setPaused(saleId: string, paused: boolean, caller: Caller): Promise<SaleChange> {
    return this.#change(caller, async (call) => this.#applied(await this.#on.ledger.setPaused(saleId, paused, call)));
  }

  close(saleId: string, caller: Caller): Promise<SaleChange> {
    return this.#change(caller, async (call) => this.#applied(await this.#on.ledger.closeSale(saleId, call)));
  }

  addStock(saleId: string, itemCode: string, add: number, caller: Caller): Promise<SaleChange> {
    return this.#change(caller, (call) =>
      add < 0 ? this.#lower(saleId, itemCode, add, call) : this.#raise(saleId, itemCode, add, call),
    );
  }

  async #raise(saleId: string, itemCode: string, add: number, call: AdminCall): Promise<SaleChange> {
    const change = await this.#on.ledger.addStock(saleId, itemCode, add, call);
    if (change.outcome === 'changed') {
      const item = change.sale.items.find(({ code }) => code === itemCode)!;
      await this.#on.gate.applyTotal(saleId, item.id, item.total, item.rev);
    }
    return change;
  }

  async #lower(saleId: string, itemCode: string, add: number, call: AdminCall): Promise<SaleChange> {
    const { gate, ledger } = this.#on;
    const sale = await ledger.getSale(saleId);
    const item = sale?.items.find(({ code }) => code === itemCode);
    if (!sale || !item) return { outcome: 'not_found' };
    // The ledger says that a seated item has no stock: no unit need be held for that.
    if (item.kind === 'seated') return ledger.addStock(saleId, itemCode, add, call);
    if ((await gate.epochOf(saleId)) === null) {
      // A finished sale without a gate cannot be selling: the ledger's own check is enough. While a gate is being rebuilt it
      // is not enough: orders in the pipe would be refused for want of the units.
      if (mayAdmit(sale)) throw unavailable('the gate of this sale is being rebuilt');
      return ledger.addStock(saleId, itemCode, add, call);
    }

    const hold = `house:${call.auditId}`;
    let lowered: { total: number; rev: number } | undefined;
    try {
      const held = await gate.holdForHouse(saleId, item.id, -add, hold);
      // The ledger is asked even if the gate has not that many: a repeat of the key gets its first answer.
      if (!held && !(call.keyed && (await ledger.findKey(call.keyed)))) return { outcome: 'insufficient_free' };
      const change = await ledger.addStock(saleId, itemCode, add, call);
      if (change.outcome === 'changed') {
        const now = change.sale.items.find(({ code }) => code === itemCode)!;
        lowered = { total: now.total, rev: now.rev };
      }
      await gate.dropHouseHold(saleId, item.id, hold, lowered);
      return change;
    } catch (error) {
      // The total may have been lowered all the same: the units stay out until that is known.
      if (error instanceof RetryableError) this.#doubt(hold, saleId, item.id);
      else await gate.dropHouseHold(saleId, item.id, hold);
      throw error;
    }
  }

  /** One loop for all of them. Should this process die first, the upkeep drops holds that are old. */
  #doubt(hold: string, saleId: string, itemId: string): void {
    this.#inDoubt.set(hold, { saleId, itemId });
    if (this.#inDoubt.size === 1) void this.#giveBack();
  }

  async #giveBack(): Promise<void> {
    const { gate, ledger, runtime, closing } = this.#on;
    while (this.#inDoubt.size > 0) {
      await sleep(runtime.timers, GIVE_BACK_MS);
      if (closing()) return;
      for (const [hold, { saleId, itemId }] of [...this.#inDoubt]) {
        try {
          const item = (await ledger.saleAtRest(saleId))?.items.find(({ id }) => id === itemId);
          await gate.dropHouseHold(saleId, itemId, hold, item && { total: item.total, rev: item.rev });
          this.#inDoubt.delete(hold);
        } catch (error) {
          runtime.log.debug(
            { err: error, saleId, hold },
            'units that were taken out to lower a total cannot be given back yet',
          );
          break;
        }
      }
    }
  }

  /** The first call may have ended before the gate heard of it. */
  async #heard(saleId: string): Promise<void> {
    const { gate, ledger } = this.#on;
    const sale = await ledger.getSale(saleId);
    if (sale === null) return;
    await applyLatest(gate, saleId, sale);
    await this.#installed(sale);
  }

  /** The ledger has it; now the gate. */
  async #applied(change: SaleChange): Promise<SaleChange> {
    if (change.outcome !== 'changed') return change;
    const { sale } = change;
    await this.#on.gate.applySale(sale.id, sale);
    await this.#installed(sale);
    return change;
  }

  /** A window that was over and is extended comes back into the gate. Items are known to a gate that was built after their change. */
  async #installed(sale: SaleRecord): Promise<void> {
    const { ledger, install } = this.#on;
    if (await this.#knows(sale)) return;
    await install(sale.id, sale.itemsEpoch);
    if (await this.#knows(sale)) return;
    // The shop closes, or the sale was closed or deleted meanwhile. The change must not be taken for finished while a gate lacks it.
    const now = await ledger.getSale(sale.id);
    if (now !== null && mayAdmit(now)) throw unavailable('it is stored, and its gate is not open yet');
  }

  async #knows(sale: SaleRecord): Promise<boolean> {
    return !mayAdmit(sale) || ((await this.#on.gate.epochOf(sale.id)) ?? 0) > sale.itemsEpoch;
  }

  async #change(caller: Caller, run: (call: AdminCall) => Promise<SaleChange>): Promise<SaleChange> {
    const { auditIds, present, saleIn, changed } = this.#on;
    const { by, keyed } = caller;
    const call: AdminCall = { by, keyed, auditId: await auditIds.next(), answer: present };
    const change = await run(call);
    if (change.outcome === 'replayed') await this.#heard(saleIn(change.answer));
    if (change.outcome === 'changed') {
      changed(change.sale.id);
      this.#finished(call.auditId);
    }
    return change;
  }

  /** Ledger and gate agree. A task left unfinished would only be told to the gate once more. */
  #finished(auditId: string): void {
    const { ledger, runtime } = this.#on;
    ledger
      .finishTask(auditId)
      .catch((error: unknown) => runtime.log.debug({ err: error }, 'a task could not be finished'));
  }
}
