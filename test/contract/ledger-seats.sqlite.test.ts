import { sqliteUnderTest } from '../support/sqlite-ledger.ts';
import { seatContract } from './ledger-seats.ts';

seatContract('sqlite', async () => sqliteUnderTest());
