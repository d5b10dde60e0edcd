import { messageOf, RetryableError, unavailable } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import type { OrderMessage } from '../model/order.ts';
import type { Undeliverable } from '../pipe/port.ts';
import type { Upkeep } from './port.ts';
import type { Undecided } from './writer.ts';

/**
 * Undecided messages behind a pipe that keeps them: the whole batch is rejected and comes again, so that the writer holds
 * nothing itself and several of them may work on one ledger. What of the batch was committed is stored once, however often
 * it comes.
 */
export class LeftInPipe implements Undecided {
  readonly #ledger: Pick<Upkeep, 'probe'>;
  readonly #runtime: Runtime;
  #reason: string | null = null;

  constructor(ledger: Pick<Upkeep, 'probe'>, runtime: Runtime) {
    this.#ledger = ledger;
    this.#runtime = runtime;
  }

  get reason(): string | null {
    return this.#reason;
  }

  /** The pipe says when to try again. */
  keeps(): boolean {
    return false;
  }

  unknown(_: readonly OrderMessage[], error: RetryableError): never {
    if (this.#reason === null) {
      this.#runtime.log.error(
        { reason: error.message, cause: error.cause === undefined ? undefined : messageOf(error.cause) },
        'the ledger is out; orders wait in the pipe',
      );
    }
    this.#reason = error.message;
    throw error;
  }

  /** A ledger that can store nothing at all is no reason to give up on a message: the outage may only look like its fault. */
  async unstorable(message: OrderMessage, error: Error): Promise<Undeliverable<OrderMessage>> {
    try {
      await this.#ledger.probe();
    } catch (out) {
      this.unknown([message], out instanceof RetryableError ? out : unavailable(messageOf(out), out));
    }
    this.worked();
    return { message, error };
  }

  worked(): void {
    if (this.#reason === null) return;
    this.#reason = null;
    this.#runtime.log.info('the ledger is back');
  }
}
