import { describeWithPostgres } from '../support/servers/describe.ts';
import { SQL_STATES, sqlWorlds } from './ledger.sql.ts';
import { ledgerContract } from './ledger.ts';

describeWithPostgres('PostgreSQL', () => {
  ledgerContract('postgres', sqlWorlds('postgres').make, SQL_STATES);
});
