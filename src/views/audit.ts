import type { AuditEntry, Ledger } from '../ledger/port.ts';
import type { SaleSeats } from '../model/sale-seats.ts';

export interface AuditViewDependencies {
  readonly ledger: Pick<Ledger, 'storedAmong'>;
  /** Null: there is no such sale. `has`: what the maps must have, if the sale has it. */
  seatsOf(saleId: string, has: (seats: SaleSeats) => boolean): Promise<SaleSeats | null>;
}

/** What the ledger has written about seats, which it knows by their numbers. */
interface SeatsDetail {
  item?: string;
  saleId?: string;
  seats?: number[];
  from?: number[];
  to?: number[];
  items?: { item: string; seats: number[] }[];
}

const ACTIONS = new Set(['order.place', 'order.move', 'sale.block_seats', 'sale.unblock_seats']);

/** Rows of the audit with the names of seats. Those of a sale that is gone keep the numbers. */
export class AuditView {
  readonly #on: AuditViewDependencies;

  constructor(dependencies: AuditViewDependencies) {
    this.#on = dependencies;
  }

  async named(entries: readonly AuditEntry[]): Promise<AuditEntry[]> {
    const about = entries
      .filter(({ action }) => ACTIONS.has(action))
      .map((entry) => ({ entry, detail: JSON.parse(entry.detail) as SeatsDetail }))
      .filter(({ detail }) => hasSeats(detail));
    if (about.length === 0) return [...entries];
    const moved = about.flatMap(({ entry }) => (entry.action === 'order.move' ? [idIn(entry.subject)] : []));
    const orders = moved.length === 0 ? null : await this.#on.ledger.storedAmong(moved);
    const named = new Map<AuditEntry, AuditEntry>();
    for (const { entry, detail } of about) {
      const id = idIn(entry.subject);
      const saleId = entry.subject.startsWith('sale:') ? id : (detail.saleId ?? orders?.get(id)?.saleId);
      const codes = detail.items?.map(({ item }) => item) ?? [detail.item!];
      const has = (seats: SaleSeats): boolean => codes.every((code) => seats.coded(code) !== null);
      const seats = saleId === undefined ? null : await this.#on.seatsOf(saleId, has);
      if (seats !== null && has(seats))
        named.set(entry, { ...entry, detail: JSON.stringify(namedDetail(detail, seats)) });
    }
    return entries.map((entry) => named.get(entry) ?? entry);
  }
}

function hasSeats({ seats, to, items }: SeatsDetail): boolean {
  return seats !== undefined || to !== undefined || items !== undefined;
}

function idIn(subject: string): string {
  return subject.slice(subject.indexOf(':') + 1);
}

function namedDetail(detail: SeatsDetail, sale: SaleSeats): object {
  const names = (code: string, seats: readonly number[]): string[] => sale.names(sale.coded(code)!.id, seats);
  const { item, seats, from, to, items } = detail;
  return {
    ...detail,
    ...(seats && { seats: names(item!, seats) }),
    ...(from && { from: names(item!, from) }),
    ...(to && { to: names(item!, to) }),
    ...(items && { items: items.map((one) => ({ ...one, seats: names(one.item, one.seats) })) }),
  };
}
