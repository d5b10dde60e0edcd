import type { Mutant } from './mutant.ts';

const REBUILD = 'src/gate/rebuild.ts';
const UPKEEP = 'src/gate/upkeep.ts';
const RULES = 'src/ledger/rules/sale-changes.ts';
const UNIT = ['test/unit/rebuild.test.ts'];
const LEDGER = ['test/contract/ledger-seats.sqlite.test.ts'];
const HTTP = ['test/integration/http-sale-changes.test.ts'];
const CONTRACT = ['test/contract/gate.memory.test.ts'];

export const SALE_CHANGES: readonly Mutant[] = [
  {
    name: 'items: a wish shuts the gate whatever is in the pipe',
    file: REBUILD,
    find: 'if (wish && !(await this.#drain(saleId, task, CALM_MS_MAX))) {',
    replace: 'if (wish && false) {',
    tests: UNIT,
    only: 'P3: shuts no gate',
  },
  {
    name: 'items: a gate that was built for a deleted sale opens',
    file: REBUILD,
    find: 'if (sale === null) await gate.remove(saleId);\n      return sale;',
    replace: 'return sale;',
    tests: UNIT,
    only: 'never opens',
  },
  {
    name: 'items: a sale is deleted with its gate open',
    file: REBUILD,
    find: '      await gate.shut(saleId);\n      if (!(await pipe.caughtUp(',
    replace: '      if (!(await pipe.caughtUp(',
    tests: UNIT,
    only: 'is asked about when no gate is open',
  },
  {
    name: 'items: a sale is deleted with orders in its pipe',
    file: REBUILD,
    find: 'CALM_MS_MAX, drainIdleMsMax))) return null;',
    replace: 'CALM_MS_MAX, drainIdleMsMax))) void 0;',
    tests: UNIT,
    only: 'nobody is asked while',
  },
  {
    name: 'items: the gate of a sale that stays is left shut',
    file: REBUILD,
    find: 'if (!taken) await within(',
    replace: 'if (false) await within(',
    tests: UNIT,
    only: 'its gate is open again if nobody could say',
  },
  {
    name: 'items: the upkeep leaves a gate that does not know them',
    file: UPKEEP,
    find: '(epoch ?? 0) <= sale.itemsEpoch',
    replace: 'epoch === null',
    tests: ['test/unit/gate-upkeep.test.ts'],
    only: 'a change of items is finished',
  },
  {
    name: 'items: a sale is deleted at another epoch',
    file: 'src/ledger/works/sale-changes.ts',
    find: "if (items!.rows.some((item) => Number(item.epoch) !== epoch)) return { outcome: 'rebuilt' };",
    replace: '',
    tests: LEDGER,
    only: 'only at the epoch',
  },
  {
    name: 'items: a new price is not told to the gate',
    file: RULES,
    find: 'const change = isSoldAs(item, next) ? {} : { itemsEpoch: epochOf(sale) };',
    replace: 'const change = {};',
    tests: LEDGER,
    only: 'a change that a gate must know',
  },
  {
    name: 'items: every text has the gate rebuilt',
    file: RULES,
    find: 'const change = isSoldAs(item, next) ? {} : { itemsEpoch: epochOf(sale) };',
    replace: 'const change = { itemsEpoch: epochOf(sale) };',
    tests: LEDGER,
    only: 'a change that a gate must know',
  },
  {
    name: 'items: one that is off sale is sold',
    file: 'src/gate/memory.ts',
    find: '} else if (!item.onSale || freeUnits(item) < quantity) return SOLD_OUT;',
    replace: '} else if (freeUnits(item) < quantity) return SOLD_OUT;',
    tests: CONTRACT,
    only: 'off sale',
  },
  {
    name: 'items: an answer does not wait for the gate',
    file: 'src/sales/manage.ts',
    find: '((await this.#on.gate.epochOf(sale.id)) ?? 0) > sale.itemsEpoch',
    replace: '(await this.#on.gate.epochOf(sale.id)) !== null',
    tests: HTTP,
    only: 'a new price is that of new orders only',
  },
  {
    name: 'items: events carry texts',
    file: 'src/views/board.ts',
    find: '  return stock;\n',
    replace: '  return { ...stock, description: _, image: __, metadata: ___ } as Stock;\n',
    tests: HTTP,
    only: 'is not sent texts',
  },
  {
    name: 'items: who watches a deleted sale is not told',
    file: 'src/views/board.ts',
    find: 'for (const gone of all) gone();',
    replace: '',
    tests: HTTP,
    only: 'gone for buyers',
  },
];
