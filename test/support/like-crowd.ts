import type { Random } from '../../src/base/random.ts';
import type { Subject } from '../../src/model/like.ts';
import { partsOf } from '../../src/model/like.ts';
import { ConnectionLost, CrowdClient, type CrowdReply, type CrowdRequest } from './crowd-client.ts';
import { below, crowdOf, oneOf, shuffled } from './crowd-record.ts';
import { sleep, until } from './fault-wait.ts';
import type { ExactSighting, LikeCall, LikeEnd, LikeHistory, LikeLook, Span } from './like-judge.ts';
import type { TestServer } from './server.ts';

export interface LikePlan {
  users: number;
  posts: number;
  comments: number;
  /** Users at once. */
  atOnce: number;
  /** How often the watcher reads all counts. */
  watchMs: number;
}

/** Subjects that a user comes back to. */
const FAVOURITES = 4;
const STEPS_MAX = 4;
const TRIES_MAX = 40;
const RETRY_MS = 100;
/** Between two calls of a user, at most: without it the crowd takes both cores, and workers store nothing. */
const THINKS_MS_MAX = 50;
const AUTHOR = 'author';
const WATCHER = 'watcher';
/** The first few are enough. */
const STRANGE_MAX = 5;

/**
 * A crowd that likes and takes back over HTTP, at any of the processes that are alive. A user's calls come one after the other, each
 * possibly at another process. Whoever gets no answer or a 503 mostly retries. A watcher reads the counts of all subjects meanwhile,
 * and notes which are said to be exact.
 */
export class LikeCrowd {
  readonly calls: LikeCall[] = [];
  readonly looks: LikeLook[] = [];
  readonly sightings: ExactSighting[] = [];
  readonly losses: Span[] = [];
  /** Answers that are outside of the contract, as text; a healthy run has none. */
  readonly strange: string[] = [];
  readonly #random: Random;
  readonly #plan: LikePlan;
  readonly #servers: TestServer[] = [];
  readonly #clients = new Map<TestServer, CrowdClient>();
  readonly #subjects: Subject[] = [];
  readonly #users: readonly string[];
  readonly #favourites = new Map<string, Subject[]>();
  readonly #busy = new Set<string>();
  /** When the likes that are under way were begun. */
  readonly #underWay = new Set<{ fromMs: number }>();
  #answered = 0;
  #stopped = false;
  /** The post that all comments belong to. */
  #commented = '';

  constructor(plan: LikePlan, random: Random) {
    this.#plan = plan;
    this.#random = random;
    this.#users = shuffled(
      random,
      Array.from({ length: plan.users }, (_, at) => `user-${at}`),
    );
  }

  get history(): LikeHistory {
    return this;
  }

  get users(): readonly string[] {
    return this.#users;
  }

  get answered(): number {
    return this.#answered;
  }

  /** Every like that was begun before is recorded. */
  hasRecorded(beforeMs: number): boolean {
    return [...this.#underWay].every(({ fromMs }) => fromMs > beforeMs);
  }

  /** Users turn to this process, too. */
  came(server: TestServer): void {
    this.#clients.set(server, new CrowdClient(server.url, 64));
    this.#servers.push(server);
  }

  /** Nobody turns to this process any more. */
  leaves(server: TestServer): void {
    this.#servers.splice(this.#servers.indexOf(server), 1);
  }

  /** Posts and comments without likes. */
  async prepare(): Promise<void> {
    const make = async (path: string, body: object): Promise<string> => {
      const { status, body: made } = await this.#send({ path, buyer: AUTHOR, body });
      if (status !== 201) throw new Error(`${path}: ${status} ${JSON.stringify(made)}`);
      return made.id;
    };
    const { posts, comments } = this.#plan;
    for (let at = 0; at < posts; at++) {
      this.#subjects.push(`post:${await make('/v1/posts', { title: `Post ${at}`, content: 'Text' })}`);
    }
    this.#commented = partsOf(this.#subjects[0]!).id;
    for (let at = 0; at < comments; at++) {
      const id = await make(`/v1/posts/${this.#commented}/comments`, { content: `Comment ${at}` });
      this.#subjects.push(`comment:${id}`);
    }
    for (const user of this.#users) {
      // Some subjects are much more popular than others.
      const favourite = (): Subject =>
        this.#subjects[Math.floor(this.#random.fraction() ** 2 * this.#subjects.length)]!;
      this.#favourites.set(user, Array.from({ length: FAVOURITES }, favourite));
    }
  }

  /** Until `enough`, and every user has come at least once. */
  async run(enough: () => boolean): Promise<void> {
    this.#stopped = false;
    const watching = this.#watch();
    let visits = 0;
    const visitors = function* (this: LikeCrowd): Generator<string> {
      for (;;) yield* this.#users;
    };
    await crowdOf(visitors.call(this), this.#plan.atOnce, async (user) => {
      if (visits >= this.#users.length && enough()) return false;
      if (this.#busy.has(user)) return sleep(5);
      visits++;
      this.#busy.add(user);
      await this.#visit(user);
      this.#busy.delete(user);
      return;
    });
    this.#stopped = true;
    await watching;
  }

  async #visit(user: string): Promise<void> {
    const random = this.#random;
    for (let steps = 1 + below(random, STEPS_MAX); steps > 0; steps--) {
      const subject = oneOf(random, this.#favourites.get(user)!);
      const wanted = random.fraction() < 0.6;
      let isOpen = !(await this.#like(user, subject, wanted));
      // Most retry until they hear something; some give up or change their mind.
      for (let tries = 0; isOpen && tries < TRIES_MAX && random.fraction() < 0.9; tries++) {
        await sleep(RETRY_MS * (0.5 + random.fraction()));
        isOpen = !(await this.#like(user, subject, wanted));
      }
      if (random.fraction() < 0.2) await this.#like(user, subject, wanted);
      if (random.fraction() < 0.1) await this.#look(user, subject);
      await sleep(below(random, THINKS_MS_MAX));
    }
  }

  /** True if it was answered. */
  async #like(user: string, subject: Subject, wanted: boolean): Promise<boolean> {
    const begun = { fromMs: performance.now() };
    const { fromMs } = begun;
    this.#underWay.add(begun);
    const path = `${pathOf(subject)}/like`;
    const server = oneOf(this.#random, this.#servers);
    const reply = await this.#send({ method: wanted ? 'PUT' : 'DELETE', path, buyer: user }, server).catch(lost);
    this.#underWay.delete(begun);
    if (reply === 'not sent') return false;
    const toMs = performance.now();
    if (reply !== null && reply.status !== 200 && reply.status !== 503) this.#note(path, reply);
    const answer = reply?.status === 200 ? { ...reply.body, count: reply.body.likes.count } : null;
    this.calls.push({ subject, user, by: server.url, wanted, fromMs, toMs, answer });
    if (answer !== null) this.#answered++;
    return answer !== null;
  }

  async #look(user: string, subject: Subject): Promise<void> {
    const fromMs = performance.now();
    // Mostly at another process than the like.
    const server = oneOf(this.#random, this.#servers);
    const reply = await this.#send({ method: 'GET', path: pathOf(subject), buyer: user }, server).catch(lost);
    if (reply === null || reply === 'not sent') return;
    if (reply.status === 200) {
      const { liked, likes } = reply.body;
      const toMs = performance.now();
      this.looks.push({ subject, user, by: server.url, fromMs, toMs, liked, exact: likes.exact });
    } else if (reply.status !== 503) this.#note(pathOf(subject), reply);
  }

  async #watch(): Promise<void> {
    while (!this.#stopped) {
      const fromMs = performance.now();
      const shown = await this.#shownBy(oneOf(this.#random, this.#servers), WATCHER);
      const toMs = performance.now();
      for (const { subject, likes } of shown ?? []) {
        if (likes.count < 0 && this.strange.length < STRANGE_MAX) this.strange.push(`${subject}: ${likes.count} likes`);
        if (likes.exact) this.sightings.push({ subject, fromMs, toMs });
      }
      await sleep(this.#plan.watchMs);
    }
  }

  /** All posts and comments as a process shows them to a user; null: it does not answer. */
  async #shownBy(server: TestServer, buyer: string): Promise<ShownSubject[] | null> {
    const comments = this.#plan.comments > 0 ? [`/v1/posts/${this.#commented}/comments?limit=200`] : [];
    const replies = await Promise.all(
      ['/v1/posts?limit=200', ...comments].map((path) =>
        this.#send({ method: 'GET', path, buyer }, server).catch(lost),
      ),
    );
    const answers = replies.filter((reply) => reply !== null && reply !== 'not sent' && reply.status === 200);
    if (answers.length < replies.length) return null;
    return (answers as CrowdReply[]).flatMap(({ body }, at) =>
      body.data.map(({ id, likes, liked }: { id: string } & Omit<ShownSubject, 'subject'>) => {
        return { subject: `${at === 0 ? 'post' : 'comment'}:${id}`, likes, liked };
      }),
    );
  }

  /** Waits until every process shows every count as exact, and reads what these users see of themselves. */
  async shown(users: readonly string[], withinMs: number): Promise<Pick<LikeEnd, 'shown' | 'callers'>> {
    const shown: LikeEnd['shown'][number][] = [];
    const callers: LikeEnd['callers'][number][] = [];
    for (const server of this.#servers) {
      let seen: ShownSubject[] | null = null;
      const isExact = async (): Promise<boolean> => {
        seen = await this.#shownBy(server, WATCHER);
        return seen?.every(({ likes }) => likes.exact) === true;
      };
      const what = (): string => JSON.stringify(seen?.filter(({ likes }) => !likes.exact));
      await until(`all counts of ${server.url} are exact`, withinMs, isExact, what);
      for (const { subject, likes } of seen!) shown.push({ subject, ...likes });
    }
    await crowdOf(users, 16, async (user) => {
      const seen = await this.#shownBy(oneOf(this.#random, this.#servers), user);
      if (seen === null) throw new Error(`no answer to ${user}`);
      for (const { subject, liked } of seen) callers.push({ subject, user, liked });
    });
    return { shown, callers };
  }

  #send(request: CrowdRequest, server = oneOf(this.#random, this.#servers)): Promise<CrowdReply> {
    return this.#clients.get(server)!.send(request);
  }

  #note(path: string, { status, body }: CrowdReply): void {
    if (this.strange.length < STRANGE_MAX) this.strange.push(`${path}: ${status} ${JSON.stringify(body)}`);
  }

  close(): void {
    for (const client of this.#clients.values()) client.close();
  }
}

interface ShownSubject {
  subject: Subject;
  likes: { count: number; exact: boolean };
  liked: boolean;
}

function pathOf(subject: Subject): string {
  const { kind, id } = partsOf(subject);
  return `/v1/${kind}s/${id}`;
}

/** What a call without an answer has come to; null: nobody knows. */
function lost(error: unknown): 'not sent' | null {
  if (error instanceof ConnectionLost) return error.sent ? null : 'not sent';
  throw error;
}

type Query = (sql: string) => Promise<Record<string, unknown>[]> | Record<string, unknown>[];

/** The rows and counts of a ledger, read with SQL and none of our code. `text`: the database's name of the type. */
export async function storedLikes(query: Query, text: 'TEXT' | 'CHAR'): Promise<Pick<LikeEnd, 'rows' | 'counts'>> {
  const rows = new Map<Subject, Map<string, boolean>>();
  const counts = new Map<Subject, number>();
  for (const kind of ['post', 'comment'] as const) {
    const subjects = await query(`SELECT CAST(id AS ${text}) AS id, likes_count FROM ${kind}s`);
    for (const { id, likes_count: count } of subjects) counts.set(`${kind}:${id}`, Number(count));
    const likes = await query(`SELECT CAST(${kind}_id AS ${text}) AS id, liker, liked FROM ${kind}_likes`);
    for (const { id, liker, liked } of likes) {
      const subject: Subject = `${kind}:${id}`;
      if (!rows.has(subject)) rows.set(subject, new Map());
      rows.get(subject)!.set(String(liker), Number(liked) === 1);
    }
  }
  return { rows, counts };
}
