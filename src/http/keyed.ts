import { createHash } from 'node:crypto';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { bodyFingerprint } from '../base/idempotency.ts';
import { within } from '../base/timers.ts';
import type { KeyScope } from '../ledger/port.ts';
import type { HttpContext } from './context.ts';
import { HttpProblem, PROBLEM_TYPE, PROBLEMS } from './problem.ts';
import { keyedBy } from './request.ts';

export type Answer =
  | { readonly status: number; readonly body: unknown }
  /** As it was written. */
  | { readonly status: number; readonly problem: string };

/** Gets the first answer if there is one by now; else it acts, and binds what that answers. */
export type Once = (act: () => Promise<Answer>) => Promise<Answer>;

/** What a call does, to what, and how. */
interface Deed<Seen> extends Pick<KeyScope, 'operation' | 'subject'> {
  see: () => Promise<Seen>;
  work: (seen: Seen, keyed: string | null, once: Once) => Promise<Answer>;
  now?: () => Promise<Answer>;
}

/** A repeat waits this long for the first try, then is told to come back. */
const REPEAT_WAIT_MS = 5000;

/**
 * Idempotency-Keys of calls that move an order. Such a call has one effect by itself, however often it is sent: what the key
 * adds is that a repeat gets the first answer to the letter. So the answer is bound after the effect; a process that dies in
 * between has the repeat do it again, which changes nothing.
 *
 * A declined payment is no such effect: done again, it may succeed. So whoever pays holds the order's lock, and does it by
 * `once`: a repeat that waited at another process finds the answer when it has the lock.
 */
export class Keyed {
  readonly #context: HttpContext;
  readonly #running = new Map<string, Promise<unknown>>();

  constructor(context: HttpContext) {
    this.#context = context;
  }

  /**
   * `see` throws unless the caller may see what is operated on: that is judged before a key is looked up, for a repeat as for
   * the first. `now`: what a repeat of a 202 gets: how it stands by then. `work` is told by what a repeat is known, where doing
   * it again would have a second effect; and given `once`, for what it does under a lock that other processes wait for, too.
   */
  async run<Seen>(
    request: FastifyRequest,
    reply: FastifyReply,
    { operation, subject, see, work, now }: Deed<Seen>,
  ): Promise<FastifyReply> {
    const { auth, shop, runtime } = this.#context;
    const keyed = keyedBy(auth.anyone(request), request);
    const seen = await see();
    if (keyed === null) return send(reply, await work(seen, null, (act) => act()));
    const scope: KeyScope = { ...keyed, operation, subject };
    const fingerprint = bodyFingerprint(request.body);
    const name = JSON.stringify([scope.caller, scope.actingFor, operation, subject, scope.key]);
    const find = async (): Promise<Answer | null> => {
      const bound = await shop.get().boundAnswer(scope);
      if (bound === null) return null;
      if (bound.fingerprint !== fingerprint && bound.fingerprint !== formerFingerprint(request.body)) {
        throw new HttpProblem('idempotency_key_reused');
      }
      return JSON.parse(bound.answer) as Answer;
    };
    const untilMs = runtime.clock.monotonic() + REPEAT_WAIT_MS;
    for (let first = this.#running.get(name); first; first = this.#running.get(name)) {
      const leftMs = untilMs - runtime.clock.monotonic();
      const ended = first.then(() => true);
      if ((await within(runtime.timers, ended, Math.max(leftMs, 0))) === null) {
        throw new HttpProblem('idempotency_in_flight', undefined, undefined, { 'retry-after': '1' });
      }
    }
    const mine = Promise.withResolvers<void>();
    this.#running.set(name, mine.promise);
    try {
      let first = await find();
      if (first === null) {
        let bound = false;
        const bind = async (answer: Answer): Promise<void> => {
          await shop.get().bindAnswer({ ...scope, fingerprint }, JSON.stringify(answer));
          bound = true;
        };
        const once: Once = async (act) => {
          first = await find();
          if (first !== null) return first;
          const answer = await answerOf(act);
          await bind(answer);
          return answer;
        };
        const answer = await answerOf(() => work(seen, name, once));
        if (first === null) {
          if (!bound) await bind(answer);
          return send(reply, answer);
        }
      }
      reply.header('idempotent-replayed', 'true');
      return first.status === 202 && now ? send(reply, await now()) : sendAgain(reply, first);
    } finally {
      this.#running.delete(name);
      mine.resolve();
    }
  }
}

/** A declined payment is an answer; whoever wants to try again takes another key. */
async function answerOf(act: () => Promise<Answer>): Promise<Answer> {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof HttpProblem) || error.code !== 'payment_failed') throw error;
    return { status: PROBLEMS[error.code].status, problem: error.body };
  }
}

function send(reply: FastifyReply, answer: Answer): FastifyReply {
  reply.code(answer.status);
  return 'problem' in answer
    ? reply.header('content-type', PROBLEM_TYPE).send(answer.problem)
    : reply.send(answer.body);
}

/**
 * To the letter: an answer that an older version gave may lack what the route's schema demands today, and must not become a 500
 * for that.
 */
function sendAgain(reply: FastifyReply, answer: Answer): FastifyReply {
  if ('problem' in answer) return send(reply, answer);
  reply.code(answer.status).header('content-type', 'application/json; charset=utf-8');
  return reply.serializer(String).send(JSON.stringify(answer.body));
}

/** As it was bound up to schema 2: it depended on the order of the body's members. Such a key is kept for 24 hours, too. */
function formerFingerprint(body: unknown): string {
  return createHash('sha256')
    .update(JSON.stringify(body ?? {}))
    .digest('hex');
}
