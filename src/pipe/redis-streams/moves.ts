import { messageOf } from '../../base/errors.ts';
import type { Logger } from '../../base/logger.ts';
import type { EntryCodec } from '../../model/entry.ts';
import type { Undeliverable } from '../port.ts';
import { type Entry, retryMember } from './entry.ts';
import { writeLetter } from './letter.ts';
import type { Move, StreamName } from './store.ts';

export interface RetryPolicy {
  /** After so many failed tries an undeliverable message becomes a dead letter. */
  readonly triesMax: number;
  /** Time until the second try; it doubles with each further try. */
  readonly retryMs: number;
}

/** Undecided messages of a batch go back into the stream later, or to the dead letters. */
export function movesOf<M>(
  codec: EntryCodec<M>,
  { channel, epoch }: StreamName,
  entries: readonly Entry<M>[],
  undeliverable: readonly Undeliverable<M>[],
  { triesMax, retryMs }: RetryPolicy,
  log: Logger,
): Move[] {
  const moves: Move[] = [];
  for (const [at, { unreadable, id }] of entries.entries()) {
    for (const { letterId, fields, error } of unreadable) {
      log.error({ channel, epoch, entry: id, letterId, error }, 'what stands in the pipe cannot be read');
      moves.push({ entry: at, to: 'dead', letterId, letter: writeLetter(epoch, 1, error, fields) });
    }
  }
  if (undeliverable.length === 0) return moves;

  const entryOf = new Map<M | string, number>();
  for (const [at, { messages }] of entries.entries()) {
    for (const message of messages) entryOf.set(message, at).set(codec.idOf(message), at);
  }
  for (const { message, error } of undeliverable) {
    const id = codec.idOf(message);
    const at = entryOf.get(message) ?? entryOf.get(id);
    if (at === undefined) {
      log.error({ channel, id }, 'undeliverable, but not in this batch');
      continue;
    }
    const tries = entries[at]!.tries + 1;
    if (tries < triesMax) {
      const inMs = retryMs * 2 ** (tries - 1);
      log.warn({ err: error, channel, id, tries, inMs }, 'undeliverable: to be tried again');
      moves.push({ entry: at, to: 'retry', inMs, member: retryMember(codec.encode(message), epoch, tries) });
    } else {
      log.error({ err: error, channel, id, tries }, 'undeliverable: a dead letter');
      const letter = writeLetter(epoch, tries, messageOf(error), codec.encode(message));
      moves.push({ entry: at, to: 'dead', letterId: id, letter });
    }
  }
  return moves;
}
