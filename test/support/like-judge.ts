import type { Pair, Subject } from '../../src/model/like.ts';

/** What happened between a crowd of likers and a shop. All times are those of one clock. */
export interface LikeHistory {
  readonly calls: readonly LikeCall[];
  readonly looks: readonly LikeLook[];
  readonly sightings: readonly ExactSighting[];
  readonly losses: readonly Span[];
}

export interface Span {
  readonly fromMs: number;
  readonly toMs: number;
}

/** A like, or a like taken back. Calls of one user never overlap. */
export interface LikeCall extends Pair, Span {
  /** The process that was asked. */
  readonly by: string;
  readonly wanted: boolean;
  /** Null: no answer, or one that leaves open whether it had an effect (503). */
  readonly answer: LikeAnswer | null;
}

export interface LikeAnswer {
  readonly liked: boolean;
  readonly changed: boolean;
  readonly count: number;
}

/** A user reads what they like themselves, between two calls. */
export interface LikeLook extends Pair, Span {
  readonly by: string;
  readonly liked: boolean;
  /** Whether the count beside it was said to be exact. */
  readonly exact: boolean;
}

/** A count of this subject was shown as exact: every like that was answered before is stored. */
export interface ExactSighting extends Span {
  readonly subject: Subject;
}

/** What is left when everything is drained. */
export interface LikeEnd {
  /** The rows, by subject and user. A pair without a row was never liked. */
  readonly rows: ReadonlyMap<Subject, ReadonlyMap<string, boolean>>;
  /** The counts in the rows of posts and comments. */
  readonly counts: ReadonlyMap<Subject, number>;
  /** The counts that processes show. */
  readonly shown: readonly { readonly subject: Subject; readonly count: number; readonly exact: boolean }[];
  /** What processes show to callers of their own likes. */
  readonly callers: readonly (Pair & { readonly liked: boolean })[];
}

export interface JudgeRules {
  /** How long after its end a call without an answer may still take effect: a process or a connection may hold it up. */
  readonly lateMs: number;
  /** How long a page waits for Redis at least, before it shows what is stored. */
  readonly waitsMs: number;
  /** For how long a process surely remembers what it decided itself. */
  readonly ownMs: number;
}

const RULES: JudgeRules = { lateMs: 3_000, waitsMs: 500, ownMs: 5_000 };
/** The first few are enough. */
const FAULTS_MAX = 10;

/** What the judge found, and how much of the history was certain: a judge that excuses everything proves nothing. */
export interface LikeVerdict {
  readonly faults: string[];
  readonly pairs: number;
  /** Pairs whose end the model knows, although calls were lost or left open. */
  readonly certain: number;
  /** Pairs that did not end with what their user was answered last: Redis lost it, or a call without an answer came after it. */
  readonly lost: number;
  /** Answers whose `changed` the model knew. */
  readonly changesChecked: number;
  /**
   * Looks that showed what was stored instead of what was decided. Nobody promises more to a process that waits for a Redis that does not
   * answer (docs/guarantees.md, P8): the look says that it is not exact, took as long as that wait, and was made at another process than
   * the like, or long after it. Anything else is a fault.
   */
  readonly behind: number;
}

type Step =
  | { is: 'call'; atMs: number; call: LikeCall }
  | { is: 'look begins' | 'look'; atMs: number; look: LikeLook }
  | { is: 'sighting' | 'loss'; atMs: number };

/**
 * The reference model of P8: for each pair the set of states that it may have, by what its user was answered.
 *
 *   answered     the state is what was wanted, whatever it was before
 *   no answer    it may be either, and may change until `lateMs` later
 *   loss         what was decided and not known to be stored may be lost: any state since the last proof, or what was stored then
 *   sighting     a proof: whatever was answered before it is stored, and no loss takes it back
 *
 * Pure: it knows the history and the end, and nothing of how either came about.
 */
export function judgeLikes(history: LikeHistory, end: LikeEnd, rules: JudgeRules = RULES): LikeVerdict {
  const faults: string[] = [];
  const say = (fault: string): void => {
    if (faults.length < FAULTS_MAX) faults.push(fault);
  };
  const verdict = { pairs: 0, certain: 0, lost: 0, changesChecked: 0, behind: 0 };
  const { losses } = history;
  const overlapsLoss = ({ fromMs, toMs }: Span): boolean =>
    losses.some((loss) => fromMs <= loss.toMs && toMs >= loss.fromMs);
  const proofs = Map.groupBy(
    history.sightings.filter((sighting) => !overlapsLoss(sighting)),
    ({ subject }) => subject,
  );
  const looks = Map.groupBy(history.looks, nameOf);

  const called = Map.groupBy(history.calls, nameOf);
  for (const [name, calls] of called) {
    const { subject, user } = calls[0]!;
    verdict.pairs++;
    const steps: Step[] = [
      ...calls.map((call): Step => ({ is: 'call', atMs: call.toMs, call })),
      ...(looks.get(name) ?? []).flatMap((look): Step[] => [
        { is: 'look begins', atMs: look.fromMs, look },
        { is: 'look', atMs: look.toMs, look },
      ]),
      ...(proofs.get(subject) ?? []).map(({ fromMs }): Step => ({ is: 'sighting', atMs: fromMs })),
      ...losses.map(({ fromMs }): Step => ({ is: 'loss', atMs: fromMs })),
    ].sort((one, other) => one.atMs - other.atMs);

    /** What it may be; what the ledger may have. */
    let states = new Set([false]);
    let stored = new Set([false]);
    let storedThen = stored;
    let open: LikeCall[] = [];
    let last: (LikeCall & { answer: LikeAnswer }) | null = null;
    for (const step of steps) {
      switch (step.is) {
        case 'call': {
          const { wanted, answer, fromMs } = step.call;
          if (answer === null) {
            open.push(step.call);
            states.add(wanted);
            stored.add(wanted);
            break;
          }
          if (answer.liked !== wanted) say(`${name}: asked for ${wanted}, answered ${answer.liked}`);
          if (answer.count < (wanted ? 1 : 0)) say(`${name}: ${wanted} was answered with a count of ${answer.count}`);
          open = open.filter(({ toMs }) => fromMs <= toMs + rules.lateMs);
          const isLossy = overlapsLoss(step.call);
          if (states.size === 1 && open.length === 0 && !isLossy) {
            verdict.changesChecked++;
            const changed = !states.has(wanted);
            if (answer.changed !== changed) {
              say(
                `${name}: at ${ms(fromMs)} it was ${!wanted === changed}, wanted ${wanted}, changed ${answer.changed}`,
              );
            }
          }
          states = new Set([wanted, ...open.map((one) => one.wanted), ...(isLossy ? stored : [])]);
          stored.add(wanted);
          last = { ...step.call, answer };
          break;
        }
        case 'look begins':
          storedThen = new Set(stored);
          break;
        case 'look': {
          const { by, fromMs, toMs, liked, exact } = step.look;
          if (states.has(liked)) break;
          // The ledger may have been read at the beginning, and become newer meanwhile.
          const isStored = stored.has(liked) || storedThen.has(liked);
          const isOwn = last?.by === by && fromMs - last.toMs < rules.ownMs;
          if (!exact && isStored && toMs - fromMs >= rules.waitsMs && !isOwn) verdict.behind++;
          else
            say(
              `${name}: from ${ms(fromMs)} to ${ms(toMs)} ${by} showed ${liked}, exact ${exact}, decided ${[...states]}` +
                `${last === null ? '' : ` by ${last.by} until ${ms(last.toMs)}`}`,
            );
          break;
        }
        case 'sighting':
          stored = new Set(states);
          break;
        case 'loss':
          states = new Set(stored);
      }
    }
    const row = end.rows.get(subject)?.get(user) ?? false;
    if (states.size === 1) verdict.certain++;
    if (!states.has(row)) say(`${name}: stored ${row}, decided ${[...states]}`);
    else if (last !== null && row !== last.wanted) verdict.lost++;
  }

  for (const [subject, users] of end.rows) {
    const liked = [...users.values()].filter(Boolean).length;
    const count = end.counts.get(subject);
    if (count !== liked) say(`${subject}: the count is ${count}, the rows are ${liked}`);
    for (const user of users.keys()) {
      if (!called.has(nameOf({ subject, user }))) say(`${subject} ${user}: a row that nobody asked for`);
    }
  }
  for (const [subject, count] of end.counts) {
    if (!end.rows.has(subject) && count !== 0) say(`${subject}: the count is ${count}, and there are no rows`);
  }
  for (const { subject, count, exact } of end.shown) {
    if (!exact || count !== end.counts.get(subject)) {
      say(`${subject}: shows ${count}${exact ? '' : ', not exact'}; stored ${end.counts.get(subject)}`);
    }
  }
  for (const { subject, user, liked } of end.callers) {
    if (liked !== (end.rows.get(subject)?.get(user) ?? false))
      say(`${subject} ${user}: is shown ${liked} of themselves`);
  }
  return { faults, ...verdict };
}

function nameOf({ subject, user }: Pair): string {
  return `${subject} ${user}`;
}

function ms(time: number): string {
  return `${Math.round(time)} ms`;
}
