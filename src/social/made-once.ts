import { unavailable } from '../base/errors.ts';
import type { IdSequence } from '../base/ids.ts';
import type { KeyBinding, KeyedCall, KeyLedger } from '../ledger/port.ts';

export interface MadeOnceDependencies {
  readonly ledger: Pick<KeyLedger, 'findKey' | 'bindAnswer'>;
  readonly ids: Pick<IdSequence, 'next'>;
}

/**
 * The id of something that is to be made. `mayExist`: an earlier call with the same key, or one that another process handles right now,
 * may have made it already.
 */
export type ClaimedId =
  | { readonly outcome: 'ok'; readonly id: string; readonly mayExist: boolean }
  | { readonly outcome: 'idempotency_key_reused' };

/**
 * Ids for calls that make something and may be sent again. The key is bound to the id before anything is made. So a repeat after a crash,
 * or at another process, makes the thing with the same id or finds it, and never makes a second one.
 */
export class MadeOnce {
  readonly #on: MadeOnceDependencies;

  constructor(dependencies: MadeOnceDependencies) {
    this.#on = dependencies;
  }

  /** `mayBegin` is called before anything new is stored, and not for a repeat; it throws if it may not be made. */
  async claim(call: KeyedCall | null, mayBegin: () => Promise<void>): Promise<ClaimedId> {
    const { ledger, ids } = this.#on;
    const earlier = call && (await ledger.findKey(call));
    if (call !== null && earlier !== null) return boundTo(call, earlier, null);
    await mayBegin();
    if (call === null) return { outcome: 'ok', id: await ids.next(), mayExist: false };
    const id = await ids.next();
    await ledger.bindAnswer(call, JSON.stringify({ id }));
    // Of two processes that bind it at the same time one is first, and its id counts.
    const bound = await ledger.findKey(call);
    if (bound === null) throw unavailable('the Idempotency-Key could not be stored');
    return boundTo(call, bound, id);
  }
}

function boundTo({ fingerprint }: KeyedCall, bound: KeyBinding, own: string | null): ClaimedId {
  if (bound.fingerprint !== fingerprint) return { outcome: 'idempotency_key_reused' };
  const { id } = JSON.parse(bound.answer) as { id: string };
  return { outcome: 'ok', id, mayExist: id !== own };
}
