import type { AccountRecord } from '../model/account.ts';
import type { AccountCreated, AccountLedger, AccountWithHash, NewAccount } from './port/accounts.ts';
import type { Store } from './store.ts';
import * as accounts from './works/accounts.ts';

export class AccountBook implements AccountLedger {
  readonly #on: Store;

  constructor(store: Store) {
    this.#on = store;
  }

  createAccount(account: NewAccount): Promise<AccountCreated> {
    return this.#on.changeShared(() => accounts.createAccount(account));
  }

  accountByName(username: string): Promise<AccountWithHash | null> {
    return this.#on.look(() => accounts.accountByName(username));
  }

  accountById(accountId: string): Promise<AccountRecord | null> {
    return this.#on.look(() => accounts.accountById(accountId));
  }
}
