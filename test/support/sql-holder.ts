// A writer that locks an item's row in an open transaction and then waits to be stopped from outside.
import { systemRuntime } from '../../src/base/runtime.ts';
import { mysqlDialect } from '../../src/ledger/drivers/mysql/ledger.ts';
import { postgresDialect } from '../../src/ledger/drivers/postgres/ledger.ts';

const [url, itemId] = process.argv.slice(2);
const make = url!.startsWith('postgres') ? postgresDialect : mysqlDialect;
const dialect = await make(url!, systemRuntime(), { poolMax: 1 });
const session = await dialect.connections.take();
await session.script(`${dialect.begin}; SELECT id FROM items WHERE id = ${itemId} FOR UPDATE`);
console.log('holds the row');
setInterval(() => {}, 1000);
