import { describe } from 'vitest';
import { sqliteUnderTest } from '../support/sqlite-ledger.ts';
import { seatsKept } from './ledger-seats.ts';

describe('seats in the ledger', () => {
  seatsKept('sqlite', async () => sqliteUnderTest(), { short: 8, long: 800, opsMax: 60 });
});
