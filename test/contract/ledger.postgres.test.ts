import { describeWithPostgres } from '../support/servers/describe.ts';
import { SQL_STATES, sqlWorlds } from '../support/sql-databases.ts';
import { ledgerContract } from './ledger.ts';
import { lifeContract } from './ledger-life.ts';
import { sqlLifeSuite } from './ledger-life-sql.ts';

describeWithPostgres('PostgreSQL', () => {
  const { make } = sqlWorlds('postgres');
  ledgerContract('postgres', make, SQL_STATES);
  lifeContract('postgres', make, SQL_STATES);
  sqlLifeSuite('postgres');
});
