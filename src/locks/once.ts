import { TerminalError } from '../base/errors.ts';
import { checkedDuration, checkedFunction, checkedName } from './client/checks.ts';
import type { LockClient } from './client/client.ts';
import { HeldError, LostError } from './client/errors.ts';
import { Grant } from './client/grant.ts';
import { Hold } from './client/hold.ts';
import { framesAround, runInside } from './context.ts';
import { type AcquireOptions, ONCE_OPTIONS, termsOf } from './options.ts';

export interface OnceOptions extends Pick<AcquireOptions, 'wait' | 'signal' | 'lease' | 'renew' | 'maxHold' | 'label'> {
  /** For how long the result is kept, in milliseconds. Default a day. */
  keep?: number;
}

export interface OnceResult<T> {
  readonly value: T;
  /** This call ran fn itself. */
  readonly ran: boolean;
}

/** The largest result: Redis keeps it in memory for as long as `keep` says. */
const RESULT_CHARS_MAX = 1_000_000;

/**
 * Runs `fn` once in the cluster and keeps its result: whoever asks meanwhile waits for it, whoever asks later gets it.
 * All of them get it as JSON brings it back, the one that ran fn too: a Date is a string for everybody.
 * If fn throws, its caller gets the error, nothing is kept, and the next in line runs it.
 *
 * Once means: by those that get to the store. A runner that loses its lock half-way cannot store its result (LostError),
 * and the next one runs fn again: make it safe to repeat, or fence its writes with the grant's token.
 */
export async function once<T>(
  client: LockClient,
  key: string,
  fn: (grant: Grant) => Promise<T> | T,
  options: OnceOptions = {},
): Promise<OnceResult<T>> {
  const name = checkedName(key);
  checkedFunction(fn, 'once');
  const terms = termsOf(client, options, Infinity, 'once', ONCE_OPTIONS);
  const keepMs = checkedDuration(options.keep ?? 86_400_000, 'keep', 1);
  const wanted = { kind: 'once', name, mode: 'write', permits: 1, limit: 1 } as const;
  for (const frame of framesAround()) {
    if (frame.holds.some((hold) => hold.kind === 'once' && hold.name === name && hold.of === client)) {
      throw new HeldError(`once "${name}" would wait for itself`);
    }
  }
  const end = await client.take(wanted, terms);
  if (end === null) throw new HeldError(`once "${name}" is being run`);
  if (!(end instanceof Hold)) return { value: decoded<T>(end.result), ran: false };

  const grant = new Grant(client, end);
  let result: string;
  try {
    result = encoded(name, await runInside([end], () => fn(grant)));
  } catch (error) {
    await grant.release().catch(() => undefined);
    throw error;
  }
  grant.assertHeld();
  let kept: boolean;
  try {
    kept = await client.patiently(() => client.store.finish(name, end.rid, result, keepMs));
  } catch (error) {
    // The result was not kept, as far as we know: without a release the lock would be renewed for nobody.
    await grant.release().catch(() => undefined);
    throw error;
  }
  if (!kept) {
    end.lose('refused');
    throw end.loss ?? new LostError(`once "${name}" was lost before its result could be kept`, 'refused');
  }
  client.retire(end);
  Grant.retire(grant);
  // Parsed as the others will read it: a Date that only the runner gets as a Date would pass every test with one process.
  return { value: decoded<T>(result), ran: true };
}

/** `undefined` is a result, too. */
function encoded(name: string, value: unknown): string {
  let text: string | undefined;
  try {
    text = value === undefined ? '' : JSON.stringify(value);
  } catch (error) {
    throw new TerminalError('invalid_argument', `the result of once "${name}" cannot be kept: not JSON`, {
      cause: error,
    });
  }
  if (text === undefined)
    throw new TerminalError('invalid_argument', `the result of once "${name}" cannot be kept: not JSON`);
  if (text.length > RESULT_CHARS_MAX) {
    throw new TerminalError(
      'invalid_argument',
      `the result of once "${name}" is too large to keep: ${text.length} characters`,
    );
  }
  return text;
}

function decoded<T>(text: string): T {
  return (text === '' ? undefined : JSON.parse(text)) as T;
}
