import { messageOf } from '../../base/errors.ts';
import type { OrderMessage } from '../../model/order.ts';
import { decodeEntry, type EntryFields, encodeEntry, splitEntry } from '../../model/stream-entry.ts';

/** An entry of a stream, as far as it could be read. */
export interface Entry {
  readonly id: string;
  readonly messages: readonly OrderMessage[];
  /** How often its message was tried before; 0 for an entry that the gate wrote. */
  readonly tries: number;
  /** Parts that cannot be read; they become dead letters unchanged. */
  readonly unreadable: readonly Unreadable[];
  /** Another consumer has claimed it: it is not ours to hand over again. */
  lost: boolean;
}

export interface Unreadable {
  readonly letterId: string;
  readonly fields: EntryFields;
  readonly error: string;
}

/** The size of an entry in a batch. One without orders counts as 1, so that many of them do not make an endless batch. */
export function sizeOf({ messages, unreadable }: Entry): number {
  return Math.max(messages.length + unreadable.length, 1);
}

/** The last field of an entry that is tried again. The pipe writes it, the gate does not. */
const TRIES = 'tries';

/** Never throws: an order that cannot be read does not affect the others. */
export function readEntry(saleId: string, id: string, written: EntryFields): Entry {
  let fields = written;
  let tries = 0;
  if (fields.at(-2) === TRIES) {
    tries = Number(fields.at(-1)) || 0;
    fields = fields.slice(0, -2);
  }
  try {
    return { id, messages: decodeEntry(saleId, fields), tries, unreadable: [], lost: false };
  } catch (error) {
    return { id, tries, lost: false, ...readOneByOne(saleId, id, fields, messageOf(error)) };
  }
}

function readOneByOne(
  saleId: string,
  id: string,
  fields: EntryFields,
  error: string,
): Pick<Entry, 'messages' | 'unreadable'> {
  const { orders, rest } = splitEntry(fields);
  const messages: OrderMessage[] = [];
  const unreadable: Unreadable[] = rest === null ? [] : [{ letterId: `entry-${id}`, fields: rest, error }];
  for (const { orderId, fields: alone } of orders) {
    try {
      messages.push(...decodeEntry(saleId, alone));
    } catch (own) {
      unreadable.push({ letterId: orderId, fields: alone, error: messageOf(own) });
    }
  }
  return { messages, unreadable };
}

/** The member of the sorted set for a message that is to be tried again; due.lua reads it. */
export function retryMember(message: OrderMessage, epoch: number, tries: number): string {
  return JSON.stringify([String(tries), String(epoch), encodeEntry(message)]);
}
