import type { Actor } from '../../model/actor.ts';
import type { ItemPatch, NewItem, NewSale, SalePatch, SaleRecord, SaleStamp } from '../../model/sale.ts';
import type { SaleSnapshot } from '../../model/snapshot.ts';
import type { AuditNote } from './audit.ts';
import type { KeyScope } from './keys.ts';
import type { Page } from './page.ts';

export interface SaleLedger {
  createSale(sale: NewSale & SaleIds, call: AdminCall): Promise<SaleChange>;
  patchSale(saleId: string, patch: SalePatch, version: number, call: AdminCall): Promise<SaleChange>;
  /** `add` may be negative: down to what is free in the ledger. */
  addStock(saleId: string, itemCode: string, add: number, call: AdminCall): Promise<SaleChange>;
  setPaused(saleId: string, paused: boolean, call: AdminCall): Promise<SaleChange>;
  closeSale(saleId: string, call: AdminCall): Promise<SaleChange>;
  /** Its orders can be stored at once; a gate that was built before does not know it. */
  addItem(saleId: string, item: NewItem & { id: string }, call: AdminCall): Promise<SaleChange>;
  /** `version` is the sale's, and rises. An order keeps the price that it was admitted with. */
  patchItem(saleId: string, itemCode: string, patch: ItemPatch, version: number, call: AdminCall): Promise<SaleChange>;
  /**
   * Only while its items have this epoch, and no order of it is stored, whatever has become of that order. An order of it that is still on its way is a fault
   * from then on (`item_unknown`): the pipe has to be empty before. Keys of calls about the sale stay bound (P5).
   */
  deleteSale(saleId: string, epoch: number, note: Pick<AuditNote, 'auditId' | 'by'>): Promise<SaleDeleted>;
  getSale(saleId: string): Promise<SaleRecord | null>;
  /** Whether these sales were changed, in one query for all of them. One that does not exist has no stamp. */
  saleStamps(saleIds: readonly string[]): Promise<Map<string, SaleStamp>>;
  /** The same, once no change of the sale is under way: for use after a change whose outcome is unknown. */
  saleAtRest(saleId: string): Promise<SaleRecord | null>;
  listSales(page: Page): Promise<SaleRecord[]>;
  /** Ids of sales that may still admit (not closed, window not over): those the gate must hold. */
  openSaleIds(): Promise<string[]>;
  /**
   * Raises the epoch of the sale's items, above that of a gate that may be in force (a ledger that was restored from a
   * backup is behind it), and reads the sale, in one transaction. What the gate holds is read afterwards, page by page and
   * outside of any transaction: nobody waits for it. `note` is written unless this is the first gate of the sale.
   */
  rebuildSnapshot(saleId: string, above?: number, note?: Rebuilding): Promise<SaleSnapshot | null>;
  /**
   * Changes of sales that were committed longer ago than so long and have not been confirmed by `finishTask`: whoever made
   * them may have died, or lost the answer, before the gate heard of them. Always empty where a failed commit is known to
   * have left nothing, and the gate dies with the process (SQLite).
   */
  unfinishedTasks(olderMs: number): Promise<GateTask[]>;
  finishTask(auditId: string): Promise<void>;
}

export interface SaleIds {
  id: string;
  itemIds: string[];
}

/** An administrative change: who makes it, its Idempotency-Key, and how its answer reads. */
export interface AdminCall {
  by: Actor;
  auditId: string;
  keyed: (KeyScope & { fingerprint: string }) | null;
  /** Writes the answer that a repeat of the key gets; called inside the transaction. */
  answer: (sale: SaleRecord) => string;
}

export type SaleChange =
  | { outcome: 'changed'; sale: SaleRecord; answer: string }
  | { outcome: 'replayed'; answer: string }
  | { outcome: 'not_found' | 'version_conflict' | 'insufficient_free' | 'sale_closed' | 'idempotency_key_reused' }
  | { outcome: 'invalid_request'; path: string; message: string };

/** `deleted`: and the gate has yet to hear of it, as of any other change. `rebuilt`: its items have another epoch. */
export type SaleDeleted = { readonly outcome: 'deleted' | 'not_found' | 'sale_has_orders' | 'rebuilt' };

/** The audit row of whoever has a gate rebuilt. */
export type Rebuilding = Pick<AuditNote, 'auditId' | 'by'>;

/** A change of a sale that the gate has yet to hear of. */
export interface GateTask {
  auditId: string;
  saleId: string;
}
