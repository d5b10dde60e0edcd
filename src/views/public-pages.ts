import { unavailable } from '../base/errors.ts';
import { type During, type Pace, Paced } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import { within } from '../base/timers.ts';
import { type PublicAnswer, publicAnswer } from './public-answer.ts';

/** How old a kept page may be: what was deleted is gone after this time, in every process. */
const FRESH_MS = 500;
/** Of all kept pages together. */
const KEPT_CHARS_MAX = 8 * 1024 * 1024;
const KEPT_MAX = 1000;
const KNOWN_MAX = 10_000;
/** A read that takes longer gives its place to the next: a ledger that hangs must not hold up the page for ever. */
const READ_MS_MAX = 2000;

/** Part of a list, or a single thing, as it is sent. `cursor`: where the next page begins, behind this one. */
export interface Written {
  readonly cursor: string;
  readonly json: string;
}

export interface Part {
  readonly rows: readonly Written[];
  /** There are rows behind the last one. */
  readonly more: boolean;
}

export interface AskedPart {
  /** What it is about, such as `post:7`; null: the list of all. */
  readonly of: string | null;
  /** Which page of it, without its limit. */
  readonly page: string;
  /** Readers get there without a cursor, a name or another id. */
  readonly isFirst: boolean;
}

interface Kept {
  /** Null: there is no such thing. */
  readonly part: Part | null;
  readonly chars: number;
  readonly readAtMs: number;
  /** The page that was asked for last. */
  made: { limit: number; answer: PublicAnswer } | null;
}

/** Parts of the event loop's time that readers without a token may have, whatever they ask for: 30 % in all. */
const LANES: Record<'front' | 'known' | 'rest', Omit<Pace, 'what'>> = {
  // Two: after a change the page is read anew while the former read is under way.
  front: { pauseFactor: 9, atOnce: 2, waitingMax: 8 },
  known: { pauseFactor: 9, atOnce: 4, waitingMax: 64 },
  rest: { pauseFactor: 9, atOnce: 2, waitingMax: 32 },
};

/**
 * Pages for readers whom nobody knows: each is read at most twice a second and shared by all who look, whatever limit they ask for. So a
 * crowd that reloads costs the same as one reader. What is read at all is read at a bounded pace, beyond which readers are refused (503):
 * they cannot take the event loop and the ledger from buyers.
 *
 *   front   the page that everybody sees first: nothing that is made up stands in its way
 *   known   first pages of things that were seen to exist
 *   rest    everything else: anybody can make up ids, names and cursors
 */
export class PublicPages {
  readonly #runtime: Runtime;
  readonly #lanes: Readonly<Record<keyof typeof LANES, Paced>>;
  /** The oldest first. */
  readonly #kept = new Map<string, Kept>();
  #chars = 0;
  readonly #reading = new Map<string, Promise<Kept>>();
  readonly #known = new Set<string>();
  /** Raised by every change: what was read before it is not kept. */
  #changes = 0;

  constructor(runtime: Runtime, what: string) {
    this.#runtime = runtime;
    const lane = (name: keyof typeof LANES): Paced =>
      new Paced(runtime, { ...LANES[name], what: `pages of ${what} are being read` });
    this.#lanes = { front: lane('front'), known: lane('known'), rest: lane('rest') };
  }

  /** `read` gets as many rows as a page may have. Null: there is no such thing. */
  async page(
    asked: AskedPart,
    limit: number,
    read: (during: During) => Promise<Part | null>,
  ): Promise<PublicAnswer | null> {
    const kept = await this.#get(asked, read);
    if (kept.part === null) return null;
    if (kept.made?.limit === limit) return kept.made.answer;
    const { rows, more } = kept.part;
    const some = rows.slice(0, limit);
    const next = more || rows.length > limit ? JSON.stringify(some.at(-1)!.cursor) : 'null';
    const answer = publicAnswer(`{"data":[${some.map(({ json }) => json).join(',')}],"nextCursor":${next}}`);
    kept.made = { limit, answer };
    return answer;
  }

  /** A single thing. */
  async one(of: string, read: (during: During) => Promise<string | null>): Promise<PublicAnswer | null> {
    const kept = await this.#get({ of, page: '', isFirst: true }, async (during) => {
      const json = await read(during);
      return json === null ? null : { rows: [{ cursor: '', json }], more: false };
    });
    if (kept.part === null) return null;
    kept.made ??= { limit: 1, answer: publicAnswer(kept.part.rows[0]!.json) };
    return kept.made.answer;
  }

  /** Forgets the pages about this; null: those of the list of all. A page that is being read may lack the change: nobody joins it. */
  changed(of: string | null): void {
    this.#changes++;
    const begin = keysOf(of);
    for (const map of [this.#kept, this.#reading]) {
      for (const key of map.keys()) if (key.startsWith(begin)) this.#drop(map, key);
    }
  }

  async #get({ of, page, isFirst }: AskedPart, read: (during: During) => Promise<Part | null>): Promise<Kept> {
    const key = keysOf(of) + page;
    const kept = this.#kept.get(key);
    if (kept !== undefined) {
      if (this.#runtime.clock.monotonic() - kept.readAtMs < FRESH_MS) return kept;
      this.#drop(this.#kept, key);
    }
    let reading = this.#reading.get(key);
    if (reading === undefined) {
      const lane = !isFirst ? 'rest' : of === null ? 'front' : this.#known.has(of) ? 'known' : 'rest';
      const mine = this.#lanes[lane].run((during) => this.#read(key, of, () => read(during)));
      reading = mine;
      this.#reading.set(key, mine);
      const done = (): void => {
        if (this.#reading.get(key) === mine) this.#reading.delete(key);
      };
      mine.then(done, done);
    }
    return await reading;
  }

  async #read(key: string, of: string | null, read: () => Promise<Part | null>): Promise<Kept> {
    const changes = this.#changes;
    const readAtMs = this.#runtime.clock.monotonic();
    const found = await within(
      this.#runtime.timers,
      read().then((part) => ({ part })),
      READ_MS_MAX,
    );
    if (found === null) throw unavailable('this page cannot be read now');
    const { part } = found;
    const chars = part?.rows.reduce((sum, { json }) => sum + json.length, 0) ?? 0;
    const kept: Kept = { part, chars, readAtMs, made: null };
    if (of !== null && part !== null) this.#know(of);
    if (changes === this.#changes) this.#keep(key, kept);
    return kept;
  }

  #keep(key: string, kept: Kept): void {
    this.#drop(this.#kept, key);
    this.#kept.set(key, kept);
    this.#chars += kept.chars;
    for (const oldest of this.#kept.keys()) {
      if (this.#chars <= KEPT_CHARS_MAX && this.#kept.size <= KEPT_MAX) break;
      this.#drop(this.#kept, oldest);
    }
  }

  #drop(map: Map<string, unknown>, key: string): void {
    if (map === this.#kept) this.#chars -= this.#kept.get(key)?.chars ?? 0;
    map.delete(key);
  }

  #know(of: string): void {
    this.#known.delete(of);
    this.#known.add(of);
    if (this.#known.size <= KNOWN_MAX) return;
    for (const oldest of this.#known) {
      this.#known.delete(oldest);
      return;
    }
  }
}

/**
 * How the keys of all pages about this begin. Callers choose ids and names, so that their end must be certain: otherwise
 * `post:7 likes` would be a post, and also the likes of post 7.
 */
function keysOf(of: string | null): string {
  return `${JSON.stringify(of)} `;
}
