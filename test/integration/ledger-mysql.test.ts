import { sqlLedgerSuite } from '../contract/ledger-sql.ts';
import { describeWithMysql } from '../support/servers/describe.ts';

describeWithMysql('MySQL', () => sqlLedgerSuite('mysql'));
