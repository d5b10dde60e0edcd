import { describe } from 'vitest';
import { sqliteUnderTest } from '../support/sqlite-ledger.ts';
import { ledgerUnderLies } from './ledger-lies.ts';
import { likesSettled } from './ledger-likes.ts';

describe('the ledger under a gate that lies', () => {
  ledgerUnderLies('sqlite', async () => sqliteUnderTest(), { short: 75, long: 4_000 });
});

describe('likes that are settled', () => {
  likesSettled('sqlite', async () => sqliteUnderTest(), { short: 20, long: 1_500 });
});
