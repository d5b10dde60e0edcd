import type { Random } from '../../base/random.ts';
import { type Clicked, type Clicking, click } from '../click.ts';
import { codeOf } from '../client.ts';
import type { Fleet } from '../fleet.ts';
import { isComeBack, type LikerAnswer } from './evidence.ts';

/** One step of a liker: like a post or take it back, by one click or by two at once. */
export interface Step {
  /** Which of the posts. */
  readonly post: number;
  readonly wanted: boolean;
  readonly clicks: 1 | 2;
}

const DOUBLE_CLICK_SHARE = 0.2;
const UNLIKE_SHARE = 0.4;

/** Plans what a liker will do. Drawn before the liker enters, so that a seed gives the same crowd. */
export function planSteps(random: Random, steps: number, posts: number): Step[] {
  return Array.from({ length: steps }, () => ({
    post: Math.floor(random.fraction() * posts),
    wanted: random.fraction() >= UNLIKE_SHARE,
    clicks: random.fraction() < DOUBLE_CLICK_SHARE ? 2 : 1,
  }));
}

export interface LikerVisit extends Clicking {
  readonly fleet: Fleet;
  readonly postIds: readonly string[];
  readonly heard: (answer: LikerAnswer, tookMs: number | null) => void;
}

export interface Liker {
  readonly user: string;
  readonly bearer: string;
  /** The address of the first click. Each further click goes to the next address. */
  readonly firstDoor: number;
}

/** All steps one after the other; the clicks of one step at the same time, at different processes where there are several. */
export async function visitPosts(liker: Liker, steps: readonly Step[], on: LikerVisit): Promise<void> {
  let door = liker.firstDoor;
  for (const [at, { post, wanted, clicks }] of steps.entries()) {
    if (on.stop.aborted) return;
    const asked = { user: liker.user, postId: on.postIds[post]!, step: at, wanted };
    await Promise.all(
      Array.from({ length: clicks }, () => click(door++, (to) => ask(asked, liker.bearer, to, on), on)),
    );
  }
}

type Asked = Pick<LikerAnswer, 'user' | 'postId' | 'step' | 'wanted'>;

async function ask(
  asked: Asked,
  bearer: string,
  door: number,
  { fleet, runtime, heard }: LikerVisit,
): Promise<Clicked> {
  const sentMs = runtime.clock.monotonic();
  const path = `/v1/posts/${asked.postId}/like`;
  const reply = await fleet.client(door).call(asked.wanted ? 'PUT' : 'DELETE', path, { bearer });
  const { liked, changed } = (reply.ok ? (reply.body ?? {}) : {}) as { liked?: unknown; changed?: unknown };
  const answer: LikerAnswer = {
    ...asked,
    status: reply.ok ? reply.status : null,
    code: reply.ok ? codeOf(reply.body) : null,
    liked: typeof liked === 'boolean' ? liked : null,
    changed: typeof changed === 'boolean' ? changed : null,
  };
  heard(answer, reply.ok ? runtime.clock.monotonic() - sentMs : null);
  return { reply, comeBack: isComeBack(answer) };
}
