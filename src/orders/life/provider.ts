import type { Logger } from '../../base/logger.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { Money } from '../../model/money.ts';
import { plainText, textFault } from '../../model/text.ts';
import type { CaptureResult, PaymentProvider, ProviderState, RefundResult } from '../../payments/port.ts';

type Captured = Extract<CaptureResult, { state: 'captured' }>;

/** A captured payment may have no reference: that of the adapter may be unfit to be stored. */
export type CheckedCapture =
  | Exclude<CaptureResult, Captured>
  | (Omit<Captured, 'reference'> & { readonly reference: string | null });
export type CheckedState = Exclude<ProviderState, Captured> | CheckedCapture;

/** A provider whose answers can be relied on: each is of the port's shape, and all of its text can be stored everywhere. */
export interface CheckedProvider extends Pick<PaymentProvider, 'name' | 'partialRefunds' | 'refund'> {
  capture(...request: Parameters<PaymentProvider['capture']>): Promise<CheckedCapture>;
  query(attemptId: string): Promise<CheckedState>;
  void(attemptId: string): Promise<CheckedState>;
}

/** As wide as the narrowest column for it (MariaDB), and as the schema of webhooks allows. */
const REFERENCE_BYTES_MAX = 512;
const REASON_MAX = 500;
const CURRENCY = /^[A-Za-z]{3}$/;
/** A provider that has answered no question for so long counts as silent. */
export const SILENT_MS = 2000;

type Call = 'capture' | 'query' | 'void' | 'refund';
type RawAnswer = Readonly<Record<string, unknown>>;

/**
 * Whether providers answer. A question that nobody answers takes seconds: a thousand payments of a provider that hangs would
 * take minutes of them, again and again. Captures do not count: some wait for the buyer.
 */
export class ProviderWatch {
  readonly #runtime: Runtime;
  /** When the first question since the last answer was asked, by provider. */
  readonly #unansweredMs = new Map<string, number>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  /** How long the provider has not answered any question. */
  silentMs(provider: string): number {
    const sinceMs = this.#unansweredMs.get(provider);
    return sinceMs === undefined ? 0 : this.#runtime.clock.monotonic() - sinceMs;
  }

  isSilent(provider: string): boolean {
    return this.silentMs(provider) >= SILENT_MS;
  }

  /** The same provider, watched, and its answers checked. A failure counts as an answer: it came soon. */
  over(provider: PaymentProvider): CheckedProvider {
    const { name } = provider;
    const check = new AnswerCheck(name, this.#runtime.log);
    const watched = async <T>(asked: () => Promise<T>): Promise<T> => {
      if (!this.#unansweredMs.has(name)) this.#unansweredMs.set(name, this.#runtime.clock.monotonic());
      try {
        return await asked();
      } finally {
        this.#unansweredMs.delete(name);
      }
    };
    return {
      ...(provider.partialRefunds !== undefined && { partialRefunds: provider.partialRefunds }),
      name,
      capture: async (request) => check.capture(await provider.capture(request), request.attemptId),
      query: async (id) => check.state('query', await watched(() => provider.query(id)), id),
      void: async (id) => check.state('void', await watched(() => provider.void(id)), id),
      refund: async (request) => check.refund(await watched(() => provider.refund(request)), request.attemptId),
    };
  }
}

/**
 * Judges what an adapter answers, before anything of it reaches the ledger. Adapters are other people's code: an answer that
 * the ledger cannot store would leave money captured and its order unpaid.
 *
 * An answer of the wrong shape is a call that failed: it throws, so that the attempt stays open and the provider is asked
 * again. The reason of a decline is made storable. A reference that cannot be stored is left out: it is only a name (the
 * attempt's id is the key of every call), and whether an order is paid must never depend on it.
 */
class AnswerCheck {
  readonly #provider: string;
  readonly #log: Logger;

  constructor(provider: string, log: Logger) {
    this.#provider = provider;
    this.#log = log;
  }

  capture(answer: unknown, attemptId: string): CheckedCapture {
    return this.#capture('capture', this.#object('capture', answer, attemptId), attemptId);
  }

  state(call: 'query' | 'void', answer: unknown, attemptId: string): CheckedState {
    const said = this.#object(call, answer, attemptId);
    switch (said.state) {
      case 'voided':
      case 'unknown':
        return { state: said.state };
      case 'refunded':
        return { state: 'refunded', reference: this.#reference(call, said.reference ?? null, attemptId) };
      default:
        return this.#capture(call, said, attemptId);
    }
  }

  refund(answer: unknown, attemptId: string): RefundResult {
    const said = this.#object('refund', answer, attemptId);
    const { refused = null } = said;
    if (typeof refused === 'string') return { refused: plainText(refused, REASON_MAX) || 'refused' };
    if (refused !== null || !('reference' in said))
      this.#fail('refund', attemptId, 'neither `reference` nor `refused`');
    return { reference: this.#reference('refund', said.reference ?? null, attemptId) };
  }

  #capture(call: Call, said: RawAnswer, attemptId: string): CheckedCapture {
    const { state } = said;
    switch (state) {
      case 'captured': {
        const amount = moneyOf(said.amount) ?? this.#fail(call, attemptId, '`amount` is no money');
        // A captured payment must have one: that it has none is logged, too.
        const reference = this.#reference(call, said.reference ?? undefined, attemptId);
        if ((said.refunded ?? null) === null) return { state, reference, amount };
        const refunded = moneyOf(said.refunded) ?? this.#fail(call, attemptId, '`refunded` is no money');
        return { state, reference, amount, refunded };
      }
      case 'declined': {
        const reason = typeof said.reason === 'string' ? plainText(said.reason, REASON_MAX) : '';
        const reference = this.#reference(call, said.reference ?? null, attemptId);
        return { state, reference, reason: reason || 'declined' };
      }
      case 'pending': {
        const redirectUrl = typeof said.redirectUrl === 'string' ? said.redirectUrl : null;
        return { state, reference: this.#reference(call, said.reference ?? null, attemptId), redirectUrl };
      }
      default:
        return this.#fail(call, attemptId, '`state` is none that it can have');
    }
  }

  /** `null` says that there is none. */
  #reference(call: Call, given: unknown, attemptId: string): string | null {
    if (given === null) return null;
    const text = typeof given === 'number' || typeof given === 'bigint' ? String(given) : given;
    const fault = typeof text !== 'string' || text === '' ? 'is no text' : textFault(text, REFERENCE_BYTES_MAX);
    if (fault === null) return text as string;
    this.#log.error(
      { provider: this.#provider, call, attemptId, fault: `\`reference\` ${fault}` },
      'a payment is kept without its reference: the provider’s cannot be stored',
    );
    return null;
  }

  #object(call: Call, answer: unknown, attemptId: string): RawAnswer {
    if (typeof answer === 'object' && answer !== null) return answer as RawAnswer;
    return this.#fail(call, attemptId, 'no object');
  }

  #fail(call: Call, attemptId: string, fault: string): never {
    const message = `the provider ${this.#provider} answered ${call} with something that is no answer`;
    this.#log.error({ provider: this.#provider, call, attemptId, fault }, message);
    throw new Error(`${message}: ${fault}`);
  }
}

function moneyOf(given: unknown): Money | null {
  const { amount, currency } = (given ?? {}) as Partial<Money>;
  const isMoney =
    Number.isSafeInteger(amount) && amount! >= 0 && typeof currency === 'string' && CURRENCY.test(currency);
  return isMoney ? { amount: amount!, currency } : null;
}
