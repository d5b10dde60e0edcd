import { FewOfEach } from '../base/few.ts';
import { type During, Paced } from '../base/paced.ts';
import type { Runtime } from '../base/runtime.ts';

const WAITING_MAX = 16;
/**
 * Lists of buyers, all together: 200 orders hold the event loop as long as ten orders that are placed. Writing them as JSON and
 * reading what a database sends, which is not seen here, takes as long again: with a fifth of the event loop here they
 * take less than a half in all.
 */
const PACE = { pauseFactor: 4, atOnce: 8, waitingMax: 64 };

/** Lists that buyers ask for, at a bounded pace: one at a time for each buyer, and all of them in a part of the event loop's time. */
export class BuyerPages {
  /** A list may make the ledger look through all rows of a buyer. */
  readonly #ofBuyer: FewOfEach;
  readonly #ofAll: Paced;

  /** `what` completes the message of a refusal: "too many lists of …". */
  constructor(runtime: Runtime, what: string) {
    this.#ofBuyer = new FewOfEach(1, WAITING_MAX, 'lists of this buyer are being read');
    this.#ofAll = new Paced(runtime, { ...PACE, what: `lists of ${what} are being read` });
  }

  async run<T>(buyer: string, read: (during: During) => Promise<T>): Promise<T> {
    return await this.#ofBuyer.run(buyer, () => this.#ofAll.run(read));
  }
}
