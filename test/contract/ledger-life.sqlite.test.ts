import { sqliteUnderTest } from '../support/sqlite-ledger.ts';
import { lifeContract } from './ledger-life.ts';

lifeContract('sqlite', async () => sqliteUnderTest());
