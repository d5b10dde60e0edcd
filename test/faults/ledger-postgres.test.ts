import { describeWithOwnPostgres } from '../support/servers/describe.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { sqlFaultSuite } from '../support/sql-faults.ts';

describeWithOwnPostgres('PostgreSQL', () => sqlFaultSuite('postgres', startPostgres));
