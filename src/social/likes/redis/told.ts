import type { LikeEvent, Subject } from '../../../model/like.ts';

/** The count that the ledger has committed; null: it has no such subject. */
export type CommittedCount = { readonly count: number; readonly rev: number; readonly atMs: number } | null;

/**
 * What settle.lua is told of one subject: count, rev, at, or -1 and zeros; then its events as ranges of consecutive numbers, each as its
 * first number and how many, below zero for likes that were taken back. Events that were decided in one call are such a range.
 */
export interface ToldSubject {
  readonly subject: Subject;
  readonly numbers: readonly number[];
}

const BASE = 3;

/** `counts`: of all subjects of the events, and perhaps of others. */
export function toldOf(
  events: readonly LikeEvent[],
  counts: ReadonlyMap<Subject, CommittedCount>,
): readonly ToldSubject[] {
  const told = new Map<Subject, number[]>();
  for (const [subject, base] of counts) told.set(subject, base ? [base.count, base.rev, base.atMs] : [-1, 0, 0]);
  let last = 0;
  for (const { subject, n, liked } of inOrder(events)) {
    // The same event may be in a batch twice.
    if (n === last) continue;
    last = n;
    const numbers = told.get(subject)!;
    const at = numbers.length - 1;
    const many = at < BASE ? 0 : numbers[at]!;
    if (many !== 0 && many > 0 === liked && numbers[at - 1]! + Math.abs(many) === n) numbers[at]! += liked ? 1 : -1;
    else numbers.push(n, liked ? 1 : -1);
  }
  return Array.from(told, ([subject, numbers]) => ({ subject, numbers }));
}

function inOrder(events: readonly LikeEvent[]): readonly LikeEvent[] {
  // As a stream brings them.
  if (events.every(({ n }, at) => at === 0 || events[at - 1]!.n < n)) return events;
  return events.toSorted((one, other) => one.n - other.n);
}

/** The numbers of all their events as ranges, in order: first, last, first, last, and so on. */
export function spansOf(told: readonly ToldSubject[]): number[] {
  const ranges: [first: number, last: number][] = [];
  for (const { numbers } of told) {
    for (let at = BASE; at < numbers.length; at += 2) {
      const first = numbers[at]!;
      ranges.push([first, first + Math.abs(numbers[at + 1]!) - 1]);
    }
  }
  ranges.sort(([one], [other]) => one - other);
  const spans: number[] = [];
  for (const [first, last] of ranges) {
    if (spans.at(-1) === first - 1) spans[spans.length - 1] = last;
    else spans.push(first, last);
  }
  return spans;
}
