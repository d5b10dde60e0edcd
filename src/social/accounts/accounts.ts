import { availableParallelism } from 'node:os';
import { type AddressInNetwork, Fair } from '../../base/fair.ts';
import type { IdSequence } from '../../base/ids.ts';
import type { AccountLedger } from '../../ledger/port.ts';
import {
  ACCOUNT_BOUNDS,
  type AccountRecord,
  emailFault,
  hashedForm,
  storedEmail,
  usernameFault,
} from '../../model/account.ts';
import type { Fault } from '../../model/sale.ts';
import { isCommon } from './common.ts';
import type { PasswordHasher } from './password.ts';

/**
 * Hashes under way. Each occupies a thread of Node's pool of four, which DNS, files and other cryptography need, too, and a core, of
 * which one is left for the event loop: that is where orders are placed.
 */
const HASHES_MAX = 2;
/**
 * Registrations and sign-ins that wait for their hash: about three seconds of work. Further ones get 503 at once, or take the place of
 * one from an address that has more of them: right passwords cost as much as wrong ones, and anybody may have accounts.
 */
const WAITING_MAX = 32;

export interface AccountsDependencies {
  readonly ledger: AccountLedger;
  readonly accountIds: Pick<IdSequence, 'next'>;
  readonly auditIds: Pick<IdSequence, 'next'>;
  readonly hasher: PasswordHasher;
  /** A failure of the ledger here is known everywhere. */
  watched<T>(work: Promise<T>): Promise<T>;
}

export interface Registration {
  readonly username: string;
  readonly email: string;
  readonly password: string;
}

export type Registered =
  | { readonly ok: true; readonly account: AccountRecord }
  | { readonly ok: false; readonly code: 'username_taken' | 'email_taken' }
  | { readonly ok: false; readonly code: 'invalid_request'; readonly errors: Fault[] };

/**
 * Accounts that people register themselves. Expects input of the right types and lengths (contract/schemas.ts).
 *
 * A sign-in does the same work whether the name exists or not: one read, one hash. It does not limit how often somebody may try; the
 * edge does (http/password-limits.ts).
 */
export class Accounts {
  readonly #on: AccountsDependencies;
  readonly #hashes = new Fair(
    Math.max(1, Math.min(HASHES_MAX, availableParallelism() - 1)),
    WAITING_MAX,
    'registrations and sign-ins at once',
  );

  constructor(dependencies: AccountsDependencies) {
    this.#on = dependencies;
  }

  /** `origin`: the address that it came from, for the audit. */
  async register(
    { username, email: given, password }: Registration,
    from: AddressInNetwork,
    origin: string | null,
  ): Promise<Registered> {
    const email = storedEmail(given);
    const errors = faultsOf({ username, email, password });
    if (errors.length > 0) return { ok: false, code: 'invalid_request', errors };
    const { ledger, accountIds, auditIds, hasher, watched } = this.#on;
    return await this.#hashes.run(from, async () => {
      // The insert decides; this saves a hash.
      if ((await watched(ledger.accountByName(username))) !== null) return { ok: false, code: 'username_taken' };
      const passwordHash = await hasher.hash(password);
      const [id, auditId] = await Promise.all([accountIds.next(), auditIds.next()]);
      const made = await watched(ledger.createAccount({ id, username, email, passwordHash, auditId, origin }));
      return made.outcome === 'ok' ? { ok: true, account: made.account } : { ok: false, code: made.outcome };
    });
  }

  /** The account, or null: no such account, or another password. The two cannot be told apart by time either. */
  async signIn(username: string, password: string, from: AddressInNetwork): Promise<AccountRecord | null> {
    const { ledger, hasher, watched } = this.#on;
    // The read waits for its turn, too: a crowd beyond the queue is refused before it reaches the ledger.
    return await this.#hashes.run(from, async () => {
      const found = await watched(ledger.accountByName(username));
      if (!(await hasher.matches(password, found?.passwordHash ?? null)) || found === null) return null;
      const { passwordHash: _, ...account } = found;
      return account;
    });
  }
}

function faultsOf({ username, email, password }: Registration): Fault[] {
  const found = [
    { path: '/username', message: usernameFault(username) },
    { path: '/email', message: emailFault(email) },
    { path: '/password', message: passwordFault(password, username, email) },
  ];
  return found.flatMap(({ path, message }) => (message === null ? [] : [{ path, message }]));
}

/** Why a new password is too weak, or null. */
function passwordFault(password: string, username: string, email: string): string | null {
  const form = hashedForm(password);
  // Composing shortens a text: four letters with accents apart are eight characters.
  if ([...form].length < ACCOUNT_BOUNDS.passwordMin) {
    return `must have at least ${ACCOUNT_BOUNDS.passwordMin} characters in Unicode normalization form NFKC`;
  }
  if (isCommon(password)) return 'is one of the most common passwords: choose another';
  const lower = form.toLowerCase();
  if ([username, email].some((own) => own.toLowerCase() === lower)) return 'must not be the username or the address';
  return null;
}
