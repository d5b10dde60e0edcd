import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import type { Money } from '../../src/model/money.ts';
import type {
  CaptureRequest,
  CaptureResult,
  PaymentProvider,
  ProviderNews,
  ProviderState,
  RefundRequest,
  RefundResult,
} from '../../src/payments/port.ts';

/**
 * What a bank does with a capture, said by the token of the payment.
 *
 *   captured, declined  at once
 *   pending             it answers so; `finish` decides later. `nameless`: it does not tell its reference
 *   lost                it takes the money, and the answer is lost: the call fails
 *   broken              the call fails before it has arrived
 *   silent              it takes the money and never answers
 *   travelling          nothing has arrived yet; it does with `arrive`, unless it was given up by then
 *   partial             it takes less than it should
 */
export const PLANS = [
  'captured',
  'declined',
  'pending',
  'nameless',
  'lost',
  'broken',
  'silent',
  'travelling',
  'partial',
] as const;

export type Plan = (typeof PLANS)[number];

/**
 * How it answers questions, voids and refunds.
 *
 *   well  as it should
 *   down  it does nothing, and the call fails
 *   lossy it does it, and the call fails
 *   mute  it does it, and never answers
 */
export const MOODS = ['well', 'down', 'lossy', 'mute'] as const;

export type Mood = (typeof MOODS)[number];

type IntentState = 'pending' | 'captured' | 'declined' | 'voided' | 'refunded';

/** A payment in the bank's own book. */
export interface Intent {
  readonly id: string;
  readonly orderId: string;
  readonly state: IntentState;
  /** What it has taken, or would. */
  readonly amount: Money;
  readonly captures: number;
  /** How often all of it was back: at most once. */
  readonly refunds: number;
  /** How much is back, and by which refunds that were asked for. */
  readonly back: number;
  readonly refundIds: readonly string[];
}

type NewsType = ProviderNews['type'];

export interface BankOptions {
  readonly name?: string;
  /** A file for its book, so that it outlives the process, as a real bank does. */
  readonly file?: string;
  /** Before it answers: turns of the event loop, milliseconds, or nothing. */
  readonly takesItsTime?: () => Promise<void>;
  /** It says `voided`, and takes the money all the same: what its promise forbids, and what banks do. */
  readonly liesOnVoid?: (attemptId: string) => boolean;
  /** False: an adapter that knows whole refunds only. */
  readonly parts?: boolean;
  /** It says what is back in this currency, whatever it took: what adapters do that mix up settlement and sale. */
  readonly backIn?: string;
}

const NEVER = new Promise<never>(() => undefined);

/**
 * A payment provider under the test's control, with a book of its own: who has whose money. It keeps the promises of the
 * port (one effect per attempt id; nothing after `voided`) and may do all else that providers do.
 */
export class Bank {
  readonly name: string;
  mood: Mood = 'well';
  readonly book = new Map<string, Intent>();
  /** Everything that it has to tell, in the order in which it happened; whether and when it does is the test's business. */
  readonly news: ProviderNews[] = [];
  readonly calls: { readonly what: 'capture' | 'query' | 'void' | 'refund'; readonly attemptId: string }[] = [];
  /** How often it refused a refund for good. */
  refusals = 0;
  readonly #travelling = new Map<string, CaptureRequest>();
  readonly #options: BankOptions;

  constructor(options: BankOptions = {}) {
    this.name = options.name ?? 'bank';
    this.#options = options;
    if (options.file !== undefined && existsSync(options.file)) this.#read(options.file);
  }

  /** For one process: what `alive` says no to never arrives, and nobody hears its answer. */
  provider(alive: () => boolean = () => true): PaymentProvider {
    const guarded = async <T>(call: () => Promise<T>): Promise<T> => {
      if (!alive()) return await NEVER;
      const answer = await call();
      return alive() ? answer : await NEVER;
    };
    return {
      name: this.name,
      ...(this.#options.parts !== false && { partialRefunds: true }),
      capture: (request) => guarded(() => this.#capture(request)),
      query: (attemptId) => guarded(() => this.#query(attemptId)),
      void: (attemptId) => guarded(() => this.#void(attemptId)),
      refund: (request) => guarded(() => this.#refund(request)),
    };
  }

  referenceOf(attemptId: string): string {
    return `${this.name}-${attemptId}`;
  }

  /** Payments that it has not decided. */
  pending(): Intent[] {
    return [...this.book.values()].filter(({ state }) => state === 'pending');
  }

  of(orderId: string): Intent[] {
    return [...this.book.values()].filter((intent) => intent.orderId === orderId);
  }

  /** What it has and has not given back, of all payments for this order. */
  holds(orderId: string): number {
    return this.of(orderId).reduce(
      (sum, { state, amount, back }) => sum + (state === 'captured' ? amount.amount - back : 0),
      0,
    );
  }

  /** A pending payment ends; or one that failed is tried again by the buyer at the bank, and works. */
  finish(attemptId: string, as: 'captured' | 'declined'): void {
    const intent = this.book.get(attemptId);
    const from: IntentState[] = as === 'captured' ? ['pending', 'declined'] : ['pending'];
    if (intent !== undefined && from.includes(intent.state)) this.#to(intent, as);
  }

  newsOf(orderId: string): ProviderNews[] {
    return this.news.filter((one) => one.orderId === orderId);
  }

  /** Calls that were still on their way come in: this one, or all. */
  arrive(attemptId?: string): void {
    for (const [id, request] of this.#travelling) {
      if (attemptId !== undefined && id !== attemptId) continue;
      this.#travelling.delete(id);
      this.#take(request, 'captured', request.amount);
    }
  }

  /** It gives the money back without being asked. */
  chargeBack(attemptId: string): void {
    const intent = this.book.get(attemptId);
    if (intent?.state === 'captured') this.#back(intent, intent.amount.amount - intent.back, null);
  }

  /** It gives a part back without being asked, as somebody does in its dashboard. */
  giveBack(attemptId: string, amount: number): void {
    const intent = this.book.get(attemptId);
    if (intent?.state === 'captured' && amount <= intent.amount.amount - intent.back) this.#back(intent, amount, null);
  }

  async #capture(request: CaptureRequest): Promise<CaptureResult> {
    const { attemptId, amount } = request;
    this.calls.push({ what: 'capture', attemptId });
    const plan = (request.token ?? 'captured') as Plan;
    await this.#options.takesItsTime?.();
    switch (plan) {
      case 'broken':
        throw new Error('the connection was refused');
      case 'travelling':
        this.#travelling.set(attemptId, request);
        return await NEVER;
      case 'silent':
        this.#take(request, 'captured', amount);
        return await NEVER;
      case 'lost':
        this.#take(request, 'captured', amount);
        throw new Error('the connection broke');
      case 'partial':
        this.#take(request, 'captured', { ...amount, amount: amount.amount - 1 });
        break;
      default:
        this.#take(request, plan === 'nameless' ? 'pending' : plan, amount);
    }
    await this.#options.takesItsTime?.();
    const state = this.#stateOf(attemptId);
    if (state.state === 'captured' || state.state === 'declined') return state;
    if (state.state === 'pending') return { ...state, reference: plan === 'nameless' ? null : state.reference };
    return { state: 'declined', reference: this.referenceOf(attemptId), reason: 'it was given up' };
  }

  async #query(attemptId: string): Promise<ProviderState> {
    this.calls.push({ what: 'query', attemptId });
    return await this.#answer(() => this.#stateOf(attemptId));
  }

  async #void(attemptId: string): Promise<ProviderState> {
    this.calls.push({ what: 'void', attemptId });
    return await this.#answer(() => {
      const intent = this.book.get(attemptId);
      const lies = this.#options.liesOnVoid?.(attemptId) ?? false;
      if (lies && (intent?.state === 'pending' || this.#travelling.has(attemptId))) {
        if (intent !== undefined) this.#to(intent, 'captured');
        else this.arrive(attemptId);
        return { state: 'voided' };
      }
      if (intent === undefined) {
        const none = {
          id: attemptId,
          orderId: '0',
          amount: { amount: 0, currency: 'XXX' },
          captures: 0,
          refunds: 0,
          back: 0,
          refundIds: [],
        };
        this.#put({ ...none, state: 'voided' });
      } else if (intent.state === 'pending') this.#to(intent, 'voided');
      return this.#stateOf(attemptId);
    });
  }

  async #refund({ attemptId, refundId, amount }: RefundRequest): Promise<RefundResult> {
    this.calls.push({ what: 'refund', attemptId });
    return await this.#answer(() => {
      const intent = this.book.get(attemptId);
      if (intent?.state !== 'captured' && intent?.state !== 'refunded')
        throw new Error('it has no money of this payment');
      const reference = `${this.name}-back-${refundId}`;
      if (intent.refundIds.includes(refundId)) return { reference };
      const left = intent.amount.amount - intent.back;
      if (this.#options.parts === false) {
        if (intent.state === 'captured') this.#back(intent, left, refundId);
        return { reference };
      }
      if (amount.amount > left || intent.state === 'refunded') {
        this.refusals++;
        return { refused: `only ${left} is left` };
      }
      this.#back(intent, amount.amount, refundId);
      return { reference };
    });
  }

  #back(intent: Intent, amount: number, refundId: string | null): void {
    const back = intent.back + amount;
    const refundIds = refundId === null ? intent.refundIds : [...intent.refundIds, refundId];
    const given = { ...intent, back, refundIds };
    if (back === intent.amount.amount) this.#to(given, 'refunded', amount);
    else {
      this.#put(given);
      this.#tell({ ...given, state: 'refunded' }, amount);
    }
  }

  async #answer<T>(act: () => T): Promise<T> {
    const { mood } = this;
    await this.#options.takesItsTime?.();
    if (mood === 'down') throw new Error('the bank is down');
    const answer = act();
    await this.#options.takesItsTime?.();
    if (mood === 'lossy') throw new Error('the connection broke');
    return mood === 'mute' ? await NEVER : answer;
  }

  /** Once per attempt: sent again, it has no second effect; given up before, it has none at all. */
  #take({ attemptId: id, orderId }: CaptureRequest, state: IntentState, amount: Money): void {
    if (this.book.has(id)) return;
    const captures = state === 'captured' ? 1 : 0;
    const intent: Intent = { id, orderId, state, amount, captures, refunds: 0, back: 0, refundIds: [] };
    this.#put(intent);
    this.#tell(intent);
  }

  #to(intent: Intent, state: IntentState, told?: number): void {
    const captures = intent.captures + (state === 'captured' ? 1 : 0);
    const changed = { ...intent, state, captures, refunds: intent.refunds + (state === 'refunded' ? 1 : 0) };
    this.#put(changed);
    this.#tell(changed, told);
  }

  #put(intent: Intent): void {
    this.book.set(intent.id, intent);
    const { file } = this.#options;
    if (file !== undefined) appendFileSync(file, `${JSON.stringify(intent)}\n`);
  }

  #read(file: string): void {
    for (const line of readFileSync(file, 'utf8').trim().split('\n')) {
      const intent = JSON.parse(line) as Intent;
      this.book.set(intent.id, intent);
      if (intent.orderId !== '0') this.#tell(intent);
    }
  }

  /** A payment that was given up has failed, too: some banks say so. */
  #tell({ id, orderId, state, amount }: Intent, told = amount.amount): void {
    const types: Partial<Record<IntentState, NewsType>> = {
      captured: 'payment.captured',
      declined: 'payment.failed',
      voided: 'payment.failed',
      refunded: 'payment.refunded',
    };
    const type = types[state];
    if (type === undefined) return;
    const reference = this.referenceOf(id);
    this.news.push({
      provider: this.name,
      id: `news-${this.news.length}`,
      type,
      orderId,
      reference,
      amount: { ...amount, amount: told },
    });
  }

  #stateOf(attemptId: string): ProviderState {
    const intent = this.book.get(attemptId);
    if (intent === undefined) return { state: 'unknown' };
    const reference = this.referenceOf(attemptId);
    switch (intent.state) {
      case 'captured':
        return {
          ...{ state: 'captured', reference, amount: intent.amount },
          ...(this.#options.parts !== false && {
            refunded: { amount: intent.back, currency: this.#options.backIn ?? intent.amount.currency },
          }),
        };
      case 'declined':
        return { state: 'declined', reference, reason: 'the bank declined' };
      case 'pending':
        return { state: 'pending', reference, redirectUrl: null };
      case 'refunded':
        return { state: 'refunded', reference };
      case 'voided':
        return { state: 'voided' };
    }
  }
}
