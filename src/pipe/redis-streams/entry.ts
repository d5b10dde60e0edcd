import { messageOf } from '../../base/errors.ts';
import type { EntryCodec, EntryFields } from '../../model/entry.ts';

/** An entry of a stream, as far as it could be read. */
export interface Entry<M> {
  readonly id: string;
  readonly messages: readonly M[];
  /** How often its message was tried before; 0 for an entry that comes as it was first written. */
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

/** The size of an entry in a batch. One without messages counts as 1, so that many of them do not make an endless batch. */
export function sizeOf<M>({ messages, unreadable }: Entry<M>): number {
  return Math.max(messages.length + unreadable.length, 1);
}

/** The last field of an entry that is tried again. Only the pipe writes it. */
const TRIES = 'tries';

/** Never throws: a message that cannot be read does not affect the others. */
export function readEntry<M>(codec: EntryCodec<M>, channel: string, id: string, written: EntryFields): Entry<M> {
  let fields = written;
  let tries = 0;
  if (fields.at(-2) === TRIES) {
    tries = Number(fields.at(-1)) || 0;
    fields = fields.slice(0, -2);
  }
  try {
    return { id, messages: codec.decode(channel, fields), tries, unreadable: [], lost: false };
  } catch (error) {
    return { id, tries, lost: false, ...readOneByOne(codec, channel, id, fields, messageOf(error)) };
  }
}

function readOneByOne<M>(
  codec: EntryCodec<M>,
  channel: string,
  id: string,
  fields: EntryFields,
  error: string,
): Pick<Entry<M>, 'messages' | 'unreadable'> {
  const { messages: parts, rest } = codec.split(fields);
  const messages: M[] = [];
  const unreadable: Unreadable[] = rest === null ? [] : [{ letterId: `entry-${id}`, fields: rest, error }];
  for (const { id: letterId, fields: alone } of parts) {
    try {
      messages.push(...codec.decode(channel, alone));
    } catch (own) {
      unreadable.push({ letterId, fields: alone, error: messageOf(own) });
    }
  }
  return { messages, unreadable };
}

/** The member of the sorted set for a message that is to be tried again; due.lua reads it. */
export function retryMember(fields: EntryFields, epoch: number, tries: number): string {
  return JSON.stringify([String(tries), String(epoch), fields]);
}
