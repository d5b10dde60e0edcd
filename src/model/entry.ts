import type { Format } from './formats.ts';

/** Field and value, one after the other, as they stand in an entry of a stream. */
export type EntryFields = readonly string[];

/**
 * How messages of one kind stand in the entries of a channel's stream. The name of an entry's first field is the number of its
 * format: '' stands for 1. A field that contains messages is named by one letter and their number, `o12`; the pipe's scripts count by it
 * (src/pipe/redis-streams/lua/_messages.lua).
 */
export interface EntryCodec<M> {
  /** The numbers that this version reads. */
  readonly format: Format;
  /** The messages of an entry of this channel. Throws if no writer of ours can have written it. */
  decode(channel: string, fields: EntryFields): M[];
  /** An entry that contains this message alone. */
  encode(message: M): string[];
  /** Splits an entry that cannot be read into one per message. `rest`: the fields that could not be split; null if there are none. */
  split(fields: EntryFields): { messages: { id: string; fields: EntryFields }[]; rest: EntryFields | null };
  /** Tells messages apart, also across channels. Begins with numbers, joined by dashes, that grow with time. */
  idOf(message: M): string;
  /** Takes the place of a message that cannot be read, in a dead letter. `raw`: what was written. */
  unreadable(channel: string | null, id: string, epoch: number, raw: string): M;
}

const NUMBER = /^[1-9]\d{0,5}$/;

/** Whether a newer version has written this: then it is left to a worker of that version, and is no dead letter. */
export function isNewerEntry(fields: EntryFields, { newest }: Format): boolean {
  return NUMBER.test(fields[0] ?? '') && Number(fields[0]) > newest;
}
