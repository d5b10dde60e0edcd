import type { Result } from '../sql/session.ts';
import { CLOCK, COMMIT, type Step, type Work } from './step.ts';

const NOTHING: Result = { rows: [], affected: 0 };

/**
 * Several works as one: their first rounds go in one trip, then their second ones, and so on. They must not depend on each
 * other. They end together: one that fails takes all of them back.
 */
export function* abreast<T>(works: readonly Work<T>[]): Work<T[]> {
  const rounds = works.map((work) => work.next());
  for (;;) {
    const running = rounds.flatMap((round, at) => (round.done ? [] : [{ at, asked: round.value }]));
    if (running.length === 0) return rounds.map(({ value }) => value as T);
    const steps = running.flatMap(({ asked }) => asked.filter((step) => step.do !== 'clock' && step.do !== 'commit'));
    // Read once, and last: then it is later than every lock that it must be later than.
    const clock = running.some(({ asked }) => asked.some((step) => step.do === 'clock')) ? [CLOCK] : [];
    const ends = running.every(({ asked }) => asked.at(-1)?.do === 'commit') ? [COMMIT] : [];
    const results = yield [...steps, ...clock, ...ends];
    let next = 0;
    const resultOf = (step: Step): Result => {
      if (step.do === 'clock') return results[steps.length]!;
      return step.do === 'commit' ? NOTHING : results[next++]!;
    };
    for (const { at, asked } of running) rounds[at] = works[at]!.next(asked.map(resultOf));
  }
}
