import { sqliteUnderTest } from './ledger.sqlite.ts';
import { lifeContract } from './ledger-life.ts';

lifeContract('sqlite', async () => sqliteUnderTest());
