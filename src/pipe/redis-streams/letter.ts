import type { OrderMessage } from '../../model/order.ts';
import { decodeEntry, type EntryFields } from '../../model/stream-entry.ts';
import type { DeadLetter } from '../port.ts';

/** The stored form in Redis; letter-retry.lua reads it too. */
interface StoredLetter {
  diedAtMs: number;
  attempts: number;
  error: string;
  epoch: string;
  fields: EntryFields;
}

/** Without its opening brace: decide.lua adds the time of death first. */
export function writeLetter(epoch: number, attempts: number, error: string, fields: EntryFields): string {
  const letter: Omit<StoredLetter, 'diedAtMs'> = { attempts, error, epoch: String(epoch), fields };
  return JSON.stringify(letter).slice(1);
}

export function readLetter(saleId: string, letterId: string, text: string): DeadLetter {
  const { diedAtMs, attempts, error, epoch, fields } = JSON.parse(text) as StoredLetter;
  return { message: messageIn(saleId, letterId, Number(epoch), fields), error, attempts, diedAtMs };
}

/** A message from a broker that no relay of ours wrote. */
interface ForeignLetter {
  diedAtMs: number;
  attempts: number;
  error: string;
  body: string;
}

/** Enough to recognize it. */
const BODY_MAX = 4096;

export function writeForeign(letter: ForeignLetter): string {
  return JSON.stringify({ ...letter, body: letter.body.slice(0, BODY_MAX) });
}

export function readForeign(letterId: string, text: string): DeadLetter & { body: string } {
  const { diedAtMs, attempts, error, body } = JSON.parse(text) as ForeignLetter;
  return { message: unreadable('', letterId, 0, body), error, attempts, diedAtMs, body };
}

function messageIn(saleId: string, letterId: string, epoch: number, fields: EntryFields): OrderMessage {
  try {
    const messages = decodeEntry(saleId, fields);
    if (messages.length === 1) return messages[0]!;
  } catch {
    // An entry that could not be read: show it as it is.
  }
  return unreadable(saleId, letterId, epoch, JSON.stringify(fields));
}

/** `all`: the raw content, for the operator. */
function unreadable(saleId: string, letterId: string, epoch: number, all: string): OrderMessage {
  return {
    orderId: letterId,
    saleId,
    itemId: '',
    itemCode: '',
    buyer: '',
    quantity: 0,
    slots: [],
    price: { amount: 0, currency: '' },
    payWithinSeconds: 0,
    epoch,
    key: null,
    fingerprint: all,
  };
}

/** Newest first. Ids are numbers in text; a letter without an order (an entry nobody could read) comes last. */
export function compareNewestFirst(one: string, other: string): number {
  const [a, b] = [rank(one), rank(other)];
  if (a !== b) return a > b ? -1 : 1;
  return one < other ? 1 : one > other ? -1 : 0;
}

function rank(id: string): bigint {
  return /^\d+$/.test(id) ? BigInt(id) : -1n;
}
