import { RetryableError, unavailable } from '../base/errors.ts';
import { type During, type Pace, Paced } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';
import { within } from '../base/timers.ts';
import { type PublicAnswer, PublicList, publicAnswer, type Written } from './public-answer.ts';

/** How old a kept page may be: what was deleted is gone after this time, in every process. */
const FRESH_MS = 500;
/** How old it may be if it cannot be read because too many others are: a page that is a little older is better than none. */
const FULL_MS = 2000;
/** Of all kept pages together. */
const KEPT_BYTES_MAX = 16 * 1024 * 1024;
const KEPT_MAX = 1000;
/**
 * Readers who wait for one page, and for all pages of a lane: while they wait they are requests in flight, and must not use up the
 * allowance that orders have.
 */
const READERS_OF_PAGE_MAX = 256;
const READERS_OF_LANE_MAX = 1024;
const KNOWN_MAX = 10_000;
/** A read that takes longer gives its place to the next: a ledger that hangs must not hold up the page for ever. */
const READ_MS_MAX = 2000;

export interface Part {
  readonly rows: readonly Written[];
  /** There are rows behind the last one. */
  readonly more: boolean;
}

/** Gives the reader's address, by which readers take turns; null: it may stand for many. Called only if a page must be read. */
export type Reader = () => string | null;

export interface AskedPart {
  /** What it is about, such as `post:7`; null: the list of all. */
  readonly of: string | null;
  /** Which page of it, without its limit. */
  readonly page: string;
  /** Readers get there without a cursor, a name or another id. */
  readonly isFirst: boolean;
  readonly reader?: Reader | undefined;
}

/** As it is sent; null: there is no such thing. */
type Sent = { readonly bytes: number } | null;

interface Kept {
  readonly sent: Sent;
  readonly readAtMs: number;
  /** Something was changed here since it was read. */
  isOutdated: boolean;
}

interface Lane {
  readonly paced: Paced;
  /** Who wait for any of its pages. */
  readers: number;
}

/** A page that is being read, or that waits for its turn. */
interface Reading {
  readonly lane: Lane;
  readers: number;
  sent: Promise<Sent>;
  isStarted: boolean;
  isOutdated: boolean;
}

const ANYBODY: Reader = () => null;
const NEVER = new Promise<never>(() => {});

/** Reads and writes what is sent. `during`: for each piece that holds up the event loop. */
type Make<T extends Sent> = (during: During) => Promise<T>;

/** Parts of the event loop's time that readers without a token may have, whatever they ask for: 30 % in all. */
const LANES: Record<'front' | 'known' | 'rest', Omit<Pace, 'what'>> = {
  // Two: after a change the page is read anew while the former read is under way. It is one page, so that one read waits at most.
  front: { pauseFactor: 9, atOnce: 2, waitingMax: 8 },
  known: { pauseFactor: 9, atOnce: 4, waitingMax: 64, waitingOfOneMax: 8 },
  rest: { pauseFactor: 9, atOnce: 2, waitingMax: 32, waitingOfOneMax: 4 },
};

/**
 * Pages for readers whom nobody knows: each is read at most twice a second and shared by all who look, whatever limit they ask for. So a
 * crowd that reloads costs the same as one reader. What is read at all is read at a bounded pace, beyond which readers are refused (503):
 * they cannot take the event loop and the ledger from buyers. Of the places to wait in one address has a share, and addresses take
 * turns. Whoever is refused gets a page that was read in the last two seconds, if there is one.
 *
 *   front   the page that everybody sees first: nothing that is made up stands in its way
 *   known   first pages of things that were seen to exist
 *   rest    everything else: anybody can make up ids, names and cursors
 */
export class PublicPages {
  readonly #runtime: Runtime;
  readonly #lanes: Readonly<Record<keyof typeof LANES, Lane>>;
  readonly #what: string;
  /** The oldest first. */
  readonly #kept = new Map<string, Kept>();
  #bytes = 0;
  readonly #reading = new Map<string, Reading>();
  readonly #known = new Set<string>();

  constructor(runtime: Runtime, what: string) {
    this.#runtime = runtime;
    this.#what = `pages of ${what} are being read`;
    const lane = (name: keyof typeof LANES): Lane => ({
      paced: new Paced(runtime, { ...LANES[name], what: this.#what }),
      readers: 0,
    });
    this.#lanes = { front: lane('front'), known: lane('known'), rest: lane('rest') };
  }

  /** `read` gets as many rows as a page may have. Null: there is no such thing. */
  async page(
    asked: AskedPart,
    limit: number,
    read: (during: During) => Promise<Part | null>,
  ): Promise<PublicAnswer | null> {
    const list = await this.#get(asked, async (during) => {
      const part = await read(during);
      return part && during(() => new PublicList(part.rows, part.more));
    });
    return list === null ? null : list.answer(limit);
  }

  /** A single thing. */
  one(
    of: string,
    reader: Reader | undefined,
    read: (during: During) => Promise<string | null>,
  ): Promise<PublicAnswer | null> {
    return this.#get({ of, page: '', isFirst: true, reader }, async (during) => {
      const json = await read(during);
      return json === null ? null : during(() => publicAnswer(json));
    });
  }

  /** Outdates the pages about this; null: those of the list of all. */
  changed(of: string | null): void {
    const begin = keysOf(of);
    for (const [key, kept] of this.#kept) if (key.startsWith(begin)) kept.isOutdated = true;
    for (const [key, reading] of this.#reading) {
      // A read that only waits will see the change: however often something changes, all readers join one that waits.
      if (!reading.isStarted || !key.startsWith(begin)) continue;
      reading.isOutdated = true;
      this.#reading.delete(key);
    }
  }

  /** A key always stands for the same kind of page: what is found for it is what `make` would make. */
  async #get<T extends Sent>(asked: AskedPart, make: Make<T>): Promise<T> {
    const key = keysOf(asked.of) + asked.page;
    const kept = this.#kept.get(key);
    if (kept !== undefined && !kept.isOutdated && this.#ageMs(kept) < FRESH_MS) return kept.sent as T;
    try {
      const reading = this.#reading.get(key) ?? this.#begin(key, asked, make);
      return (await this.#join(reading)) as T;
    } catch (error) {
      if (kept === undefined || !(error instanceof RetryableError && error.code === 'overloaded')) throw error;
      // What was deleted here is gone after half a second in any case.
      if (this.#ageMs(kept) < (kept.isOutdated ? FRESH_MS : FULL_MS)) return kept.sent as T;
      throw error;
    }
  }

  async #join(reading: Reading): Promise<Sent> {
    const { lane } = reading;
    if (reading.readers >= READERS_OF_PAGE_MAX || lane.readers >= READERS_OF_LANE_MAX) {
      throw new RetryableError('overloaded', `too many wait: ${this.#what}`);
    }
    reading.readers++;
    lane.readers++;
    try {
      return await reading.sent;
    } finally {
      lane.readers--;
    }
  }

  #begin(key: string, { of, isFirst, reader = ANYBODY }: AskedPart, make: Make<Sent>): Reading {
    const lane = !isFirst ? 'rest' : of === null ? 'front' : this.#known.has(of) ? 'known' : 'rest';
    const reading: Reading = { lane: this.#lanes[lane], readers: 0, sent: NEVER, isStarted: false, isOutdated: false };
    this.#reading.set(key, reading);
    reading.sent = reading.lane.paced.run((during) => {
      reading.isStarted = true;
      return this.#read(reading, key, of, () => make(during));
    }, reader());
    const done = (): void => {
      if (this.#reading.get(key) === reading) this.#reading.delete(key);
    };
    reading.sent.then(done, done);
    return reading;
  }

  async #read(reading: Reading, key: string, of: string | null, make: () => Promise<Sent>): Promise<Sent> {
    const readAtMs = this.#runtime.clock.monotonic();
    const found = await within(
      this.#runtime.timers,
      make().then((sent) => ({ sent })),
      READ_MS_MAX,
    );
    if (found === null) throw unavailable('this page cannot be read now');
    const { sent } = found;
    if (of !== null && sent !== null) this.#know(of);
    if (!reading.isOutdated) this.#keep(key, { sent, readAtMs, isOutdated: false });
    return sent;
  }

  #ageMs({ readAtMs }: Kept): number {
    return this.#runtime.clock.monotonic() - readAtMs;
  }

  #keep(key: string, kept: Kept): void {
    this.#drop(key);
    this.#kept.set(key, kept);
    this.#bytes += kept.sent?.bytes ?? 0;
    for (const oldest of this.#kept.keys()) {
      if (this.#bytes <= KEPT_BYTES_MAX && this.#kept.size <= KEPT_MAX) break;
      this.#drop(oldest);
    }
  }

  #drop(key: string): void {
    this.#bytes -= this.#kept.get(key)?.sent?.bytes ?? 0;
    this.#kept.delete(key);
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
