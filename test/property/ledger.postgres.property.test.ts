import { describeWithPostgres } from '../support/servers/describe.ts';
import { sqlWorlds } from '../support/sql-databases.ts';
import { ledgerUnderLies } from './ledger-lies.ts';
import { ledgerAlive } from './ledger-life.ts';
import { likesSettled } from './ledger-likes.ts';
import { seatsKept } from './ledger-seats.ts';

describeWithPostgres('the ledger under a gate that lies, and the life of its orders', () => {
  const { make } = sqlWorlds('postgres', { poolMax: 2 });
  ledgerAlive('postgres', make, { short: 3, long: 150, opsMax: 60 });
  seatsKept('postgres', make, { short: 3, long: 150, opsMax: 60 });
  ledgerUnderLies('postgres', make, { short: 12, long: 300 });
  likesSettled('postgres', make, { short: 5, long: 150 });
});
