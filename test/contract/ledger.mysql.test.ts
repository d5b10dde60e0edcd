import { describeWithMysql } from '../support/servers/describe.ts';
import { SQL_STATES, sqlWorlds } from '../support/sql-databases.ts';
import { ledgerContract } from './ledger.ts';
import { lifeContract } from './ledger-life.ts';
import { sqlLifeSuite } from './ledger-life-sql.ts';

describeWithMysql('MySQL', () => {
  const { make } = sqlWorlds('mysql');
  ledgerContract('mysql', make, SQL_STATES);
  lifeContract('mysql', make, SQL_STATES);
  sqlLifeSuite('mysql');
});
