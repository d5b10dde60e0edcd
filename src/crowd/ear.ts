import { type BuyerAnswer, isComeBack, type OrderView } from './evidence.ts';
import type { Follower } from './follower.ts';
import type { Tally } from './progress.ts';
import type { TokenOf } from './tokens.ts';

export interface EarOptions {
  tally: Tally;
  follower: Follower;
  tokenOf: TokenOf;
}

/** Records every answer as evidence, and has queued orders followed. */
export class Ear {
  readonly answers: BuyerAnswer[] = [];
  readonly #on: EarOptions;
  /** Ids of orders that buyers were promised; an order may be answered many times. */
  readonly #sold = new Set<string>();

  constructor(options: EarOptions) {
    this.#on = options;
  }

  hear(answer: BuyerAnswer): void {
    const { tally, follower, tokenOf } = this.#on;
    this.answers.push(answer);
    if (answer.status === 201 && answer.order !== null) this.#sell(answer.order.id);
    // An order that a 201 confirmed is decided, even if a repeat gets 202 while the ledger is down.
    if (answer.status === 202 && answer.order !== null && !this.#sold.has(answer.order.id))
      follower.add(answer.order.id, tokenOf(answer.buyer));
    if (answer.status === 409 && !isComeBack(answer)) tally.refused++;
    tally.queued = follower.left;
  }

  decided({ id, status }: OrderView): void {
    const { tally, follower } = this.#on;
    if (status === 'rejected') tally.rejected++;
    else this.#sell(id);
    if (tally.stage === 'queued') tally.done++;
    tally.queued = follower.left;
  }

  #sell(id: string): void {
    this.#on.tally.sold = this.#sold.add(id).size;
  }
}
