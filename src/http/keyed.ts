import { createHash } from 'node:crypto';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { bodyFingerprint, digestOf } from '../base/idempotency.ts';
import { within } from '../base/timers.ts';
import type { KeyedCall } from '../ledger/port.ts';
import type { Identity } from './auth.ts';
import type { HttpContext } from './context.ts';
import { HttpProblem, PROBLEM_TYPE, PROBLEMS } from './problem.ts';
import { keyedBy } from './request.ts';

export type KeyedAnswer =
  | { readonly status: number; readonly body: unknown }
  /** As it was written. */
  | { readonly status: number; readonly problem: string };

/** What a call does, and to what: an id, or nothing where something is made. */
type Deed = Pick<KeyedCall, 'operation' | 'subject'>;

/** An act that has its answer already: the first one's, or one that is bound. */
class Answered {
  readonly answer: KeyedAnswer;

  constructor(answer: KeyedAnswer) {
    this.answer = answer;
  }
}

interface Run<Seen, Result> extends Deed {
  /** Throws unless the caller may see what is operated on. That is judged before a key is looked up, also for a repeat. */
  see: () => Promise<Seen>;
  /** `once`: to be put around what is done under a lock that other processes wait for, too. */
  act: (
    seen: Seen,
    call: KeyedCall | null,
    once: (act: () => Promise<Result>) => Promise<Result | Answered>,
  ) => Promise<Result | Answered>;
  answer: (result: Result) => Promise<KeyedAnswer>;
  /** What a repeat of a 202 gets: how it stands by then. */
  now?: () => Promise<KeyedAnswer>;
}

/** A repeat waits this long for the first try, then is told to come back. */
const REPEAT_WAIT_MS = 5000;

/**
 * Idempotency-Keys of all calls except placing an order, whose keys the gate knows. A key belongs to a caller, an operation
 * and its subject; with another body it is refused. A repeat waits for the first try, and gets its answer.
 *
 * Most of these calls have one effect however often they are sent. What the key adds is that a repeat gets the first answer to
 * the letter, so `run` binds the answer after the effect: if a process dies in between, the repeat does it again, which
 * changes nothing. There are two exceptions:
 *
 *   A declined payment   may succeed when it is tried again. So `pay` acts by `once` under the order's lock: a repeat at
 *                        another process finds the answer when it gets the lock.
 *   A second effect      is what a repeat of some calls would have (changes of a sale, the refund of a part, a new endpoint).
 *                        Those hand the call down, and the ledger stores the key in the transaction of the effect.
 */
export class Keyed {
  readonly #context: HttpContext;
  /** Resolves when the call is done. */
  readonly #running = new Map<string, Promise<true>>();

  constructor(context: HttpContext) {
    this.#context = context;
  }

  /** The call with its key; null: it has none. `body`: what it says, where that is not simply the request's. */
  callOf(who: Identity, request: FastifyRequest, deed: Deed, body: unknown = request.body): KeyedCall | null {
    const keyed = keyedBy(who, request);
    const { operation, subject } = deed;
    return keyed && { ...keyed, operation, subject, fingerprint: bodyFingerprint(body) };
  }

  /** Calls with one key run one after the other in this process: a repeat finds what the first has left. */
  async inTurn<T>(call: KeyedCall | null, work: () => Promise<T>): Promise<T> {
    if (call === null) return await work();
    const { clock, timers } = this.#context.runtime;
    const name = callDigest(call);
    const untilMs = clock.monotonic() + REPEAT_WAIT_MS;
    for (let first = this.#running.get(name); first; first = this.#running.get(name)) {
      const leftMs = Math.max(untilMs - clock.monotonic(), 0);
      if ((await within(timers, first, leftMs)) === null) {
        throw new HttpProblem('idempotency_in_flight', undefined, undefined, { 'retry-after': '1' });
      }
    }
    const mine = Promise.withResolvers<true>();
    this.#running.set(name, mine.promise);
    try {
      return await work();
    } finally {
      this.#running.delete(name);
      mine.resolve(true);
    }
  }

  async run<Seen, Result>(
    request: FastifyRequest,
    reply: FastifyReply,
    deed: Run<Seen, Result>,
  ): Promise<FastifyReply> {
    const { auth, shop } = this.#context;
    const { see, act, answer, now } = deed;
    const call = this.callOf(auth.anyone(request), request, deed);
    const seen = await see();
    if (call === null) {
      const result = await act(seen, null, (acting) => acting());
      return send(reply, result instanceof Answered ? result.answer : await answer(result));
    }
    const find = async (): Promise<KeyedAnswer | null> => {
      const bound = await shop.get().boundAnswer(call);
      if (bound === null) return null;
      if (bound.fingerprint !== call.fingerprint && bound.fingerprint !== formerFingerprint(request.body)) {
        throw new HttpProblem('idempotency_key_reused');
      }
      return JSON.parse(bound.answer) as KeyedAnswer;
    };
    const bind = async (result: Result): Promise<KeyedAnswer> => {
      const given = await decided(() => answer(result));
      await shop.get().bindAnswer(call, JSON.stringify(given));
      return given;
    };
    return await this.inTurn(call, async () => {
      let first = await find();
      if (first === null) {
        const result = await act(seen, call, async (acting) => {
          first = await find();
          return new Answered(first ?? (await bind(await acting())));
        });
        const given = result instanceof Answered ? result.answer : await bind(result);
        if (first === null) return send(reply, given);
      }
      reply.header('idempotent-replayed', 'true');
      return first.status === 202 && now ? send(reply, await now()) : sendAgain(reply, first);
    });
  }
}

/** What the ledger knows a call by that it stores with the call's effect. */
export function callDigest({ caller, actingFor, operation, subject, key }: KeyedCall): string {
  return digestOf(caller, actingFor, operation, subject, key);
}

/** A declined payment is an answer; a buyer who wants to try again takes another key. */
async function decided(answer: () => Promise<KeyedAnswer>): Promise<KeyedAnswer> {
  try {
    return await answer();
  } catch (error) {
    if (!(error instanceof HttpProblem) || error.code !== 'payment_failed') throw error;
    return { status: PROBLEMS[error.code].status, problem: error.body };
  }
}

function send(reply: FastifyReply, answer: KeyedAnswer): FastifyReply {
  reply.code(answer.status);
  return 'problem' in answer
    ? reply.header('content-type', PROBLEM_TYPE).send(answer.problem)
    : reply.send(answer.body);
}

/**
 * To the letter: an answer that an older version gave may lack what the route's schema demands today, and must not become a 500
 * for that.
 */
function sendAgain(reply: FastifyReply, answer: KeyedAnswer): FastifyReply {
  if ('problem' in answer) return send(reply, answer);
  reply.code(answer.status).header('content-type', 'application/json; charset=utf-8');
  return reply.serializer(String).send(JSON.stringify(answer.body));
}

/** As schema 2 stored it, which depended on the order of the body's members: such keys are kept for 24 hours, too. */
function formerFingerprint(body: unknown): string {
  return createHash('sha256')
    .update(JSON.stringify(body ?? {}))
    .digest('hex');
}
