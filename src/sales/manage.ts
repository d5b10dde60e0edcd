import { RetryableError, unavailable } from '../base/errors.ts';
import { bodyFingerprint } from '../base/idempotency.ts';
import type { IdSequence } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Gate } from '../gate/port.ts';
import type { AdminCall, KeyScope, Ledger, SaleChange } from '../ledger/port.ts';
import type { NewSale, SalePatch, SaleRecord } from '../model/sale.ts';

/** Who asks, and under which key, if any. */
export interface Caller {
  actor: string;
  keyed: Pick<KeyScope, 'caller' | 'actingFor' | 'key'> | null;
}

/** What is done, and to what: the part of a key's scope that is not the caller's to say. */
type Deed = Pick<KeyScope, 'operation' | 'subject'>;

export interface ManageDependencies {
  runtime: Runtime;
  gate: Gate;
  ledger: Ledger;
  saleIds: IdSequence;
  itemIds: IdSequence;
  auditIds: IdSequence;
  /** The gate is shared, and somebody looks after what is left behind in it. */
  gateOutlivesUs: boolean;
  /** Builds the gate of a sale from the ledger. */
  install: (saleId: string) => Promise<void>;
  /** How a sale reads in an answer. */
  present: (sale: SaleRecord) => string;
  /** A sale has changed: whoever watches it should look. */
  changed: (saleId: string) => void;
}

/**
 * Changes to a live sale. More stock, patch, pause, resume, close: ledger, then gate; the answer waits for both. Less
 * stock: the gate takes the units out first as a hold of the house, then the ledger lowers the total. The gate gets
 * absolute values with the ledger's number and ignores older ones, so two changes cannot overtake each other. A crash
 * between ledger and gate leaves the ledger's task unfinished: whoever looks after these tells the gate instead. (Where
 * the gate dies with the process there are none: it is rebuilt from the ledger.)
 */
export class ManageSales {
  readonly #on: ManageDependencies;
  /** Keyed calls that are running: a repeat waits for the first. */
  readonly #running = new Map<string, Promise<unknown>>();

  constructor(dependencies: ManageDependencies) {
    this.#on = dependencies;
  }

  create(sale: NewSale, caller: Caller): Promise<SaleChange> {
    return this.#once(caller, { operation: 'sale.create', subject: '' }, sale, async (call) => {
      const id = await this.#on.saleIds.next();
      const itemIds: string[] = [];
      for (const _ of sale.items) itemIds.push(await this.#on.itemIds.next());
      const change = await this.#on.ledger.createSale({ ...sale, id, itemIds }, call);
      if (change.outcome === 'changed') await this.#on.install(id);
      return change;
    });
  }

  patch(saleId: string, patch: SalePatch, version: number, caller: Caller): Promise<SaleChange> {
    return this.#once(caller, { operation: 'sale.patch', subject: saleId }, { patch, version }, async (call) =>
      this.#applied(await this.#on.ledger.patchSale(saleId, patch, version, call)),
    );
  }

  setPaused(saleId: string, paused: boolean, caller: Caller): Promise<SaleChange> {
    const deed = { operation: paused ? 'sale.pause' : 'sale.resume', subject: saleId };
    return this.#once(caller, deed, {}, async (call) =>
      this.#applied(await this.#on.ledger.setPaused(saleId, paused, call)),
    );
  }

  close(saleId: string, caller: Caller): Promise<SaleChange> {
    return this.#once(caller, { operation: 'sale.close', subject: saleId }, {}, async (call) =>
      this.#applied(await this.#on.ledger.closeSale(saleId, call)),
    );
  }

  addStock(saleId: string, itemCode: string, add: number, caller: Caller): Promise<SaleChange> {
    return this.#once(caller, { operation: 'sale.stock', subject: `${saleId}/${itemCode}` }, { add }, (call) =>
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
    const { gate, ledger, gateOutlivesUs } = this.#on;
    const sale = await ledger.getSale(saleId);
    const item = sale?.items.find(({ code }) => code === itemCode);
    if (!sale || !item) return { outcome: 'not_found' };
    if ((await gate.epochOf(saleId)) === null) {
      // A sale the gate does not hold any more cannot be selling: the ledger's own check is enough. While it is being
      // rebuilt it is not: what is in the pipe would be refused for want of the units.
      if (this.#mayAdmit(sale)) throw unavailable('the gate of this sale is being rebuilt');
      return ledger.addStock(saleId, itemCode, add, call);
    }

    const hold = `house:${call.auditId}`;
    const held = await gate.holdForHouse(saleId, item.id, -add, hold);
    let lowered: { total: number; rev: number } | undefined;
    try {
      // Even if the gate has not that many, the ledger is asked: a repeat of the key gets its first answer.
      if (!held && !(call.keyed && (await ledger.findKey(call.keyed)))) return { outcome: 'insufficient_free' };
      const change = await ledger.addStock(saleId, itemCode, add, call);
      if (change.outcome === 'changed') {
        const now = change.sale.items.find(({ code }) => code === itemCode)!;
        lowered = { total: now.total, rev: now.rev };
      }
      await gate.dropHouseHold(saleId, item.id, hold, lowered);
      return change;
    } catch (error) {
      // The total may have been lowered, and nobody told us: whoever looks after old holds drops it with the total then.
      if (!(error instanceof RetryableError) || !gateOutlivesUs) await gate.dropHouseHold(saleId, item.id, hold);
      throw error;
    }
  }

  /** The ledger has it; now the gate. */
  async #applied(change: SaleChange): Promise<SaleChange> {
    if (change.outcome !== 'changed') return change;
    const { gate, install } = this.#on;
    const { sale } = change;
    await gate.applySale(sale.id, sale);
    // A window that was over and is extended comes back into the gate.
    if (this.#mayAdmit(sale) && (await gate.epochOf(sale.id)) === null) await install(sale.id);
    return change;
  }

  #mayAdmit({ closed, closesAtMs }: SaleRecord): boolean {
    return !closed && closesAtMs > this.#on.runtime.clock.now();
  }

  async #once(
    caller: Caller,
    deed: Deed,
    body: unknown,
    run: (call: AdminCall) => Promise<SaleChange>,
  ): Promise<SaleChange> {
    const { auditIds, present, changed, ledger, runtime } = this.#on;
    const call: AdminCall = {
      actor: caller.actor,
      auditId: await auditIds.next(),
      keyed: caller.keyed && { ...caller.keyed, ...deed, fingerprint: bodyFingerprint(body) },
      answer: present,
    };
    const finish = (change: SaleChange): SaleChange => {
      if (change.outcome === 'changed') {
        changed(change.sale.id);
        // Both have it. Unfinished, it would only be told to the gate once more.
        ledger
          .finishTask(call.auditId)
          .catch((error: unknown) => runtime.log.debug({ err: error }, 'a task could not be finished'));
      }
      return change;
    };
    if (call.keyed === null) return finish(await run(call));

    const { caller: who, actingFor, operation, subject, key } = call.keyed;
    const scope = JSON.stringify([who, actingFor, operation, subject, key]);
    // One after the other: each finds in the ledger what the one before it has left.
    const before = this.#running.get(scope) ?? Promise.resolve();
    const mine = before.then(
      () => run(call),
      () => run(call),
    );
    this.#running.set(scope, mine);
    try {
      return finish(await mine);
    } finally {
      if (this.#running.get(scope) === mine) this.#running.delete(scope);
    }
  }
}
