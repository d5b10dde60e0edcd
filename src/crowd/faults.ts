import { count } from './words.ts';

/** What a crowd found out about one promise. */
export interface Finding<S extends string = string> {
  subject: S;
  held: boolean;
  /** One line: the promise and the figures. */
  says: string;
  faults: number;
  /** The first few faults, in words. */
  examples: string[];
}

const EXAMPLES_MAX = 5;

export class Faults {
  count = 0;
  readonly examples: string[] = [];

  add(words: string, times = 1): void {
    this.count += times;
    if (this.examples.length < EXAMPLES_MAX) this.examples.push(words);
  }
}

export function finding<S extends string>(
  subject: S,
  promise: string,
  broken: string,
  figures: string,
  faults: Faults,
): Finding<S> {
  const held = faults.count === 0;
  const says = held ? `${promise}: ${figures}` : `${broken}: ${count(faults.count, 'fault')}`;
  return { subject, held, says, faults: faults.count, examples: faults.examples };
}
