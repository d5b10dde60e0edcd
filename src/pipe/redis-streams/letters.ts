import type { DeadLetter, DeadLetters } from '../port.ts';
import { compareNewestFirst, readLetter } from './letter.ts';
import type { StreamStore } from './store.ts';

/** The dead letters of all sales. Few and rarely asked for: every sale is looked at. */
export class RedisDeadLetters implements DeadLetters {
  readonly #store: StreamStore;

  constructor(store: StreamStore) {
    this.#store = store;
  }

  async list(limit: number, before: string | null): Promise<DeadLetter[]> {
    const all = await this.#store.letterIds();
    const page = all
      .filter(({ letterId }) => before === null || compareNewestFirst(before, letterId) < 0)
      .sort((one, other) => compareNewestFirst(one.letterId, other.letterId))
      .slice(0, limit);
    const texts = await this.#store.letters(page);
    // One that was dropped since is not there any more.
    return page.flatMap(({ saleId, letterId }, at) => {
      const text = texts[at];
      return text == null ? [] : [readLetter(saleId, letterId, text)];
    });
  }

  async get(orderId: string): Promise<DeadLetter | null> {
    const saleId = await this.#store.saleOfLetter(orderId);
    const text = saleId === null ? null : await this.#store.letter(saleId, orderId);
    return text === null ? null : readLetter(saleId!, orderId, text);
  }

  async retry(orderId: string): Promise<boolean> {
    const saleId = await this.#store.saleOfLetter(orderId);
    return saleId !== null && (await this.#store.retryLetter(saleId, orderId));
  }

  async drop(orderId: string): Promise<boolean> {
    const saleId = await this.#store.saleOfLetter(orderId);
    return saleId !== null && (await this.#store.dropLetter(saleId, orderId));
  }
}
