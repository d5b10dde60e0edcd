import { describeWithMysql } from '../support/servers/describe.ts';
import { SQL_STATES, sqlWorlds } from './ledger.sql.ts';
import { ledgerContract } from './ledger.ts';

describeWithMysql('MySQL', () => {
  ledgerContract('mysql', sqlWorlds('mysql').make, SQL_STATES);
});
