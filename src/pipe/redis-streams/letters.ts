import type { Clock } from '../../base/clock.ts';
import type { Channels } from '../channels.ts';
import { readParcel } from '../parcel.ts';
import type { DeadLetter, DeadLetters } from '../port.ts';
import { compareNewestFirst, readForeign, readLetter, writeForeign } from './letter.ts';
import type { StreamStore } from './store.ts';

/** The prefix of the ids of foreign messages: a broker brought them, and no relay of ours wrote them. */
const FOREIGN = 'foreign-';

/** The dead letters of all channels, whichever pipe they were in. Every channel is searched: letters are few, and calls are rare. */
export class RedisDeadLetters<M> implements DeadLetters<M> {
  readonly #channels: Channels<M>;
  readonly #store: StreamStore<M>;
  readonly #clock: Clock;

  constructor(channels: Channels<M>, store: StreamStore<M>, clock: Clock) {
    this.#channels = channels;
    this.#store = store;
    this.#clock = clock;
  }

  async list(limit: number, before: string | null): Promise<DeadLetter<M>[]> {
    const ours = await this.#store.letterIds();
    const foreign = (await this.#store.foreignIds()).map((letterId) => ({ channel: null, letterId }));
    const page = [...ours, ...foreign]
      .filter(({ letterId }) => before === null || compareNewestFirst(before, letterId) < 0)
      .sort((one, other) => compareNewestFirst(one.letterId, other.letterId))
      .slice(0, limit);
    // A letter may have been dropped since.
    const letters = await Promise.all(page.map(({ channel, letterId }) => this.#read(channel, letterId)));
    return letters.filter((letter) => letter !== null);
  }

  /** `channel`: null for a foreign message. */
  async #read(channel: string | null, letterId: string): Promise<DeadLetter<M> | null> {
    if (channel === null) return await this.#foreign(letterId);
    const text = await this.#store.letter(channel, letterId);
    return text === null ? null : readLetter(this.#channels.codec, channel, letterId, text);
  }

  async #foreign(letterId: string) {
    const text = await this.#store.foreign(letterId);
    return text === null ? null : readForeign(this.#channels.codec, letterId, text);
  }

  async get(id: string): Promise<DeadLetter<M> | null> {
    if (id.startsWith(FOREIGN)) {
      const letter = await this.#foreign(id);
      if (letter === null) return null;
      const { body: _, ...rest } = letter;
      return rest;
    }
    const channel = await this.#store.channelOfLetter(id);
    return channel === null ? null : await this.#read(channel, id);
  }

  idsIn(channel: string): Promise<string[]> {
    return this.#store.letterIdsIn(channel);
  }

  async retry(id: string): Promise<boolean> {
    if (id.startsWith(FOREIGN)) return await this.#retryForeign(id);
    const channel = await this.#store.channelOfLetter(id);
    return channel !== null && (await this.#store.retryLetter(channel, id));
  }

  /** Tries to read it again: a later version may understand it. If this one does not, `attempts` grows by one. */
  async #retryForeign(letterId: string): Promise<boolean> {
    const letter = await this.#foreign(letterId);
    if (letter === null) return false;
    const parcel = readParcel(letter.body);
    if (parcel?.fields && this.#channels.has(parcel.channel)) {
      await this.#store.write(parcel, parcel.fields);
      await this.#store.dropForeign(letterId);
    } else {
      const { error, attempts, body } = letter;
      const again = writeForeign({ error, attempts: attempts + 1, body, diedAtMs: this.#clock.now() });
      await this.#store.putForeign(letterId, again);
    }
    return true;
  }

  async drop(id: string): Promise<boolean> {
    if (id.startsWith(FOREIGN)) return await this.#store.dropForeign(id);
    const channel = await this.#store.channelOfLetter(id);
    return channel !== null && (await this.#store.dropLetter(channel, id));
  }
}
