import type { Random } from '../../base/random.ts';
import type { Runtime } from '../../base/runtime.ts';
import { Fleet } from '../fleet.ts';
import { type CrowdFigures, type CrowdTerms, People, type Person } from '../people.ts';
import type { Tally } from '../progress.ts';
import type { TokenOf } from '../tokens.ts';
import { RemoteBoard } from './board.ts';
import type { LikerAnswer, SeenLike } from './evidence.ts';
import { planSteps, type Step, visitPosts } from './liker.ts';
import { judgeLikes, type LikeVerdict } from './verdict.ts';

export interface LikeCrowdOptions extends CrowdTerms {
  likers: number;
  posts: number;
}

/** All results; `--json` prints this object. */
export interface LikeCrowdReport extends CrowdFigures {
  posts: string[];
  likers: number;
  /** Null if the lists could not be read afterwards; `noVerdict` says why. */
  verdict: LikeVerdict | null;
  noVerdict: string | null;
}

export interface LikeWatching {
  /** Aborted by Ctrl-C: no more likers enter, and the verdict covers what is known. */
  readonly interrupt: AbortSignal;
  /** Called once the server has accepted the admin key, before anything is written. */
  begins(): void;
  /** Called once, with a function that returns the progress. */
  progress(tally: () => Tally): void;
}

/** Sends likers to a few new posts, and checks whether P8 held. */
export async function sendLikers(
  options: LikeCrowdOptions,
  { interrupt, begins, progress }: LikeWatching,
  runtime: Runtime,
): Promise<LikeCrowdReport> {
  const { connections, seed, likers, attempts } = options;
  const fleet = new Fleet(options.urls, connections);
  try {
    const board = new RemoteBoard(fleet, options.adminKey, runtime);
    await board.enter();
    begins();
    const plan = (random: Random): Step[] => planSteps(random, attempts, options.posts);
    const people = new People({ terms: options, count: likers, plan, fleet, interrupt, runtime });
    const { tally, random, stop } = people;
    progress(() => tally);
    const author = `${people.prefix}author`;
    const tokenOf = await people.tokens([author]);
    const postIds = await board.write(tokenOf(author), options.posts, seed);

    const answers: LikerAnswer[] = [];
    const heard = (answer: LikerAnswer, tookMs: number | null): void => {
      answers.push(answer);
      if (answer.changed === true) tally.changed++;
      people.heard(tookMs);
    };
    const visit = { fleet, runtime, random, postIds, stop, heard };
    await people.visit('likes', people.all, ({ name, plan: steps, firstDoor }, turnstile) =>
      visitPosts({ user: name, bearer: tokenOf(name), firstDoor }, steps, { ...visit, turnstile }),
    );

    const figures = people.figures(answers);
    let verdict: LikeVerdict | null = null;
    let noVerdict: string | null = null;
    try {
      const waitedMs = options.waitSeconds * 1000;
      const posts = await board.settled(postIds, waitedMs, interrupt);
      const entered = people.all.slice(0, figures.entered);
      const seen = await lookAll(board, entered, tokenOf, postIds, connections);
      verdict = judgeLikes({ answers, posts, seen, waitedMs });
    } catch (error) {
      noVerdict = (error as Error).message;
    }
    return { posts: postIds, likers, ...figures, verdict, noVerdict };
  } finally {
    fleet.close();
  }
}

async function lookAll(
  board: RemoteBoard,
  people: readonly Person<readonly Step[]>[],
  tokenOf: TokenOf,
  postIds: readonly string[],
  width: number,
): Promise<SeenLike[]> {
  const seen: SeenLike[] = [];
  let next = 0;
  const look = async (): Promise<void> => {
    while (next < people.length) {
      const { name } = people[next++]!;
      seen.push(...(await board.seen(name, tokenOf(name), postIds)));
    }
  };
  await Promise.all(Array.from({ length: Math.min(width, people.length) }, look));
  return seen;
}
