import { Faults, type Finding, finding } from '../faults.ts';
import { count } from '../words.ts';
import { isComeBack, type LikeEvidence, type LikerAnswer } from './evidence.ts';

/**
 * Compares what likers were told with what the lists say (P8). A pure function of the evidence. It reports a fault only if there is no
 * other explanation: after an answer that was lost the state of that liker and post is unknown until the next answer.
 */
export type LikeFinding = Finding<'P8' | 'API'>;

export interface LikeVerdict {
  readonly held: boolean;
  readonly findings: readonly LikeFinding[];
  /** Answers that changed something. */
  readonly changes: number;
  /** Answers that repeated what was so already. */
  readonly repeats: number;
  /** Likes that stand in the lists. */
  readonly likes: number;
  /** Pairs of a liker and a post whose last answer was lost: not a fault. */
  readonly unknown: number;
}

/** What a liker knows of a post by the answers; null: unknown. */
type Known = boolean | null;

export function judgeLikes(evidence: LikeEvidence): LikeVerdict {
  const { answers, posts } = evidence;
  const told = toldAtOnce(answers);
  const findings = [
    explained(answers),
    told.finding,
    storedInTime(evidence),
    countsEqualRows(evidence),
    rowsAsTold(evidence, told.known),
    seenAsTold(evidence, told.known),
  ];
  return {
    held: findings.every(({ held }) => held),
    findings,
    changes: answers.filter(({ changed }) => changed === true).length,
    repeats: answers.filter(({ changed }) => changed === false).length,
    likes: posts.reduce((sum, { likers }) => sum + likers.length, 0),
    unknown: [...told.known.values()].filter((known) => known === null).length,
  };
}

function explained(answers: readonly LikerAnswer[]): LikeFinding {
  const faults = new Faults();
  for (const answer of answers) {
    const { user, status, code, liked, changed, wanted } = answer;
    if (isComeBack(answer)) continue;
    if (status === 200 && liked === wanted && changed !== null) continue;
    faults.add(`${user} wanted ${wordOf(wanted)} and was answered ${status} ${code ?? `liked: ${liked}`}`);
  }
  return finding('API', 'every answer explained', 'UNEXPLAINED', count(answers.length, 'answer'), faults);
}

/** Of the clicks of one step exactly one changes something if it was not so before, and none if it was. */
function toldAtOnce(answers: readonly LikerAnswer[]): { finding: LikeFinding; known: Map<string, Known> } {
  const faults = new Faults();
  const known = new Map<string, Known>();
  const steps = Map.groupBy(answers, (answer) => `${pairOf(answer)}\n${answer.step}`);
  const inOrder = [...steps.values()].sort(([a], [b]) => a!.step - b!.step);
  for (const clicks of inOrder) {
    const { user, postId, wanted } = clicks[0]!;
    const pair = pairOf(clicks[0]!);
    const before = known.has(pair) ? known.get(pair)! : false;
    const changed = clicks.filter((click) => click.changed === true).length;
    const isAnswered = clicks.some(({ status }) => status === 200);
    // A click that got no answer may have been the one that changed it.
    const isSure = clicks.every(({ status }) => status === 200 || status === 429);
    const expected = before === null ? null : before === wanted ? 0 : 1;
    const says = `${user} ${wordOf(wanted)} ${postId}`;
    if (changed > 1) faults.add(`${says}: ${changed} answers say that they changed it`);
    else if (expected === 0 && changed > 0) faults.add(`${says}: it was so already, and the answer says it changed`);
    else if (expected === 1 && changed === 0 && isSure && isAnswered) faults.add(`${says}: no answer says it changed`);
    if (isAnswered) known.set(pair, wanted);
    else if (!isSure) known.set(pair, before === wanted ? before : null);
    else known.set(pair, before);
  }
  const figures = `${count(steps.size, 'step')} of ${count(new Set(answers.map(({ user }) => user)).size, 'liker')}`;
  return { finding: finding('P8', 'a caller’s like is exact at once', 'TOLD WRONG', figures, faults), known };
}

/** Likes that are on their way are neither lost nor counted wrongly: the other findings leave out posts that are not exact. */
function storedInTime({ posts, waitedMs }: LikeEvidence): LikeFinding {
  const late = posts.filter(({ exact }) => !exact);
  if (late.length === 0) {
    return finding('P8', 'every like stored in time', '', count(posts.length, 'post'), new Faults());
  }
  const seconds = Math.round(waitedMs / 1000);
  const what = `likes of ${count(late.length, 'post')} after ${seconds} s`;
  const says = `NOT STORED IN TIME: ${what}; is a worker running? (doorbuster doctor)`;
  return { subject: 'P8', held: false, says, faults: late.length, examples: [] };
}

function countsEqualRows({ posts }: LikeEvidence): LikeFinding {
  const faults = new Faults();
  for (const { id, count: shown, exact, likers } of posts) {
    const different = new Set(likers).size;
    if (different < likers.length) faults.add(`post ${id} has ${likers.length} rows of ${different} likers`);
    if (exact && shown !== likers.length) faults.add(`post ${id} shows ${shown} likes and has ${likers.length} rows`);
  }
  const likes = posts.reduce((sum, { likers }) => sum + likers.length, 0);
  const figures = `${count(likes, 'like')} of ${count(posts.length, 'post')}`;
  return finding('P8', 'counts equal the rows', 'COUNTS DRIFT', figures, faults);
}

function rowsAsTold({ posts }: LikeEvidence, known: ReadonlyMap<string, Known>): LikeFinding {
  const faults = new Faults();
  const unsettled = new Set(posts.filter(({ exact }) => !exact).map(({ id }) => id));
  const rows = new Set(posts.flatMap(({ id, likers }) => likers.map((user) => pairOf({ user, postId: id }))));
  for (const [pair, liked] of known) {
    const [user, postId] = pair.split('\n');
    if (liked === null || unsettled.has(postId!)) continue;
    if (rows.has(pair) === liked) continue;
    faults.add(`${user} was told liked: ${liked} of post ${postId}, and the list says ${!liked}`);
  }
  for (const pair of rows) {
    if (known.has(pair)) continue;
    const [user, postId] = pair.split('\n');
    faults.add(`${user} never asked for post ${postId}, and is in its list`);
  }
  return finding('P8', 'every like stored', 'LOST OR MADE UP', count(known.size, 'pair'), faults);
}

function seenAsTold({ seen }: LikeEvidence, known: ReadonlyMap<string, Known>): LikeFinding {
  const faults = new Faults();
  for (const { user, postId, liked } of seen) {
    const told = known.get(pairOf({ user, postId })) ?? (known.has(pairOf({ user, postId })) ? null : false);
    if (told !== null && told !== liked) {
      faults.add(`${user} was told liked: ${told} of post ${postId}, and sees ${liked}`);
    }
  }
  return finding('P8', 'everybody sees their own likes', 'SEEN WRONG', count(seen.length, 'look'), faults);
}

function pairOf({ user, postId }: { readonly user: string; readonly postId: string }): string {
  return `${user}\n${postId}`;
}

function wordOf(wanted: boolean): string {
  return wanted ? 'like' : 'unlike';
}
