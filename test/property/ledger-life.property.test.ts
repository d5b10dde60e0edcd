import { describe } from 'vitest';
import { sqliteUnderTest } from '../support/sqlite-ledger.ts';
import { ledgerAlive } from './ledger-life.ts';

describe('the life of orders', () => {
  ledgerAlive('sqlite', async () => sqliteUnderTest(), { short: 20, long: 2_500, opsMax: 60 });
});
