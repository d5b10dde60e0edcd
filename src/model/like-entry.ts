import type { EntryCodec, EntryFields } from './entry.ts';
import { LIKE_ENTRY } from './formats.ts';
import { LIKE_SUBJECT, type LikeEvent, type Subject } from './like.ts';

/**
 * How the likes that one call has decided stand in the stream of their shard: one entry, whose fields a script writes and the pipe
 * reads. Names hold no control characters, so that a line feed separates.
 *
 *   ''         epoch, ms of the decision. The name of this first field is the entry's format: '' stands for 1
 *   l<count>   subject; then for each of `count` events of it, in the order of their decisions: n, and `+` (liked) or `-` (taken
 *              back) with the user directly behind
 *
 * A subject may have several fields. So a script may write each event as a field of its own, or events of one subject that follow
 * each other as one:
 *
 *   XADD P:{likes:3}:<epoch>:stream * '' '7\n1700000000000' l2 'post:12\n41\n+alice\n42\n-bob' l1 'comment:9\n43\n+alice'
 */

const GROUP = /^l([1-9]\d{0,5})$/;
const WHOLE = /^\d{1,15}$/;
const HEADER = 2;

interface Header {
  readonly epoch: number;
  readonly atMs: number;
}

function headerIn(fields: EntryFields): Header {
  if (fields[0] !== '') throw new Error('an entry of the stream has no header');
  const parts = fields[1]!.split('\n');
  if (parts.length !== HEADER) throw new Error(`the header of an entry has ${parts.length} parts instead of ${HEADER}`);
  return { epoch: numberIn(parts[0]!), atMs: numberIn(parts[1]!) };
}

function numberIn(text: string): number {
  if (!WHOLE.test(text)) throw new Error(`${JSON.stringify(text)} is no number of a like`);
  return Number(text);
}

/** The lines of a field: subject, then n and user of each event. Throws if it is no field of likes. */
function linesIn(field: string, value: string): string[] {
  const count = GROUP.exec(field)?.[1];
  if (count === undefined) throw new Error(`an entry of the stream has a field ${JSON.stringify(field)}`);
  const lines = value.split('\n');
  if (lines.length !== 1 + 2 * Number(count)) throw new Error(`a field of ${count} likes has ${lines.length} parts`);
  return lines;
}

function eventIn({ epoch, atMs }: Header, subject: string, n: string, signed: string): LikeEvent {
  if (!LIKE_SUBJECT.test(subject)) throw new Error(`${JSON.stringify(subject)} cannot be liked`);
  const liked = signed.startsWith('+');
  if (signed.length < 2 || !(liked || signed.startsWith('-'))) {
    throw new Error(`${JSON.stringify(signed)} is nobody who likes or takes it back`);
  }
  return { subject: subject as Subject, user: signed.slice(1), liked, epoch, n: numberIn(n), atMs };
}

function decode(_: string, fields: EntryFields): LikeEvent[] {
  const header = headerIn(fields);
  const events: LikeEvent[] = [];
  for (let at = 2; at < fields.length; at += 2) {
    const lines = linesIn(fields[at]!, fields[at + 1]!);
    for (let line = 1; line < lines.length; line += 2) {
      events.push(eventIn(header, lines[0]!, lines[line]!, lines[line + 1]!));
    }
  }
  return events;
}

function encode({ subject, user, liked, epoch, n, atMs }: LikeEvent): string[] {
  return ['', `${epoch}\n${atMs}`, 'l1', `${subject}\n${n}\n${liked ? '+' : '-'}${user}`];
}

function idOf({ subject, user, epoch, n, atMs }: LikeEvent): string {
  return `${atMs}-${epoch}-${n}-${subject}-${user}`;
}

function split(fields: EntryFields): ReturnType<EntryCodec<LikeEvent>['split']> {
  let header: Header;
  try {
    header = headerIn(fields);
  } catch {
    return { messages: [], rest: fields };
  }
  const messages: { id: string; fields: EntryFields }[] = [];
  const strange: string[] = [];
  for (let at = 2; at < fields.length; at += 2) {
    const pair = [fields[at]!, fields[at + 1] ?? ''] as const;
    try {
      const [subject, ...lines] = linesIn(...pair) as [string, ...string[]];
      for (let line = 0; line < lines.length; line += 2) {
        const [n, signed] = [lines[line]!, lines[line + 1]!];
        try {
          const event = eventIn(header, subject, n, signed);
          messages.push({ id: idOf(event), fields: encode(event) });
        } catch {
          strange.push('l1', `${subject}\n${n}\n${signed}`);
        }
      }
    } catch {
      strange.push(...pair);
    }
  }
  const isAll = strange.length === 0 && messages.length > 0;
  return { messages, rest: isAll ? null : [...fields.slice(0, 2), ...strange] };
}

export const LIKE_ENTRIES: EntryCodec<LikeEvent> = {
  format: LIKE_ENTRY,
  decode,
  encode,
  split,
  idOf,
  // Nothing can be liked that has no name, and nobody has none (like-letter.ts).
  unreadable: (_channel, _id, epoch, _raw) => ({ subject: 'post:', user: '', liked: false, epoch, n: 0, atMs: 0 }),
};
