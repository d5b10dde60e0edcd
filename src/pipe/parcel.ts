import { crc32 } from 'node:zlib';
import type { EntryFields } from '../model/stream-entry.ts';

/** What goes through a broker: a copy of one entry of a sale's stream, or a question. */
export interface Parcel {
  readonly saleId: string;
  readonly epoch: number;
  /** The entry's id in the stream: `<ms>-<number>`. */
  readonly entryId: string;
  /**
   * The entry as it stands in the stream. Null: a probe. When it arrives, everything of this stream up to `entryId` has been
   * carried before it; what is still in the stream then, the broker has lost.
   */
  readonly fields: EntryFields | null;
}

/** 2: the fields of an entry hold orders that are alike together. */
const VERSION = 2;
const ENTRY_ID = /^\d+-\d+$/;
const SALE_ID = /^\d+$/;

export function writeParcel({ saleId, epoch, entryId, fields }: Parcel): string {
  return JSON.stringify([VERSION, saleId, epoch, entryId, fields]);
}

/** Null: no parcel of ours, or of a version that we do not know. */
export function readParcel(body: string): Parcel | null {
  let parts: unknown;
  try {
    parts = JSON.parse(body);
  } catch {
    return null;
  }
  if (!Array.isArray(parts) || parts.length !== 5 || parts[0] !== VERSION) return null;
  const [, saleId, epoch, entryId, fields] = parts as unknown[];
  if (typeof saleId !== 'string' || !SALE_ID.test(saleId)) return null;
  if (!Number.isSafeInteger(epoch) || (epoch as number) < 0) return null;
  if (typeof entryId !== 'string' || !ENTRY_ID.test(entryId)) return null;
  if (fields !== null && !isFields(fields)) return null;
  return { saleId, epoch: epoch as number, entryId, fields };
}

function isFields(fields: unknown): fields is EntryFields {
  return (
    Array.isArray(fields) &&
    fields.length > 0 &&
    fields.length % 2 === 0 &&
    fields.every((field) => typeof field === 'string')
  );
}

/** Every process must come to the same. */
export function partitionOf(saleId: string, partitions: number): number {
  return crc32(saleId) % partitions;
}
