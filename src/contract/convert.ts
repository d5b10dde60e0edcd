import { BOUNDS, type Fault, type NewSale, newSaleFaults, type SalePatch } from '../model/sale.ts';
import type { NewSaleBody, SalePatchBody } from './schemas.ts';
import { isFaults, withSeats } from './seats.ts';

/** Converts validated bodies to what the engine takes. Checks rules between fields. */
export function newSaleOf(body: NewSaleBody): NewSale | Fault[] {
  const items = withSeats(body.items);
  if (isFaults(items)) return items;
  const sale = {
    name: body.name,
    opensAtMs: Date.parse(body.opensAt),
    closesAtMs: Date.parse(body.closesAt),
    perBuyer: body.perBuyer ?? BOUNDS.perBuyerDefault,
    payWithinSeconds: body.payWithin ?? BOUNDS.payWithinSecondsDefault,
    items,
  };
  const faults = newSaleFaults(sale);
  return faults.length > 0 ? faults : sale;
}

export function salePatchOf({ name, opensAt, closesAt, perBuyer, payWithin }: SalePatchBody): SalePatch {
  return {
    ...(name !== undefined && { name }),
    ...(opensAt !== undefined && { opensAtMs: Date.parse(opensAt) }),
    ...(closesAt !== undefined && { closesAtMs: Date.parse(closesAt) }),
    ...(perBuyer !== undefined && { perBuyer }),
    ...(payWithin !== undefined && { payWithinSeconds: payWithin }),
  };
}
