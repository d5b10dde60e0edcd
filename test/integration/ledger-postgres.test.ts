import { sqlLedgerSuite } from '../contract/ledger-sql.ts';
import { describeWithPostgres } from '../support/servers/describe.ts';

describeWithPostgres('PostgreSQL', () => sqlLedgerSuite('postgres'));
