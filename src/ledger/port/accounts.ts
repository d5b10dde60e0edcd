import type { AccountRecord } from '../../model/account.ts';

/** Accounts that people register themselves. Usernames and e-mail addresses are compared bytewise. */
export interface AccountLedger {
  /** Stores the account and its audit row. Of several that race for a name or an address, exactly one is stored. */
  createAccount(account: NewAccount): Promise<AccountCreated>;
  accountByName(username: string): Promise<AccountWithHash | null>;
  accountById(accountId: string): Promise<AccountRecord | null>;
}

export interface NewAccount {
  readonly id: string;
  readonly username: string;
  /** In its stored form: model/account.ts. */
  readonly email: string;
  readonly passwordHash: string;
  readonly auditId: string;
  /** The address that the registration came from; null: from inside a process of the shop. */
  readonly origin: string | null;
}

export interface AccountWithHash extends AccountRecord {
  /** Never leaves the shop: not in answers, logs or the audit. */
  readonly passwordHash: string;
}

export type AccountCreated =
  | { readonly outcome: 'ok'; readonly account: AccountRecord }
  /** If both are taken, the username is named. */
  | { readonly outcome: 'username_taken' | 'email_taken' };
