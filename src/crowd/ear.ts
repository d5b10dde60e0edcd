import type { Runtime } from '../base/runtime.ts';
import { type BuyerAnswer, isComeBack, type OrderView } from './evidence.ts';
import type { Follower } from './follower.ts';
import type { InFlight } from './progress.ts';
import type { TokenOf } from './tokens.ts';

/** If no server answers for this long, the rest of the crowd does not enter. */
const SILENCE_MS_MAX = 20_000;

export interface EarOptions {
  runtime: Runtime;
  inFlight: InFlight;
  follower: Follower;
  tokenOf: TokenOf;
  silent: (reason: string) => void;
}

/** Records every answer as evidence, and has queued orders followed. */
export class Ear {
  readonly answers: BuyerAnswer[] = [];
  readonly latenciesMs: number[] = [];
  readonly #on: EarOptions;
  /** Ids of orders that buyers were promised; an order may be answered many times. */
  readonly #sold = new Set<string>();
  #lastAnswerMs: number;

  constructor(options: EarOptions) {
    this.#on = options;
    this.#lastAnswerMs = options.runtime.clock.monotonic();
  }

  hear(answer: BuyerAnswer, tookMs: number | null): void {
    const { inFlight, follower, tokenOf } = this.#on;
    this.answers.push(answer);
    inFlight.requests++;
    if (answer.status === 201 && answer.order !== null) this.#sell(answer.order.id);
    // An order that a 201 confirmed is decided, even if a repeat gets 202 while the ledger is down.
    if (answer.status === 202 && answer.order !== null && !this.#sold.has(answer.order.id))
      follower.add(answer.order.id, tokenOf(answer.buyer));
    if (answer.status === 409 && !isComeBack(answer)) inFlight.refused++;
    inFlight.queued = follower.left;
    this.#listen(tookMs);
  }

  decided({ id, status }: OrderView): void {
    const { inFlight, follower } = this.#on;
    if (status === 'rejected') inFlight.rejected++;
    else this.#sell(id);
    if (inFlight.stage === 'queued') inFlight.done++;
    inFlight.queued = follower.left;
  }

  #sell(id: string): void {
    this.#on.inFlight.sold = this.#sold.add(id).size;
  }

  #listen(tookMs: number | null): void {
    const nowMs = this.#on.runtime.clock.monotonic();
    if (tookMs !== null) {
      this.latenciesMs.push(tookMs);
      this.#lastAnswerMs = nowMs;
    } else if (nowMs - this.#lastAnswerMs > SILENCE_MS_MAX) {
      this.#on.silent(`the server has not answered for ${SILENCE_MS_MAX / 1000} s`);
    }
  }
}
