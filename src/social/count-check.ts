import { isId } from '../base/ids.ts';
import type { Runtime } from '../base/runtime.ts';
import { turn } from '../base/sweep.ts';
import type { SocialLedger, WrongCount } from '../ledger/port.ts';
import type { Finding } from '../model/finding.ts';
import { type LikedKind, partsOf, type Subject, subjectOf } from '../model/like.ts';

/** Subjects of one statement; the ledger takes fewer where many rows have to be counted. */
const PAGE = 100;
/** The subject after which a check goes on. Before the first of a kind comes 0, which is no id. */
const PLACE = /^(post|comment):(\d+)$/;
/** After this time a check says where it has come to, so that no caller waits for a large table. */
const CHECK_MS_MAX = 5000;

export interface CheckedCounts {
  readonly findings: Finding[];
  /** After which the next check goes on; null: all were checked. */
  readonly next: Subject | null;
}

/**
 * Finds counts of likes, comments and replies that differ from their rows. Reads pages of subjects, each in one statement and so of one
 * state: every count moves in the transaction that moves its rows, so that nothing that is on its way looks wrong. Posts come first,
 * then comments; `from`: the subject after which it begins.
 */
export async function checkCounts(
  ledger: Pick<SocialLedger, 'checkCounts'>,
  { clock, timers }: Pick<Runtime, 'clock' | 'timers'>,
  from: string | null,
  findingsMax: number,
): Promise<CheckedCounts> {
  const untilMs = clock.monotonic() + CHECK_MS_MAX;
  const findings: Finding[] = [];
  for (let at = placeOf(from); ; await turn(timers)) {
    const { wrong, next } = await ledger.checkCounts(at.kind, at.after, PAGE);
    findings.push(...wrong.map(wrongCount));
    if (next !== null) at = { kind: at.kind, after: next };
    else if (at.kind === 'post') at = { kind: 'comment', after: null };
    else return { findings, next: null };
    if (findings.length >= findingsMax || clock.monotonic() >= untilMs) {
      return { findings, next: subjectOf(at.kind, at.after ?? '0') };
    }
  }
}

interface Place {
  readonly kind: LikedKind;
  readonly after: string | null;
}

function placeOf(from: string | null): Place {
  if (from === null) return { kind: 'post', after: null };
  const { kind, id } = partsOf(from as Subject);
  return { kind, after: id };
}

/** Whether a check can go on there. */
export function isPlace(text: string): boolean {
  const [, , id] = PLACE.exec(text) ?? [];
  return id !== undefined && (id === '0' || isId(id));
}

const BY_HAND =
  'somebody wrote to the tables, or restored a part of them: the shop moves a count only together with its rows';

function wrongCount({ subject, count, stored, rows }: WrongCount): Finding {
  const { kind, id } = partsOf(subject);
  const column = `${count}_count`;
  return {
    id: `count-${kind}-${id}-${count}`,
    check: 'counts',
    subject,
    expected: `${column} ${rows}, as many as there are rows`,
    actual: `${column} ${stored}`,
    cause: BY_HAND,
    repair: `set ${column} of row ${id} of ${kind}s to what its rows say, with the row locked: docs/guides/likes.md, “A wrong count”`,
  };
}
