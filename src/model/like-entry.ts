import { type LikeEvent, N_MAX, type Subject } from './like.ts';

/**
 * How a batch of decided likes stands in the stream of its shard: one entry, whose fields the deciding script writes and the pipe
 * reads (docs/internals/likes.md). Names hold no control characters, so that a line feed separates.
 *
 *   ''          epoch, time of the decision in ms. The name of this first field is the entry's format: '' stands for 1
 *   l<count>    subject, n of the first event; then a line for each event: `+` (liked) or `-` (not any more) and the user
 *
 * A subject has one field. Its events are in the order in which they were decided, and their n follow each other.
 */

/** Field and value, one after the other, as they stand in an entry. */
type EntryFields = readonly string[];

/** Events of one subject, as they stand in one field. */
interface Group {
  readonly subject: Subject;
  readonly first: number;
  readonly marks: readonly string[];
}

const GROUP = /^l([1-9]\d{0,5})$/;
const SUBJECT = /^(post|comment):.+$/;
const NUMBER = /^\d{1,16}$/;

/** Throws if it cannot be read. */
function groupIn(field: string, value: string): Group {
  const [, count] = GROUP.exec(field) ?? [];
  if (count === undefined) throw new Error(`an entry of likes has a field ${JSON.stringify(field)}`);
  const [subject, first, ...marks] = value.split('\n');
  if (!SUBJECT.test(subject ?? '')) throw new Error(`${JSON.stringify(subject)} is nothing that can be liked`);
  if (!NUMBER.test(first ?? '') || Number(first) < 1 || Number(first) + marks.length > N_MAX) {
    throw new Error(`${JSON.stringify(first)} is no number of a like`);
  }
  if (marks.length !== Number(count)) throw new Error(`a field of ${count} likes has ${marks.length}`);
  const odd = marks.find((mark) => !/^[+-]./.test(mark));
  if (odd !== undefined) throw new Error(`${JSON.stringify(odd)} is no like`);
  return { subject: subject as Subject, first: Number(first), marks };
}

function headOf(fields: EntryFields): { epoch: number; atMs: number } {
  if (fields[0] !== '') throw new Error('an entry of likes has no header');
  const parts = fields[1]!.split('\n');
  if (parts.length !== 2 || !parts.every((part) => NUMBER.test(part))) {
    throw new Error('the header of an entry of likes is not its epoch and its time');
  }
  return { epoch: Number(parts[0]), atMs: Number(parts[1]) };
}

/** Throws if no deciding script can have written this. */
export function decodeLikeEntry(fields: EntryFields): LikeEvent[] {
  const { epoch, atMs } = headOf(fields);
  const events: LikeEvent[] = [];
  for (let at = 2; at < fields.length; at += 2) {
    const { subject, first, marks } = groupIn(fields[at]!, fields[at + 1] ?? '');
    for (const [place, mark] of marks.entries()) {
      events.push({ subject, user: mark.slice(1), liked: mark[0] === '+', epoch, n: first + place, atMs });
    }
  }
  return events;
}

/** An entry of one event: for those that are put aside and come again by themselves. */
export function encodeLikeEntry({ subject, user, liked, epoch, n, atMs }: LikeEvent): string[] {
  return ['', `${epoch}\n${atMs}`, 'l1', `${subject}\n${n}\n${liked ? '+' : '-'}${user}`];
}
