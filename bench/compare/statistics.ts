/** Below this part of the old commit's throughput a scenario has become slower. */
export const BOUND = 0.95;
/** A spread above this hides a loss that a user would notice: the run says that it knows too little. */
export const NOISY_SPREAD = 0.1;
const CONFIDENCE = 0.95;

/** Throughput of the three sides, measured one after the other. `again` is the old commit in a second checkout. */
export interface Round {
  readonly old: number;
  readonly again: number;
  readonly new: number;
}

/** Where the median lies, whatever the distribution is, in at least 95 of 100 runs. */
export interface Interval {
  readonly median: number;
  readonly low: number;
  readonly high: number;
}

export interface Judgement {
  /** new / old. */
  readonly change: Interval;
  /** again / old: the same code twice, so that whatever is not 1 is the machine's doing. */
  readonly same: Interval;
  /** How far the interval of the A/A pairs reaches from 1. */
  readonly spread: number;
  /** A median of new / old below this fails. */
  readonly failsBelow: number;
  readonly failed: boolean;
  readonly noisy: boolean;
}

/**
 * A scenario fails if the median of its ratios is below 0.95 by more than the A/A spread. The spread is what the same
 * statistic, the median of so many pairs, may say of a commit that is compared with itself: the A/A median's interval at
 * 95 %, as far as it reaches from 1. It contains the noise of the machine and, since `again` is a checkout and a turn
 * of its own, what the place in the round does. A few outliers do not widen it.
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

/** How many values on each side the interval leaves out: as many as keep the median in it with 95 % (too few: none). */
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

/** Who is measured first turns, so that a place in the round is nobody's advantage. */
export function turnsOf<T>(sides: readonly T[], round: number): T[] {
  return sides.map((_, at) => sides[(at + round) % sides.length]!);
}
