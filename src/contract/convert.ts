import {
  BOUNDS,
  type DescribedPatch,
  describedFaults,
  type Fault,
  type ItemPatch,
  type NewItem,
  type NewSale,
  newSaleFaults,
  type SalePatch,
} from '../model/sale.ts';
import type { ItemPatchBody, NewItemBody, NewSaleBody, SalePatchBody } from './schemas.ts';
import { isFaults, unitsFaults, withSeats, withUnits } from './seats.ts';

/** Converts validated bodies to what the engine takes. Checks rules between fields. */
export function newSaleOf(body: NewSaleBody): NewSale | Fault[] {
  const { name, opensAt, closesAt, perBuyer, payWithin, startsAt, venue, description, image, metadata } = body;
  const items = withSeats(body.items);
  if (isFaults(items)) return items;
  return faultless(
    {
      name,
      opensAtMs: Date.parse(opensAt),
      closesAtMs: Date.parse(closesAt),
      perBuyer: perBuyer ?? BOUNDS.perBuyerDefault,
      payWithinSeconds: payWithin ?? BOUNDS.payWithinSecondsDefault,
      ...(startsAt !== undefined && { startsAtMs: Date.parse(startsAt) }),
      ...given({ venue, description, image, metadata }),
      items,
    },
    newSaleFaults,
  );
}

export function newItemOf(body: NewItemBody): NewItem | Fault[] {
  const faults = unitsFaults(body, '');
  return faults.length > 0 ? faults : faultless(withUnits(body), describedFaults);
}

export function salePatchOf(body: SalePatchBody): SalePatch | Fault[] {
  const { name, opensAt, closesAt, perBuyer, payWithin, startsAt, venue, description, image, metadata } = body;
  return faultless(
    {
      ...given({ name, perBuyer, payWithinSeconds: payWithin, venue, description, image, metadata }),
      ...(opensAt !== undefined && { opensAtMs: Date.parse(opensAt) }),
      ...(closesAt !== undefined && { closesAtMs: Date.parse(closesAt) }),
      ...(startsAt !== undefined && { startsAtMs: startsAt === null ? null : Date.parse(startsAt) }),
    },
    describedFaults,
  );
}

export function itemPatchOf({ version: _, ...patch }: ItemPatchBody): ItemPatch | Fault[] {
  return faultless(patch, describedFaults);
}

function faultless<T extends DescribedPatch>(converted: T, faultsOf: (of: T) => Fault[]): T | Fault[] {
  const faults = faultsOf(converted);
  return faults.length > 0 ? faults : converted;
}

type Given<T> = { [K in keyof T]?: Exclude<T[K], undefined> };

/** Without what was left out. */
function given<T extends object>(fields: T): Given<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Given<T>;
}
