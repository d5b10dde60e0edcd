import { InvariantError, unavailable } from '../../base/errors.ts';
import type { OrderMessage } from '../../model/order.ts';
import { OUTCOMES, type Outcome } from '../../model/outcome.ts';
import { NotAdmittedError, type Refused } from '../port.ts';
import type { Admission, ReadOn } from './admissions.ts';

/** What the first line of a script's reply says of the sale. */
export interface SaleFacts {
  readonly payWithinSeconds: number;
  readonly opensAtMs: number;
  readonly closesAtMs: number;
  readonly perBuyer: number;
}

export type ItemFacts = Pick<OrderMessage, 'itemId' | 'itemCode' | 'price'>;

const WORDS = new Map<number, Outcome>(
  (Object.entries(OUTCOMES) as [Outcome, number][]).map(([outcome, number]) => [number, outcome]),
);

export function saleFactsOf(line: string): SaleFacts {
  const [payWithinSeconds, opensAtMs, closesAtMs, perBuyer] = line.split(' ').map(Number) as [
    number,
    number,
    number,
    number,
  ];
  return { payWithinSeconds, opensAtMs, closesAtMs, perBuyer };
}

/** `<item number> <item id> <amount> <currency> <code>`, or nothing. A code may have blanks. */
export function itemFactsOf(line: string): ItemFacts | null {
  if (line === '') return null;
  const [, itemId, amount, currency, ...code] = line.split(' ');
  return { itemId: itemId!, itemCode: code.join(' '), price: { amount: Number(amount), currency: currency! } };
}

export function admit(
  { request, resolve }: Admission,
  item: ItemFacts,
  slots: number[],
  seats: number[] | null,
  { payWithinSeconds }: SaleFacts,
  { epoch, process }: ReadOn,
): void {
  const message: OrderMessage = {
    orderId: request.orderId,
    saleId: request.saleId,
    itemId: item.itemId,
    itemCode: item.itemCode,
    buyer: request.buyer,
    quantity: slots.length,
    slots,
    price: item.price,
    payWithinSeconds,
    epoch,
    key: request.key,
    fingerprint: request.fingerprint,
  };
  if (seats !== null) message.seats = seats;
  if (process !== '') message.from = process;
  if (request.placedBy !== undefined) message.placedBy = request.placedBy;
  resolve({ outcome: 'admitted', message });
}

/** `line`: the number of an outcome, and what else the script says of it. */
export function refuse(
  { request, resolve, reject }: Admission,
  line: string,
  sale: SaleFacts,
  { certain }: ReadOn,
): void {
  const { opensAtMs, closesAtMs, perBuyer } = sale;
  const [number, ...more] = line.split(' ');
  const outcome = WORDS.get(Number(number));
  switch (outcome) {
    case 'replayed':
      resolve(refused({ outcome, orderId: more[0]! }, certain));
      break;
    case 'sale_not_open':
    case 'sale_closed':
    case 'sale_paused':
      resolve(refused({ outcome, opensAtMs, closesAtMs }, certain));
      break;
    case 'limit_reached':
      resolve(refused({ outcome, orderIds: more, perBuyer }, certain));
      break;
    case 'seat_taken':
      resolve(refused({ outcome, seats: more[0]!.split('.').map(Number) }, certain));
      break;
    case 'overloaded': {
      const reason = 'too many orders are on their way to the ledger';
      reject(certain ? new NotAdmittedError('overloaded', reason) : unavailable(reason));
      break;
    }
    case 'idempotency_key_reused':
    case 'not_found':
    case 'sold_out':
    case 'not_together':
      resolve(refused({ outcome }, certain));
      break;
    default:
      reject(new InvariantError(`order ${request.orderId}: the gate says ${line}`));
  }
}

function refused(verdict: Refused, certain: boolean): Refused {
  if (!certain) verdict.uncertain = true;
  return verdict;
}
