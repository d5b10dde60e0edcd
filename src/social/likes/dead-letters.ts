import type { IdSequence } from '../../base/ids.ts';
import type { Actor, AuditLedger, AuditNote } from '../../ledger/port.ts';
import { type LikeEvent, shardOfChannel } from '../../model/like.ts';
import { isReadable, letterName, letterNamed, olderLetter } from '../../model/like-letter.ts';
import type { DeadLetter, DeadLetters } from '../../pipe/port.ts';
import type { CountedLikes } from './counted.ts';

export interface DecideLikeLettersDependencies {
  readonly likes: Pick<CountedLikes, 'giveUp' | 'olderArrived' | 'reopen'>;
  readonly ledger: AuditLedger;
  readonly auditIds: IdSequence;
  /** A failure of the ledger here is known everywhere. */
  watched<T>(work: Promise<T>): Promise<T>;
}

/** The letter stays: this older one of the same pair has to be decided first. */
export interface OlderLetter {
  readonly older: string;
}

/** Letters with one time, epoch and number: there are eight shards. */
const SAME_MAX = 16;

/** What an operator decides about likes that the ledger could not take. Until then Redis shows them, and no count of theirs is exact. */
export class DecideLikeLetters {
  readonly #letters: DeadLetters<LikeEvent>;
  readonly #on: DecideLikeLettersDependencies;

  constructor(letters: DeadLetters<LikeEvent>, dependencies: DecideLikeLettersDependencies) {
    this.#letters = letters;
    this.#on = dependencies;
  }

  /** Puts it back into the pipe. False: there is none. `name`: see model/like-letter.ts. */
  async retry(name: string, by: Actor): Promise<boolean> {
    const letter = await this.#named(name);
    if (letter === null) return false;
    await this.#note('retry', letter, by);
    return await this.#letters.retry(letter.id);
  }

  /**
   * Drops the like for good: afterwards the pair and the count are those of the ledger. False: there is none. Refused while an older change
   * of the same pair is a letter: if that were stored later, the pair would be what it was before the change that is dropped here, and
   * nobody would expect it.
   */
  async end(name: string, by: Actor): Promise<boolean | OlderLetter> {
    const letter = await this.#named(name);
    if (letter === null) return false;
    const older = await this.#older(letter);
    if (older !== null) return { older };
    await this.#note('delete', letter, by);
    // First Redis, then the letter: if this process dies in between, the letter is deleted once more.
    if (isReadable(letter.message)) await this.#on.likes.giveUp(letter.message);
    else if (await this.#isLast(letter))
      await this.#on.likes.reopen(shardOfChannel(letter.channel!), letter.message.epoch);
    await this.#letters.drop(letter.id);
    return true;
  }

  async #older({ message, channel }: DeadLetter<LikeEvent>): Promise<string | null> {
    if (!isReadable(message) || channel === null) return null;
    // What is on its way becomes a row or a letter first.
    await this.#on.likes.olderArrived(message);
    const older = olderLetter(message, await this.#letters.idsIn(channel));
    return older === null ? null : letterName(older, channel);
  }

  async #named(name: string): Promise<DeadLetter<LikeEvent> | null> {
    const named = letterNamed(name);
    if (named === null) return null;
    if ('id' in named) return await this.#letters.get(named.id);
    const few = await this.#letters.list(SAME_MAX, named.above);
    return few.find(({ id, channel }) => letterName(id, channel) === name) ?? null;
  }

  /**
   * Nobody knows which likes an unreadable entry had: only opening their shard anew makes its counts exact. That ends the epoch, and with
   * it every other letter of the shard, so it waits for the last one.
   */
  async #isLast({ id, channel }: DeadLetter<LikeEvent>): Promise<boolean> {
    if (channel === null) return false;
    const all = await this.#letters.idsIn(channel);
    return all.every((other) => other === id);
  }

  /** Written first, since Redis is no part of the ledger: a row too many says that somebody tried, one too few would say nothing. */
  async #note(action: 'retry' | 'delete', letter: DeadLetter<LikeEvent>, by: Actor): Promise<void> {
    const { ledger, auditIds, watched } = this.#on;
    const { subject, user: buyer, liked } = letter.message;
    const error = letter.error.slice(0, 500);
    const note: Omit<AuditNote, 'auditId'> = isReadable(letter.message)
      ? { by, action: `dead_letter.${action}`, subject, detail: { buyer, liked, error } }
      : { by, action: `dead_letter.${action}`, subject: `dead_letter:${letter.id.slice(0, 100)}`, detail: { error } };
    await watched(ledger.note({ auditId: await auditIds.next(), ...note }));
  }
}
