import type { Logger } from '../base/logger.ts';
import { UnavailableError } from './client/errors.ts';
import type { Hold } from './client/hold.ts';
import { runInside } from './context.ts';

/** Runs `fn` with what was granted, and gives it back: the end of every run(fn), of one lock, several, or a quorum. */
export async function runHolding<G extends { readonly name: string; release(): Promise<void> }, T>(
  grant: G,
  holds: readonly Hold[],
  fn: (grant: G) => Promise<T> | T,
  log: Logger,
): Promise<T> {
  let result: T;
  try {
    result = await runInside(holds, () => fn(grant));
  } catch (error) {
    // The caller gets the error of its own work.
    await grant.release().catch(() => undefined);
    throw error;
  }
  try {
    await grant.release();
  } catch (error) {
    // The work was done under the lock. Only the release failed: the lock ends with its lease.
    if (!(error instanceof UnavailableError)) throw error;
    log.warn({ err: error, name: grant.name }, 'a lock could not be given back; its lease will end');
  }
  return result;
}
