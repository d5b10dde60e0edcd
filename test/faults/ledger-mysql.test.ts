import { describeWithOwnMysql } from '../support/servers/describe.ts';
import { startMariadb } from '../support/servers/mariadb.ts';
import { sqlFaultSuite } from '../support/sql-faults.ts';

describeWithOwnMysql('MariaDB', () => sqlFaultSuite('mysql', startMariadb));
