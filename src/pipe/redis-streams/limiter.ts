/** Limits how many run at the same time. Whoever waits in `take` comes before `tryTake`. */
export class Limiter {
  #free: number;
  readonly #waiting: (() => void)[] = [];

  constructor(count: number) {
    this.#free = count;
  }

  tryTake(): boolean {
    if (this.#free === 0) return false;
    this.#free--;
    return true;
  }

  take(): Promise<void> {
    if (this.tryTake()) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  give(): void {
    const next = this.#waiting.shift();
    if (next) next();
    else this.#free++;
  }
}
