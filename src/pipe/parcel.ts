import { crc32 } from 'node:zlib';
import { CHANNEL_PATTERN, channelWritten, saleOf, writtenName } from '../model/channel.ts';
import type { EntryFields } from '../model/entry.ts';
import { PARCEL } from '../model/formats.ts';

/** What goes through a broker: a copy of one entry of a channel's stream, or a probe. */
export interface Parcel {
  readonly channel: string;
  readonly epoch: number;
  /** The entry's id in the stream: `<ms>-<number>`. */
  readonly entryId: string;
  /**
   * The entry as it is in the stream. Null: a probe. When a probe arrives, every parcel of this stream up to `entryId` was carried
   * before it: entries that are still in the stream then were lost by the broker.
   */
  readonly fields: EntryFields | null;
}

const ENTRY_ID = /^\d+-\d+$/;
const SALE_ID = /^\d+$/;

/** Orders keep the number that every worker reads (docs/internals/formats.md, rule 3). */
const OF_SALES = 2;
const OF_CHANNELS = 3;

export function writeParcel({ channel, epoch, entryId, fields }: Parcel): string {
  const format = saleOf(channel) === null ? OF_CHANNELS : OF_SALES;
  return JSON.stringify([format, writtenName(channel), epoch, entryId, fields]);
}

/** Null: no parcel of ours, or one in a format that this version does not read. */
export function readParcel(body: string): Parcel | null {
  const parts = partsOf(body);
  if (parts === null || parts.length !== 5) return null;
  const [format, name, epoch, entryId, fields] = parts as [number, string, ...unknown[]];
  if (format < PARCEL.oldest || format > PARCEL.newest) return null;
  if (format === OF_SALES ? !SALE_ID.test(name) : SALE_ID.test(name)) return null;
  if (!Number.isSafeInteger(epoch) || (epoch as number) < 0) return null;
  if (typeof entryId !== 'string' || !ENTRY_ID.test(entryId)) return null;
  if (fields !== null && !isFields(fields)) return null;
  return { channel: channelWritten(name), epoch: epoch as number, entryId, fields };
}

/** Whether a newer version has written this. Its entry is in the stream, from which a worker that can read it takes it. */
export function isNewerParcel(body: string): boolean {
  const parts = partsOf(body);
  return parts !== null && (parts[0] as number) > PARCEL.newest;
}

/** Every format begins with its number and the id of a sale or the name of a channel. Null: this does not. */
function partsOf(body: string): unknown[] | null {
  try {
    const parts: unknown = JSON.parse(body);
    if (!Array.isArray(parts) || !Number.isSafeInteger(parts[0]) || typeof parts[1] !== 'string') return null;
    return SALE_ID.test(parts[1]) || CHANNEL_PATTERN.test(parts[1]) ? parts : null;
  } catch {
    return null;
  }
}

function isFields(fields: unknown): fields is EntryFields {
  return (
    Array.isArray(fields) &&
    fields.length > 0 &&
    fields.length % 2 === 0 &&
    fields.every((field) => typeof field === 'string')
  );
}

/** Every process must compute the same partition. */
export function partitionOf(channel: string, partitions: number): number {
  return crc32(writtenName(channel)) % partitions;
}
