import { SEAT_CHANGES_MAX, type SeatChange } from './port.ts';

/** The last changes of the seats of a sale, numbered from 1. */
export class SeatLog {
  readonly #changes: SeatChange[] = [];
  #n = 0;

  /** The number of the last change; 0: there was none. */
  get n(): number {
    return this.#n;
  }

  add(change: SeatChange): void {
    this.#changes[this.#n++ % SEAT_CHANGES_MAX] = change;
  }

  /** All that came after number `n`; null: some of them are forgotten, or `n` is yet to come. */
  since(n: number): SeatChange[] | null {
    const count = this.#n - n;
    if (count < 0 || count > SEAT_CHANGES_MAX) return null;
    return Array.from({ length: count }, (_, at) => this.#changes[(n + at) % SEAT_CHANGES_MAX]!);
  }
}
