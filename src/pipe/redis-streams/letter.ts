import type { EntryCodec, EntryFields } from '../../model/entry.ts';
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

export function readLetter<M>(codec: EntryCodec<M>, channel: string, id: string, text: string): DeadLetter<M> {
  const { diedAtMs, attempts, error, epoch, fields } = JSON.parse(text) as StoredLetter;
  return { id, channel, message: messageIn(codec, channel, id, Number(epoch), fields), error, attempts, diedAtMs };
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

export function readForeign<M>(codec: EntryCodec<M>, id: string, text: string): DeadLetter<M> & { body: string } {
  const { diedAtMs, attempts, error, body } = JSON.parse(text) as ForeignLetter;
  return { id, channel: null, message: codec.unreadable(null, id, 0, body), error, attempts, diedAtMs, body };
}

function messageIn<M>(codec: EntryCodec<M>, channel: string, id: string, epoch: number, fields: EntryFields): M {
  try {
    const messages = codec.decode(channel, fields);
    if (messages.length === 1) return messages[0]!;
  } catch {
    // An entry that could not be read: show it as it is.
  }
  return codec.unreadable(channel, id, epoch, JSON.stringify(fields));
}

/**
 * Newest first, by the numbers that ids begin with: an order's id, a like's time, epoch and number. A letter without a message (an entry
 * nobody could read) comes last.
 */
export function compareNewestFirst(one: string, other: string): number {
  const [a, b] = [numbersOf(one), numbersOf(other)];
  for (let at = 0; at < a.length || at < b.length; at++) {
    const [mine, its] = [a[at] ?? -1n, b[at] ?? -1n];
    if (mine !== its) return mine > its ? -1 : 1;
  }
  return one < other ? 1 : one > other ? -1 : 0;
}

function numbersOf(id: string): bigint[] {
  return (/^\d+(?:-\d+)*/.exec(id)?.[0].split('-') ?? []).map(BigInt);
}
