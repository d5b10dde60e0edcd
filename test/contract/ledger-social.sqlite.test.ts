import { sqliteUnderTest } from '../support/sqlite-ledger.ts';
import { likeContract } from './ledger-likes.ts';
import { socialContract } from './ledger-social.ts';

socialContract('sqlite', async () => sqliteUnderTest());
likeContract('sqlite', async () => sqliteUnderTest());
