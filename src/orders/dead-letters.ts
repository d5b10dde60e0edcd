import { type IdSequence, isId } from '../base/ids.ts';
import type { Gate } from '../gate/port.ts';
import type { Actor, AuditLedger, AuditNote, OrderLedger, SaleLedger } from '../ledger/port.ts';
import type { OrderMessage, OrderRecord } from '../model/order.ts';
import type { DeadLetter, DeadLetters } from '../pipe/port.ts';

export interface DecideDeadLettersDependencies {
  readonly gate: Gate;
  readonly ledger: OrderLedger & SaleLedger & AuditLedger;
  readonly auditIds: IdSequence;
  /** A failure of the ledger here is known everywhere. */
  watched<T>(work: Promise<T>): Promise<T>;
  rejected(order: OrderRecord): void;
}

/** What an operator decides about messages that the ledger could not take. */
export class DecideDeadLetters {
  readonly #letters: DeadLetters<OrderMessage>;
  readonly #on: DecideDeadLettersDependencies;

  constructor(letters: DeadLetters<OrderMessage>, dependencies: DecideDeadLettersDependencies) {
    this.#letters = letters;
    this.#on = dependencies;
  }

  /** Puts it back into the pipe. False: there is none. */
  async retry(letterId: string, by: Actor): Promise<boolean> {
    const { ledger, watched } = this.#on;
    const letter = await this.#letters.get(letterId);
    if (letter === null) return false;
    // First, since the pipe is no part of the ledger: a row too many says that somebody tried, one too few would say nothing.
    await watched(ledger.note(await this.#note('retry', letter, by)));
    return await this.#letters.retry(letterId);
  }

  /** Ends its order as `rejected: undeliverable`, gives the units back, and forgets the letter. False: there is none. */
  async end(letterId: string, by: Actor): Promise<boolean> {
    const { gate, ledger, watched, rejected } = this.#on;
    const letter = await this.#letters.get(letterId);
    if (letter === null) return false;
    const { message } = letter;
    const note = await this.#note('delete', letter, by);
    const sale = message.quantity > 0 ? await ledger.getSale(message.saleId) : null;
    // A message that nobody can read, or of nothing that we sell, has no order to be rejected: it is only forgotten.
    if (sale?.items.some(({ id }) => id === message.itemId)) {
      const [stored] = await watched(ledger.rejectOrders([message], 'undeliverable', note));
      // An order that is stored otherwise keeps its hold: the letter was a message that only bore its id.
      if (stored!.order.reason === 'undeliverable') await gate.withdraw(message.saleId, message);
      if (stored!.inserted) rejected(stored!.order);
    } else {
      await watched(ledger.note(note));
    }
    await this.#letters.drop(letterId);
    return true;
  }

  async #note(action: 'retry' | 'delete', { message, error }: DeadLetter<OrderMessage>, by: Actor): Promise<AuditNote> {
    const { orderId, saleId, buyer } = message;
    // A message that nobody could read has an id of its own, of up to 300 characters.
    const subject = isId(orderId) ? `order:${orderId}` : `dead_letter:${orderId.slice(0, 100)}`;
    const detail = { ...(saleId !== '' && { saleId }), ...(buyer !== '' && { buyer }), error: error.slice(0, 500) };
    return { auditId: await this.#on.auditIds.next(), by, action: `dead_letter.${action}`, subject, detail };
  }
}
