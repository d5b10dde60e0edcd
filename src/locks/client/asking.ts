import type { LockClient } from './client.ts';
import { AbortedError, HeldError, NotOwnerError, TimeoutError, UnavailableError } from './errors.ts';
import { eventOf } from './events.ts';
import { Hold } from './hold.ts';
import type { AcquireReply } from './port.ts';
import { RETRY_MS_MAX, RETRY_MS_MIN, Waiter } from './waiter.ts';
import { LOOK_MS_MAX } from './waiting.ts';
import { type Done, describe, type Terms, type Wanted } from './wanted.ts';

/** A replica that has just joined reports for the first time after a second. */
const REPLICAS_MS = 1500;
/** A store that has not answered its first question for so long is reported as unreachable, not as slow. */
const SILENT_MS = 100;

/** The lock was granted, but reached fewer replicas than asked for. */
class ReplicasError extends UnavailableError {}

/**
 * Calls that want a lock. Each asks the store until it has an answer, is woken or gives up. A call ends exactly once, with
 * the lock or with one error, and leaves nothing behind at the store, whatever was lost on the way.
 */
export class Asking {
  readonly #client: LockClient;
  readonly #waiters = new Map<string, Waiter>();

  constructor(client: LockClient) {
    this.#client = client;
  }

  /** Calls that wait for a lock now. */
  get count(): number {
    return this.#waiters.size;
  }

  waiter(rid: string): Waiter | undefined {
    return this.#waiters.get(rid);
  }

  begin(
    wanted: Wanted,
    terms: Terms,
    from: Hold | null,
    reject: (error: unknown) => void,
    resolve: (end: Hold | Done | null) => void,
  ): void {
    const client = this.#client;
    if (client.closed || terms.signal?.aborted) {
      reject(this.#refusal(wanted, terms));
      return;
    }
    const waiter = new Waiter(client, wanted, terms, from, resolve, reject);
    client.keepAlive.hold();
    this.#waiters.set(waiter.rid, waiter);
    if (client.emitter.hears('asked')) client.emitter.tell('asked', eventOf(waiter));
    if (terms.waitMs > 0 && terms.waitMs !== Infinity) this.#limit(waiter);
    if (terms.signal) this.#follow(waiter, terms.signal);
    waiter.asking = true;
    this.#send(waiter, waiter.beganMs);
  }

  #limit(waiter: Waiter): void {
    const { waitMs } = waiter.terms;
    waiter.stopTimer = this.#client.runtime.timers.after(waitMs, () => {
      const what = describe(waiter.wanted);
      // With Redis out nobody can say whether it is held: "timeout" would send the caller to look for a holder.
      this.giveUp(
        waiter,
        this.#hasAnswered(waiter)
          ? new TimeoutError(`${what} was not had within ${waitMs} ms`)
          : new UnavailableError(
              `${what} was not had within ${waitMs} ms: ${this.#client.store.trouble ?? 'its store does not answer'}`,
              { cause: waiter.failure },
            ),
      );
    });
  }

  /** Whether the store has answered it: it stands in the queue, or its first question is too young to tell. */
  #hasAnswered({ outSinceMs, asking, queued, beganMs }: Waiter): boolean {
    if (outSinceMs !== 0) return false;
    return !asking || queued || this.#client.nowMs() - beganMs < SILENT_MS;
  }

  #follow(waiter: Waiter, signal: AbortSignal): void {
    const aborted = (): void => this.giveUp(waiter, this.#refusal(waiter.wanted, waiter.terms));
    signal.addEventListener('abort', aborted, { once: true });
    waiter.stopSignal = () => signal.removeEventListener('abort', aborted);
  }

  #refusal(wanted: Wanted, terms: Terms): Error {
    if (this.#client.closed) return new AbortedError('the locks are closed');
    return new AbortedError(`waiting for ${describe(wanted)} was aborted`, { cause: terms.signal?.reason });
  }

  /** The call ends. Everything that it had here is gone before its caller hears of it. */
  settle(waiter: Waiter, end: Hold | Done | null, error: unknown = undefined): void {
    const { keepAlive, emitter, waiting } = this.#client;
    waiter.settled = true;
    this.#waiters.delete(waiter.rid);
    if (waiter.line) waiting.leave(waiter, waiter.line);
    waiter.stopTimer?.();
    waiter.stopSignal?.();
    keepAlive.drop();
    if (emitter.used) this.#tellEnd(waiter, end, error);
    if (error !== undefined) waiter.reject(error);
    else waiter.resolve(end);
  }

  #tellEnd(waiter: Waiter, end: Hold | Done | null, error: unknown): void {
    const { emitter } = this.#client;
    const waitedMs = this.#client.nowMs() - waiter.beganMs;
    if (end instanceof Hold) {
      if (emitter.hears('acquired')) {
        const waited = waiter.told;
        emitter.tell('acquired', { ...eventOf(waiter), token: end.token, waitedMs, waited });
      }
    } else if (!(end && 'result' in end) && emitter.hears('failed')) {
      const reason =
        error instanceof TimeoutError
          ? 'timeout'
          : error instanceof AbortedError
            ? 'aborted'
            : error === undefined || error instanceof HeldError
              ? 'held'
              : 'unavailable';
      emitter.tell('failed', { ...eventOf(waiter), reason, waitedMs });
    }
  }

  /** Asks the store until it has answered, the call has ended, or the store was out for too long. */
  ask(waiter: Waiter): void {
    if (waiter.settled) return;
    if (waiter.asking) {
      // The store may have answered what is under way before the reason to ask again came up.
      waiter.again = true;
      return;
    }
    waiter.asking = true;
    this.#send(waiter);
  }

  #send(waiter: Waiter, sentMs = this.#client.nowMs()): void {
    const { store } = this.#client;
    const wantsQueue = waiter.terms.waitMs > 0;
    const hears = wantsQueue && store.hears(waiter.wanted);
    // A queued request must be able to hear its wake-up. The first try does not queue, which spares most processes the
    // second connection.
    if (waiter.queued && !hears) {
      store.listen(waiter.wanted).then(
        () => this.#send(waiter),
        (error: unknown) => this.#unanswered(waiter, sentMs, error),
      );
      return;
    }
    this.#command(waiter, hears).then(
      (reply) => this.#answered(waiter, sentMs, hears, reply),
      (error: unknown) => this.#unanswered(waiter, sentMs, error),
    );
  }

  #command(waiter: Waiter, queue: boolean): Promise<AcquireReply> {
    waiter.queue = queue;
    if (waiter.from) return this.#change(waiter, waiter.from);
    if (waiter.terms.replicas > 0) return this.#replicated(waiter);
    return this.#client.store.acquire(waiter);
  }

  async #replicated(waiter: Waiter): Promise<AcquireReply> {
    const { replicas } = waiter.terms;
    const [reply, confirmed] = await this.#client.store.acquireReplicated(waiter, replicas, REPLICAS_MS);
    if (reply.outcome === 'granted' && confirmed < replicas) {
      // Not tried again: the caller asked for that many, and they are not there.
      throw new ReplicasError(`${describe(waiter.wanted)} reached ${confirmed} of ${replicas} replicas`);
    }
    return reply;
  }

  async #change(waiter: Waiter, from: Hold): Promise<AcquireReply> {
    const { rid: nextRid, mode: to, kind, name, leaseMs, queue, handOverMs, info } = waiter;
    const reply = await this.#client.store.change({
      kind,
      name,
      rid: from.rid,
      nextRid,
      to,
      leaseMs,
      queue,
      handOverMs,
      info,
    });
    if (reply.outcome === 'absent') {
      from.lose('refused');
      throw from.loss ?? new NotOwnerError(`${describe(from)} was released`);
    }
    if (reply.outcome === 'busy') {
      // A first try that could not queue says nothing: ask again with the right to wait. Otherwise another reader is
      // waiting to upgrade already.
      if (waiter.terms.waitMs > 0 && !queue) return { outcome: 'held', retryMs: LOOK_MS_MAX, ticket: 0 };
      const why = waiter.terms.waitMs > 0 ? 'another reader waits to upgrade' : 'there are other readers';
      throw new HeldError(`${describe(from)} cannot be upgraded: ${why}`);
    }
    return reply;
  }

  #unanswered(waiter: Waiter, sentMs: number, error: unknown): void {
    if (waiter.settled) return;
    const { closed, settings, runtime } = this.#client;
    if (!(error instanceof UnavailableError) || error instanceof ReplicasError || closed) {
      this.giveUp(waiter, error);
      return;
    }
    waiter.ambiguous = true;
    waiter.failure = error;
    waiter.outSinceMs ||= sentMs;
    if (this.#client.nowMs() - waiter.outSinceMs + waiter.retryMs >= settings.outageMs) {
      this.giveUp(waiter, error);
      return;
    }
    const pauseMs = waiter.retryMs * (0.5 + runtime.random.fraction());
    waiter.retryMs = Math.min(waiter.retryMs * 2, RETRY_MS_MAX);
    runtime.timers.after(pauseMs, () => {
      if (!waiter.settled) this.#send(waiter);
    });
  }

  #answered(waiter: Waiter, sentMs: number, heard: boolean, reply: AcquireReply): void {
    const { holding, waiting, givingBack } = this.#client;
    if (waiter.settled) {
      // It gave up meanwhile. Or it learned of its grant before this reply came: then it is in use and must not be given back.
      if (reply.outcome === 'granted' && !holding.has(waiter.rid)) givingBack.clean(waiter);
      return;
    }
    waiter.outSinceMs = 0;
    waiter.retryMs = RETRY_MS_MIN;
    if (reply.outcome === 'granted') {
      if (waiter.ticket !== 0 && !waiter.called) waiting.askOthers(waiter);
      const hold = holding.add(waiter, reply.token, sentMs, waiter.leaseMs);
      this.settle(waiter, hold);
      return;
    }
    // The wake-up was wrong, or came long ago.
    waiter.called = false;
    if (reply.outcome === 'queued' && reply.rejoined) waiting.askOthers(waiter);
    if (reply.outcome === 'held' && waiter.terms.waitMs > 0 && !heard) {
      // Again, with the right to wait.
      waiter.queued = true;
      this.#send(waiter);
      return;
    }
    if (waiter.again && reply.outcome === 'queued') {
      waiter.again = false;
      waiting.queued(waiter, reply.ticket);
      this.#send(waiter);
      return;
    }
    waiter.asking = false;
    waiter.again = false;
    switch (reply.outcome) {
      case 'done':
        this.settle(waiter, { result: reply.result });
        return;
      case 'held':
        if (waiter.terms.waitMs > 0) waiting.join(waiter, reply.retryMs, reply.ticket);
        else this.settle(waiter, null);
        return;
      case 'queued':
        waiting.join(waiter, reply.retryMs, reply.ticket);
        return;
      case 'gone':
        this.giveUp(waiter, new AbortedError(`${describe(waiter.wanted)} was given up before`));
    }
  }

  /** The call ends with an error, and whatever the store may hold for it is given back. */
  giveUp(waiter: Waiter, error: unknown): void {
    if (waiter.settled) return;
    this.settle(waiter, null, error);
    this.#client.givingBack.clean(waiter);
  }

  /** Wake-ups may have been missed: every queued call asks again. */
  interrupted(): void {
    for (const waiter of this.#waiters.values()) if (waiter.queued) this.ask(waiter);
  }

  close(): void {
    for (const waiter of this.#waiters.values()) this.giveUp(waiter, new AbortedError('the locks were closed'));
  }
}
