import type { Clock } from '../../base/clock.ts';
import { readParcel } from '../parcel.ts';
import type { DeadLetter, DeadLetters } from '../port.ts';
import { compareNewestFirst, readForeign, readLetter, writeForeign } from './letter.ts';
import type { StreamStore } from './store.ts';

/** The prefix of the ids of foreign messages: a broker brought them, and no relay of ours wrote them. */
const FOREIGN = 'foreign-';

/** The dead letters of all sales, whichever pipe they were in. Every sale is searched: letters are few, and calls are rare. */
export class RedisDeadLetters implements DeadLetters {
  readonly #store: StreamStore;
  readonly #clock: Clock;

  constructor(store: StreamStore, clock: Clock) {
    this.#store = store;
    this.#clock = clock;
  }

  async list(limit: number, before: string | null): Promise<DeadLetter[]> {
    const ours = await this.#store.letterIds();
    const foreign = (await this.#store.foreignIds()).map((letterId) => ({ saleId: null, letterId }));
    const page = [...ours, ...foreign]
      .filter(({ letterId }) => before === null || compareNewestFirst(before, letterId) < 0)
      .sort((one, other) => compareNewestFirst(one.letterId, other.letterId))
      .slice(0, limit);
    // A letter may have been dropped since.
    const letters = await Promise.all(page.map(({ saleId, letterId }) => this.#read(saleId, letterId)));
    return letters.filter((letter) => letter !== null);
  }

  /** `saleId`: null for a foreign message. */
  async #read(saleId: string | null, letterId: string): Promise<DeadLetter | null> {
    if (saleId === null) return await this.#foreign(letterId);
    const text = await this.#store.letter(saleId, letterId);
    return text === null ? null : readLetter(saleId, letterId, text);
  }

  async #foreign(letterId: string) {
    const text = await this.#store.foreign(letterId);
    return text === null ? null : readForeign(letterId, text);
  }

  async get(orderId: string): Promise<DeadLetter | null> {
    if (orderId.startsWith(FOREIGN)) {
      const letter = await this.#foreign(orderId);
      if (letter === null) return null;
      const { body: _, ...rest } = letter;
      return rest;
    }
    const saleId = await this.#store.saleOfLetter(orderId);
    return saleId === null ? null : await this.#read(saleId, orderId);
  }

  async retry(orderId: string): Promise<boolean> {
    if (orderId.startsWith(FOREIGN)) return await this.#retryForeign(orderId);
    const saleId = await this.#store.saleOfLetter(orderId);
    return saleId !== null && (await this.#store.retryLetter(saleId, orderId));
  }

  /** Tries to read it again: a later version may understand it. If this one does not, `attempts` grows by one. */
  async #retryForeign(letterId: string): Promise<boolean> {
    const letter = await this.#foreign(letterId);
    if (letter === null) return false;
    const parcel = readParcel(letter.body);
    if (parcel?.fields) {
      await this.#store.write(parcel, parcel.fields);
      await this.#store.dropForeign(letterId);
    } else {
      const { error, attempts, body } = letter;
      const again = writeForeign({ error, attempts: attempts + 1, body, diedAtMs: this.#clock.now() });
      await this.#store.putForeign(letterId, again);
    }
    return true;
  }

  async drop(orderId: string): Promise<boolean> {
    if (orderId.startsWith(FOREIGN)) return await this.#store.dropForeign(orderId);
    const saleId = await this.#store.saleOfLetter(orderId);
    return saleId !== null && (await this.#store.dropLetter(saleId, orderId));
  }
}
