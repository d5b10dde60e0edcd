import { sqlWorlds } from '../contract/ledger.sql.ts';
import { describeWithMysql } from '../support/servers/describe.ts';
import { ledgerUnderLies } from './ledger-lies.ts';

describeWithMysql('the ledger under a gate that lies', () => {
  const { make } = sqlWorlds('mysql', { poolMax: 2 });
  ledgerUnderLies('mysql', make, { short: 12, long: 300 });
});
