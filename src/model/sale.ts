import type { Money } from './money.ts';
import type { SeatMap } from './seat-map.ts';

/** What a sale or an item says about itself. Nothing depends on it. */
export interface Described {
  description?: string;
  /** An https URL. */
  image?: string;
  metadata?: Record<string, string>;
}

/** A sale as the ledger stores it. Times are milliseconds since 1970, durations whole seconds. */
export interface SaleRecord extends Described {
  id: string;
  name: string;
  opensAtMs: number;
  closesAtMs: number;
  perBuyer: number;
  payWithinSeconds: number;
  paused: boolean;
  closed: boolean;
  version: number;
  createdAtMs: number;
  /** The ledger's clock at the time of reading. Whether the window is over is judged by it, not by the reader's clock. */
  readAtMs: number;
  /** When the event begins that it sells tickets for. */
  startsAtMs?: number;
  venue?: string;
  /** The highest epoch whose gates do not know the items as they are: an item was added, repriced or taken off sale since. */
  itemsEpoch: number;
  items: ItemRecord[];
}

export type ItemKind = 'counted' | 'seated';

/** `free` in the ledger is total - reserved - sold - blocked; what the pipe holds is known to the gate only. */
export interface ItemRecord extends Described {
  id: string;
  code: string;
  name: string;
  price: Money;
  kind: ItemKind;
  /** False: nobody can order it now. */
  onSale: boolean;
  /** Of a seated item: how many seats its map has. */
  total: number;
  reserved: number;
  sold: number;
  blocked: number;
  /** Raised by every rebuild of the gate; an admission of an older epoch is refused by the ledger. */
  epoch: number;
  /** Raised by every transaction that moves units of this item: rev order is commit order. */
  rev: number;
}

export type SaleState = 'scheduled' | 'open' | 'sold_out' | 'paused' | 'closed';

/** The part of a sale that decides whether it sells now. */
export interface SaleWindow {
  opensAtMs: number;
  closesAtMs: number;
  paused: boolean;
  closed: boolean;
}

/** Why the window refuses an order at `nowMs`, or null. The window is judged at admission only. */
export function windowRefusal(
  window: SaleWindow,
  nowMs: number,
): 'sale_not_open' | 'sale_closed' | 'sale_paused' | null {
  if (window.closed) return 'sale_closed';
  if (nowMs < window.opensAtMs) return 'sale_not_open';
  if (nowMs >= window.closesAtMs) return 'sale_closed';
  if (window.paused) return 'sale_paused';
  return null;
}

/** Whether the sale could admit an order, now or later, when it was read. Only such a sale needs a gate. */
export function mayAdmit({ closed, closesAtMs, readAtMs }: SaleRecord): boolean {
  return !closed && closesAtMs > readAtMs;
}

/** What a person is shown. A paused sale says so even before it opens: it will not open by itself. */
export function saleState(window: SaleWindow, freeUnits: number, nowMs: number): SaleState {
  if (window.closed || nowMs >= window.closesAtMs) return 'closed';
  if (window.paused) return 'paused';
  if (nowMs < window.opensAtMs) return 'scheduled';
  return freeUnits > 0 ? 'open' : 'sold_out';
}

/** Changes whenever the sale does: `rev` is the sum of its items' revs, `epoch` the highest of theirs. */
export interface SaleStamp {
  epoch: number;
  rev: number;
  version: number;
}

export function stampOf({ version, items }: Pick<SaleRecord, 'version' | 'items'>): SaleStamp {
  const epoch = items.reduce((highest, item) => Math.max(highest, item.epoch), 0);
  return { epoch, rev: items.reduce((sum, item) => sum + item.rev, 0), version };
}

/** When the state changes by time alone, or null. */
export function nextWindowChangeMs(window: SaleWindow, nowMs: number): number | null {
  if (window.closed || nowMs >= window.closesAtMs) return null;
  return nowMs < window.opensAtMs ? window.opensAtMs : window.closesAtMs;
}

export function ledgerFree(item: Pick<ItemRecord, 'total' | 'reserved' | 'sold' | 'blocked'>): number {
  return item.total - item.reserved - item.sold - item.blocked;
}

export const BOUNDS = {
  nameLengthMax: 200,
  itemsMax: 200,
  stockMax: 1_000_000,
  perBuyerMax: 100,
  perBuyerDefault: 1,
  payWithinSecondsMax: 86_400,
  payWithinSecondsDefault: 900,
  quantityMax: 100,
  buyerLengthMax: 128,
  /** The longest reference that every database stores whole. */
  textBytesMax: 512,
  descriptionLengthMax: 4000,
  imageLengthMax: 2048,
  venueLengthMax: 200,
  metadataNameLengthMax: 64,
  /** As JSON in UTF-8: what is stored and sent. */
  metadataBytesMax: 4096,
} as const;

export interface NewItem extends Described {
  code: string;
  name: string;
  price: Money;
  /** Of a seated item: the size of its map. */
  stock: number;
  /** Absent: the item is counted. */
  seats?: SeatMap;
}

export interface NewSale extends Described {
  name: string;
  opensAtMs: number;
  closesAtMs: number;
  perBuyer: number;
  payWithinSeconds: number;
  startsAtMs?: number;
  venue?: string;
  items: NewItem[];
}

/** Null takes a text away. */
export type DescribedPatch = { [Text in keyof Described]: Described[Text] | null };

export interface SalePatch extends DescribedPatch {
  name?: string;
  opensAtMs?: number;
  closesAtMs?: number;
  perBuyer?: number;
  payWithinSeconds?: number;
  startsAtMs?: number | null;
  venue?: string | null;
}

export interface ItemPatch extends DescribedPatch {
  name?: string;
  price?: Money;
  onSale?: boolean;
}

/** One fault in a request, and where it is (a JSON pointer). */
export interface Fault {
  path: string;
  message: string;
}

/** Rules between fields; what a single field may be is the schema's business (contract/schemas.ts). */
export function newSaleFaults(sale: Pick<NewSale, 'opensAtMs' | 'closesAtMs' | 'items'> & Described): Fault[] {
  const faults = [...windowFaults(sale.opensAtMs, sale.closesAtMs), ...describedFaults(sale)];
  const seen = new Set<string>();
  for (const [index, item] of sale.items.entries()) {
    if (seen.has(item.code)) {
      faults.push({ path: `/items/${index}/code`, message: `another item has the code "${item.code}" already` });
    }
    seen.add(item.code);
    faults.push(...describedFaults(item, `/items/${index}`));
  }
  return faults;
}

/** What no pattern can say of texts. `path`: where they are. */
export function describedFaults({ image, metadata }: DescribedPatch, path = ''): Fault[] {
  const faults: Fault[] = [];
  if (typeof image === 'string' && !URL.canParse(image)) {
    faults.push({ path: `${path}/image`, message: 'must be an https URL' });
  }
  if (metadata && Buffer.byteLength(JSON.stringify(metadata)) > BOUNDS.metadataBytesMax) {
    const message = `must have at most ${BOUNDS.metadataBytesMax} bytes as JSON`;
    faults.push({ path: `${path}/metadata`, message });
  }
  return faults;
}

/** Whether a gate that was built for `before` would sell the item as it is now. */
export function isSoldAs(
  before: Pick<ItemRecord, 'price' | 'onSale'>,
  now: Pick<ItemRecord, 'price' | 'onSale'>,
): boolean {
  const { amount, currency } = before.price;
  return amount === now.price.amount && currency === now.price.currency && before.onSale === now.onSale;
}

export function windowFaults(opensAtMs: number, closesAtMs: number): Fault[] {
  return closesAtMs > opensAtMs ? [] : [{ path: '/closesAt', message: 'must be after opensAt' }];
}
