import type { OrderMessage } from './order.ts';

/**
 * How a batch of admitted orders stands in a stream: one entry, whose fields the gate's script writes and the pipe reads
 * (docs/internals/distributed.md). Names hold no control characters, so that a line feed separates.
 */

/** Field and value, one after the other, as they stand in an entry. */
export type EntryFields = readonly string[];

export function encodeEntry(message: OrderMessage): string[] {
  const { orderId, itemId, itemCode, buyer, slots, price, payWithinSeconds, epoch, key, fingerprint, from } = message;
  return [
    '',
    [epoch, payWithinSeconds, from ?? ''].join('\n'),
    'i1',
    [itemId, itemCode, price.amount, price.currency].join('\n'),
    orderId,
    ['1', slots.join('.'), buyer, key ?? '', fingerprint].join('\n'),
  ];
}

/** Throws on what no gate has written. */
export function decodeEntry(saleId: string, fields: EntryFields): OrderMessage[] {
  if (fields[0] !== '') throw new Error('an entry of the stream has no header');
  const [epoch, payWithin, from] = partsOf(fields[1]!, 3);
  const items = new Map<string, Pick<OrderMessage, 'itemId' | 'itemCode' | 'price'>>();
  const messages: OrderMessage[] = [];
  for (let at = 2; at < fields.length; at += 2) {
    const field = fields[at]!;
    if (field.startsWith('i')) {
      const [itemId, itemCode, amount, currency] = partsOf(fields[at + 1]!, 4);
      items.set(field.slice(1), { itemId, itemCode, price: { amount: Number(amount), currency } });
      continue;
    }
    const [number, slots, buyer, key, fingerprint] = partsOf(fields[at + 1]!, 5);
    const item = items.get(number);
    if (item === undefined) throw new Error(`order ${field} is of item ${number}, which its entry does not have`);
    const taken = slots.split('.').map(Number);
    messages.push({
      orderId: field,
      saleId,
      ...item,
      buyer,
      quantity: taken.length,
      slots: taken,
      payWithinSeconds: Number(payWithin),
      epoch: Number(epoch),
      key: key === '' ? null : key,
      fingerprint,
      ...(from === '' ? {} : { from }),
    });
  }
  return messages;
}

function partsOf(value: string, count: 3): [string, string, string];
function partsOf(value: string, count: 4): [string, string, string, string];
function partsOf(value: string, count: 5): [string, string, string, string, string];
function partsOf(value: string, count: number): string[] {
  const parts = value.split('\n');
  if (parts.length !== count) throw new Error(`an entry of the stream has ${parts.length} parts instead of ${count}`);
  return parts;
}
