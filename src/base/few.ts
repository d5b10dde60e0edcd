import { RetryableError } from './errors.ts';

/** A limiter: runs `atOnce` calls at a time, queues up to `waitingMax` more in order of arrival, and refuses the rest. */
export class Few {
  readonly #atOnce: number;
  readonly #waitingMax: number;
  readonly #what: string;
  #free: number;
  readonly #waiting: (() => void)[] = [];

  /** `what` completes the message of a refusal: "too many …". */
  constructor(atOnce: number, waitingMax: number, what: string) {
    this.#atOnce = atOnce;
    this.#free = atOnce;
    this.#waitingMax = waitingMax;
    this.#what = what;
  }

  /** True if nothing runs or waits. */
  get isIdle(): boolean {
    return this.#free === this.#atOnce;
  }

  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#free > 0) this.#free--;
    else if (this.#waiting.length >= this.#waitingMax) throw new RetryableError('overloaded', `too many ${this.#what}`);
    else await new Promise<void>((resolve) => void this.#waiting.push(resolve));
    try {
      return await work();
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#free++;
      else next();
    }
  }
}

/** A limiter per key: calls of one key do not wait for those of another. */
export class FewOfEach {
  readonly #make: () => Few;
  readonly #few = new Map<string, Few>();

  constructor(atOnce: number, waitingMax: number, what: string) {
    this.#make = () => new Few(atOnce, waitingMax, what);
  }

  async run<T>(each: string, work: () => Promise<T>): Promise<T> {
    const few = this.#few.get(each) ?? this.#make();
    this.#few.set(each, few);
    try {
      return await few.run(work);
    } finally {
      if (few.isIdle) this.#few.delete(each);
    }
  }
}
