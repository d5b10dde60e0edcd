import { type Random, seededRandom } from '../../base/random.ts';
import type { Runtime } from '../../base/runtime.ts';
import { type CrowdReport, percentiles } from '../crowd.ts';
import { Fleet } from '../fleet.ts';
import { type InFlight, newTally } from '../progress.ts';
import { type TokenOf, tokensFor } from '../tokens.ts';
import { Turnstile } from '../turnstile.ts';
import { RemoteBoard } from './board.ts';
import { isComeBack, type LikerAnswer, type SeenLike } from './evidence.ts';
import { planSteps, type Step, visitPosts } from './liker.ts';
import { judgeLikes, type LikeVerdict } from './verdict.ts';

export interface LikeCrowdOptions {
  /** The addresses of the processes of one shop; at least one. */
  urls: readonly URL[];
  likers: number;
  posts: number;
  /** Steps of each liker. */
  attempts: number;
  /** Requests per second; null: as fast as they are answered. */
  ratePerSecond: number | null;
  connections: number;
  /** How long after the last liker counts may take to become exact. */
  waitSeconds: number;
  adminKey: string;
  authSecret: string | null;
  seed: number;
}

/** All results; `--json` prints this object. */
export interface LikeCrowdReport {
  urls: string[];
  posts: string[];
  likers: number;
  entered: number;
  attempts: number;
  connections: number;
  ratePerSecond: number | null;
  seed: number;
  endedEarly: string | null;
  seconds: number;
  requests: number;
  requestsPerSecond: number;
  /** Answers by status and code; `none`: the connection broke. */
  answers: Record<string, number>;
  latencyMs: CrowdReport['latencyMs'];
  /** Null if the lists could not be read afterwards; `noVerdict` says why. */
  verdict: LikeVerdict | null;
  noVerdict: string | null;
}

/** Likers per connection: one who waits before a retry leaves the connection to another. */
const INSIDE_PER_CONNECTION = 4;
/** After so many requests in a row that nobody answered the crowd goes home. */
const SILENT_MAX = 200;

export interface LikeWatching {
  /** Aborted by Ctrl-C: no more likers enter, and the verdict covers what is known. */
  readonly interrupt: AbortSignal;
  /** Called once, with a function that returns the progress. */
  progress(inFlight: () => InFlight): void;
}

interface Person {
  readonly name: string;
  readonly steps: readonly Step[];
  readonly firstDoor: number;
}

/** Sends likers to a few new posts, and checks whether P8 held. */
export async function sendLikers(
  options: LikeCrowdOptions,
  watching: LikeWatching,
  runtime: Runtime,
): Promise<LikeCrowdReport> {
  const { connections, seed, attempts } = options;
  const fleet = new Fleet(options.urls, connections);
  const stop = new AbortController();
  let endedEarly: string | null = null;
  const end = (reason: string): void => {
    endedEarly ??= reason;
    stop.abort();
  };
  if (watching.interrupt.aborted) end('interrupted');
  watching.interrupt.addEventListener('abort', () => end('interrupted'));
  try {
    const board = new RemoteBoard(fleet, options.adminKey, runtime);
    await board.enter();
    const random = seededRandom(seed);
    // The seed repeats the crowd's plans; the time makes new likers of it, who have liked nothing here before.
    const prefix = `crowd-${seed.toString(36)}-${runtime.clock.now().toString(36)}-`;
    const people = peopleOf(prefix, options, random);
    const inFlight = newTally(options.likers);
    watching.progress(() => inFlight);
    const author = `${prefix}author`;
    const tokenOf = await tokensFor([author, ...people.map(({ name }) => name)], {
      client: fleet.door(),
      turnstile: new Turnstile(runtime, connections, null, stop.signal),
      runtime,
      authSecret: options.authSecret,
      stop: stop.signal,
      asked: (tokens) => {
        inFlight.done = tokens;
      },
    });
    const postIds = await board.write(tokenOf(author), options.posts, seed);
    Object.assign(inFlight, { stage: 'likes', done: 0 });

    const answers: LikerAnswer[] = [];
    const latenciesMs: number[] = [];
    let silent = 0;
    const heard = (answer: LikerAnswer, tookMs: number | null): void => {
      answers.push(answer);
      inFlight.requests++;
      if (answer.changed === true) inFlight.changed++;
      if (tookMs !== null) latenciesMs.push(tookMs);
      silent = answer.status === null ? silent + 1 : 0;
      if (silent >= SILENT_MAX) end('the server went away');
    };
    const startedMs = runtime.clock.monotonic();
    const turnstile = new Turnstile(runtime, connections, options.ratePerSecond, stop.signal);
    const visit = { fleet, turnstile, runtime, random, postIds, stop: stop.signal, heard };
    let entered = 0;
    const oneAfterAnother = async (): Promise<void> => {
      while (entered < people.length && !stop.signal.aborted) {
        const { name, steps, firstDoor } = people[entered++]!;
        await visitPosts({ user: name, bearer: tokenOf(name), firstDoor }, steps, visit);
        if (!stop.signal.aborted) inFlight.done++;
      }
    };
    const inside = Math.min(people.length, connections * INSIDE_PER_CONNECTION);
    await Promise.all(Array.from({ length: inside }, oneAfterAnother));
    const seconds = (runtime.clock.monotonic() - startedMs) / 1000;

    let verdict: LikeVerdict | null = null;
    let noVerdict: string | null = null;
    try {
      const waitedMs = options.waitSeconds * 1000;
      const posts = await board.settled(postIds, waitedMs, watching.interrupt);
      const seen = await lookAll(board, people.slice(0, entered), tokenOf, postIds, connections);
      verdict = judgeLikes({ answers, posts, seen, waitedMs });
    } catch (error) {
      noVerdict = (error as Error).message;
    }
    return {
      urls: options.urls.map(({ href }) => href),
      posts: postIds,
      likers: options.likers,
      entered,
      attempts,
      connections,
      ratePerSecond: options.ratePerSecond,
      seed,
      endedEarly,
      seconds,
      requests: answers.length,
      requestsPerSecond: seconds > 0 ? answers.length / seconds : 0,
      answers: byStatus(answers),
      latencyMs: percentiles(latenciesMs),
      verdict,
      noVerdict,
    };
  } finally {
    fleet.close();
  }
}

function peopleOf(prefix: string, { likers, attempts, posts }: LikeCrowdOptions, random: Random): Person[] {
  const digits = String(likers).length;
  return Array.from({ length: likers }, (_, at) => ({
    name: prefix + String(at + 1).padStart(digits, '0'),
    steps: planSteps(random, attempts, posts),
    firstDoor: at,
  }));
}

async function lookAll(
  board: RemoteBoard,
  people: readonly Person[],
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

function byStatus(answers: readonly LikerAnswer[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const answer of answers) {
    const { status, code } = answer;
    const name = status === null ? 'none' : isComeBack(answer) || code !== null ? `${status} ${code}` : String(status);
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
}
