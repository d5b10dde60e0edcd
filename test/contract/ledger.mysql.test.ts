import { describeWithMysql } from '../support/servers/describe.ts';
import { SQL_STATES, sqlWorlds } from '../support/sql-databases.ts';
import { ledgerContract } from './ledger.ts';
import { lifeContract } from './ledger-life.ts';
import { sqlLifeSuite } from './ledger-life-sql.ts';
import { likeContract } from './ledger-likes.ts';
import { sqlLikeSuite } from './ledger-likes-sql.ts';
import { seatContract } from './ledger-seats.ts';
import { sqlSeatSuite } from './ledger-seats-sql.ts';
import { socialContract } from './ledger-social.ts';

describeWithMysql('MySQL', () => {
  const { make, url } = sqlWorlds('mysql');
  ledgerContract('mysql', make, SQL_STATES);
  lifeContract('mysql', make, SQL_STATES);
  seatContract('mysql', make, SQL_STATES);
  socialContract('mysql', make);
  likeContract('mysql', make);
  sqlLikeSuite(make, url);
  sqlLifeSuite('mysql');
  sqlSeatSuite('mysql');
});
