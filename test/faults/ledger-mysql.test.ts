import { expect, it, onTestFinished } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { describeWithOwnMysql } from '../support/servers/describe.ts';
import { startMariadb } from '../support/servers/mariadb.ts';
import { sqlFaultSuite } from '../support/sql-faults.ts';

describeWithOwnMysql('MariaDB', () => sqlFaultSuite('mysql', startMariadb));

describeWithOwnMysql('a MariaDB whose transactions do not commit by themselves', () => {
  it('P3 P5: what is written by one statement is stored all the same', async () => {
    const server = await startMariadb();
    await server.query('SET GLOBAL autocommit = 0');
    const ledger = await openSqlLedger(server.url, systemRuntime(), { migrate: true, exclusive: false });
    onTestFinished(() => ledger.close());
    const scope = { caller: 'c', actingFor: null, operation: 'o', subject: 's', key: 'k', fingerprint: 'f' };
    await ledger.bindAnswer(scope, 'answer');
    expect(await server.query('SELECT answer FROM call_keys')).toHaveLength(1);
  });
});
