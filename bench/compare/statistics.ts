/** A scenario is slower if it has less than this share of the old commit's throughput. */
export const BOUND = 0.95;
/** A larger spread would hide a loss that users notice: the run then reports that it is too noisy to say. */
export const NOISY_SPREAD = 0.1;
const CONFIDENCE = 0.95;

/** Throughput of the three sides, measured one after the other. `again` is the old commit in a second checkout. */
export interface Round {
  readonly old: number;
  readonly again: number;
  readonly new: number;
}

/** A 95 % confidence interval of the median, for any distribution. */
export interface Interval {
  readonly median: number;
  readonly low: number;
  readonly high: number;
}

export interface Judgement {
  /** new / old. */
  readonly change: Interval;
  /** again / old: the same code twice, so that any difference from 1 is noise. */
  readonly same: Interval;
  /** How far the interval of the A/A pairs reaches from 1. */
  readonly spread: number;
  /** A median of new / old below this fails. */
  readonly failsBelow: number;
  readonly failed: boolean;
  readonly noisy: boolean;
}

/**
 * A scenario fails if the median of its ratios is below 0.95 by more than the A/A spread. The spread is how far from 1 the same
 * statistic may be for a commit that is compared with itself: the 95 % interval of the A/A median. It contains the noise of the
 * machine and, because `again` is a separate checkout with its own turn, the effect of the place in the round. A few outliers do
 * not widen it.
 */
export function judge(rounds: readonly Round[]): Judgement {
  const change = medianInterval(rounds.map((round) => round.new / round.old));
  const same = medianInterval(rounds.map((round) => round.again / round.old));
  const spread = Math.max(1 - same.low, same.high - 1);
  const failsBelow = BOUND - spread;
  return { change, same, spread, failsBelow, failed: change.median < failsBelow, noisy: spread > NOISY_SPREAD };
}

/** By order statistics: between the k-th smallest and the k-th largest value (of ten: the second and the ninth). */
export function medianInterval(values: readonly number[]): Interval {
  if (values.length === 0 || !values.every((value) => Number.isFinite(value) && value > 0)) {
    throw new Error(`not a list of ratios: ${values.join(' ')}`);
  }
  const sorted = values.toSorted((a, b) => a - b);
  const cut = outsideOf(sorted.length);
  return { median: middle(sorted), low: sorted[cut]!, high: sorted[sorted.length - 1 - cut]! };
}

function middle(sorted: readonly number[]): number {
  const half = sorted.length / 2;
  return Number.isInteger(half) ? (sorted[half - 1]! + sorted[half]!) / 2 : sorted[Math.floor(half)]!;
}

/** How many values the interval leaves out on each side, so that the median is inside with 95 % (none if there are too few). */
function outsideOf(count: number): number {
  // Of `count` values each is below the true median with probability 1/2. The median is outside if at most `cut` are.
  let cut = 0;
  let term = 0.5 ** count;
  let below = term;
  for (;;) {
    term *= (count - cut) / (cut + 1);
    below += term;
    if (2 * below > 1 - CONFIDENCE) return cut;
    cut++;
  }
}

/** Rotates the order of the sides, so that no side profits from its place in the round. */
export function turnsOf<T>(sides: readonly T[], round: number): T[] {
  return sides.map((_, at) => sides[(at + round) % sides.length]!);
}
