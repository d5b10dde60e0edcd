import type { Runtime } from '../base/runtime.ts';
import type { Round } from '../base/sweep.ts';
import { sleep } from '../base/timers.ts';
import type { NewIntent, SandboxBook } from '../ledger/port.ts';
import type { SandboxIntent } from '../model/payment.ts';
import type {
  CaptureRequest,
  CaptureResult,
  PaymentProvider,
  ProviderNews,
  ProviderState,
  RefundRequest,
  RefundResult,
} from './port.ts';

const SLOW_MS = 3000;
/** After so long a payment that never answered is captured, and the shop is told. */
const TIMEOUT_CAPTURES_MS = 5000;
const DUE_MAX = 100;
const AT_ONCE = 16;

/**
 * A provider for trying things out. The token says what happens: `ok`, `declined`, `slow` (answers after 3 s), `timeout`
 * (never answers; the outcome comes by webhook).
 */
export class SandboxProvider implements PaymentProvider {
  readonly name = 'sandbox';
  readonly partialRefunds = true;
  readonly #book: SandboxBook;
  readonly #runtime: Runtime;
  readonly #tell: (news: ProviderNews) => Promise<unknown>;

  constructor(book: SandboxBook, runtime: Runtime, tell: (news: ProviderNews) => Promise<unknown>) {
    this.#book = book;
    this.#runtime = runtime;
    this.#tell = tell;
  }

  async capture({ attemptId, orderId, amount, token }: CaptureRequest): Promise<CaptureResult> {
    const { timers } = this.#runtime;
    const kind = token ?? 'ok';
    const intent: NewIntent = {
      id: attemptId,
      orderId,
      amount,
      state: kind === 'declined' ? 'declined' : kind === 'timeout' || kind === 'slow' ? 'pending' : 'captured',
      dueAfterMs: kind === 'timeout' ? TIMEOUT_CAPTURES_MS : kind === 'slow' ? SLOW_MS : null,
      told: kind !== 'timeout',
      refunded: 0,
    };
    const stored = await this.#book.putIntent(intent);
    if (kind === 'timeout') return await new Promise<never>(() => undefined);
    if (kind === 'slow') {
      await sleep(timers, SLOW_MS);
      const captured = await this.#book.moveIntent(attemptId, ['pending'], 'captured');
      // A round may have captured it a moment before.
      return resultOf(captured ?? (await this.#book.getIntent(attemptId)) ?? stored);
    }
    return resultOf(stored);
  }

  async query(attemptId: string): Promise<ProviderState> {
    const intent = await this.#book.getIntent(attemptId);
    return intent === null ? { state: 'unknown' } : stateOf(intent);
  }

  async void(attemptId: string): Promise<ProviderState> {
    const voided = await this.#book.moveIntent(attemptId, ['pending'], 'voided');
    if (voided !== null) return stateOf(voided);
    // A capture that has not arrived yet must find that it was given up.
    const none: NewIntent = {
      id: attemptId,
      orderId: '0',
      amount: { amount: 0, currency: 'XXX' },
      state: 'voided',
      dueAfterMs: null,
      told: true,
      refunded: 0,
    };
    return stateOf(await this.#book.putIntent(none));
  }

  async refund({ attemptId, refundId, amount }: RefundRequest): Promise<RefundResult> {
    if ((await this.#book.refundIntent(attemptId, refundId, amount.amount)) === null) {
      return { refused: 'the sandbox does not have that much of this payment' };
    }
    return { reference: `sandbox-refund-${refundId}` };
  }

  /** Captures what is due, and tells the shop. The sweeper calls it. A payment that fails holds up no other. */
  async round(): Promise<Round> {
    const { captured, untold } = await this.#book.captureDue(DUE_MAX);
    let told = 0;
    let failure: PromiseRejectedResult | undefined;
    for (let from = 0; from < untold.length; from += AT_ONCE) {
      // Some at a time: the shop takes them in with few transactions, and has room for other work.
      const some = untold.slice(from, from + AT_ONCE);
      const ends = await Promise.allSettled(some.map((intent) => this.#tellOf(intent)));
      const heard = some.filter((_, at) => ends[at]!.status === 'fulfilled').map(({ id }) => id);
      await this.#book.intentsTold(heard);
      told += heard.length;
      failure ??= ends.find((end) => end.status === 'rejected');
    }
    if (failure !== undefined) throw failure.reason;
    return { changed: captured + told, more: untold.length === DUE_MAX };
  }

  async #tellOf({ id, orderId, amount }: SandboxIntent): Promise<void> {
    await this.#tell({
      provider: this.name,
      id: `sandbox-news-${id}`,
      type: 'payment.captured',
      orderId,
      reference: referenceOf(id),
      amount,
    });
  }
}

function referenceOf(attemptId: string): string {
  return `sandbox-${attemptId}`;
}

function resultOf(intent: SandboxIntent): CaptureResult {
  const state = stateOf(intent);
  if (state.state === 'captured' || state.state === 'declined' || state.state === 'pending') return state;
  return { state: 'declined', reference: referenceOf(intent.id), reason: 'it was given up' };
}

function stateOf({ id, state, amount, refunded }: SandboxIntent): ProviderState {
  const reference = referenceOf(id);
  switch (state) {
    case 'captured':
      return { state, reference, amount, refunded: { ...amount, amount: refunded } };
    case 'declined':
      return { state, reference, reason: 'the sandbox declined' };
    case 'pending':
      return { state, reference, redirectUrl: null };
    case 'refunded':
      return { state, reference };
    case 'voided':
      return { state };
  }
}
