import { describeWithPostgres } from '../support/servers/describe.ts';
import { SQL_STATES, sqlWorlds } from '../support/sql-databases.ts';
import { ledgerContract } from './ledger.ts';
import { lifeContract } from './ledger-life.ts';
import { sqlLifeSuite } from './ledger-life-sql.ts';
import { likeContract } from './ledger-likes.ts';
import { sqlLikeSuite } from './ledger-likes-sql.ts';
import { seatContract } from './ledger-seats.ts';
import { sqlSeatSuite } from './ledger-seats-sql.ts';
import { socialContract } from './ledger-social.ts';

describeWithPostgres('PostgreSQL', () => {
  const { make, url } = sqlWorlds('postgres');
  ledgerContract('postgres', make, SQL_STATES);
  lifeContract('postgres', make, SQL_STATES);
  seatContract('postgres', make, SQL_STATES);
  socialContract('postgres', make);
  likeContract('postgres', make);
  sqlLikeSuite(make, url);
  sqlLifeSuite('postgres');
  sqlSeatSuite('postgres');
});
