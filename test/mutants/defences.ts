// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the source to be patched contains template strings
import type * as Errors from '../../src/base/errors.ts';
import type * as Drivers from '../../src/ledger/drivers/open.ts';
import { type Patch, PatchedCopy } from './patched.ts';

/** The backstops of the ledger on a database with a server, and the patches that take each of them away. */
export type Backstop = 'claims' | 'stock';

export const WITHOUT: Readonly<Record<Backstop, readonly Patch[]>> = {
  // UNIQUE (sale, buyer, slot), and the check of the slots: no claim is written, none is looked at.
  claims: [
    {
      file: 'src/ledger/rules/backstops.ts',
      find: "if (isOverLimit(message, item.perBuyerMax, alone)) return 'limit_reached';",
      replace: '',
    },
    {
      file: 'src/ledger/drivers/mysql/orders.ts',
      find: 'for (const slot of message.slots) {',
      replace: 'for (const slot of []) {',
    },
    {
      file: 'src/ledger/drivers/postgres/orders.ts',
      find: 'claims += message.slots.length;',
      replace: 'continue;',
    },
    {
      file: 'src/ledger/drivers/postgres/orders.ts',
      find: 'bare(all, (order) => live(order, order.message.slots[0]!)),',
      replace: 'bare(all, () => null),',
    },
  ],
  // The conditional update of the item, and the CHECK below it.
  stock: [
    {
      file: 'src/ledger/rules/backstops.ts',
      find: 'full ||= units + message.quantity > free;',
      replace: '',
    },
    {
      file: 'src/ledger/drivers/mysql/orders.ts',
      find: 'AND total - reserved - sold - blocked >= ${units}',
      replace: '',
    },
    {
      file: 'src/ledger/drivers/postgres/orders.ts',
      find: 'AND total - reserved - sold - blocked >= ?::int',
      replace: 'AND ?::int > 0',
    },
    {
      file: 'src/ledger/drivers/mysql/migrations/0001_ledger.sql',
      find: 'CHECK (reserved + sold + blocked <= total)',
      replace: 'CHECK (total >= 0)',
    },
    {
      file: 'src/ledger/drivers/postgres/migrations/0001_ledger.sql',
      find: 'CHECK (reserved + sold + blocked <= total)',
      replace: 'CHECK (total >= 0)',
    },
  ],
};

/** The ledger's code without these backstops. A database that it migrates lacks their constraints, too. */
export interface WeakLedgers {
  readonly openSqlLedger: typeof Drivers.openSqlLedger;
  readonly RetryableError: typeof Errors.RetryableError;
  remove(): void;
}

export async function ledgersWithout(...backstops: readonly Backstop[]): Promise<WeakLedgers> {
  const copy = new PatchedCopy();
  copy.apply(backstops.flatMap((one) => WITHOUT[one]));
  const { openSqlLedger } = await copy.load<typeof Drivers>('src/ledger/drivers/open.ts');
  const { RetryableError } = await copy.load<typeof Errors>('src/base/errors.ts');
  return { openSqlLedger, RetryableError, remove: () => copy.remove() };
}
