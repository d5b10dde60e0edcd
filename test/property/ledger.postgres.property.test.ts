import { sqlWorlds } from '../contract/ledger.sql.ts';
import { describeWithPostgres } from '../support/servers/describe.ts';
import { ledgerUnderLies } from './ledger-lies.ts';

describeWithPostgres('the ledger under a gate that lies', () => {
  const { make } = sqlWorlds('postgres', { poolMax: 2 });
  ledgerUnderLies('postgres', make, { short: 12, long: 300 });
});
