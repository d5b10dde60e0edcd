// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the source to be patched contains template strings
import type { Mutant } from './mutant.ts';

const HALL = 'src/gate/hall.ts';
const MEMORY = 'src/gate/memory.ts';
const MEMORY_SALE = 'src/gate/memory-sale.ts';
const LUA = 'src/gate/redis/lua';
const CONTRACT = ['test/contract/gate.memory.test.ts'];
const REDIS = ['test/contract/gate.redis.test.ts'];
const PROPERTY = ['test/property/gate-seats.property.test.ts'];
const BETWEEN = ['test/integration/gate-seats.test.ts'];
const FORMATS = ['test/integration/formats.test.ts'];

export const GATE_SEATS: readonly Mutant[] = [
  // In memory
  {
    name: 'hall: a seat that two have is free when one has left it',
    file: HALL,
    find: 'const others = this.#further.get(seat);',
    replace: 'const others = undefined as number | undefined;',
    tests: CONTRACT,
  },
  {
    name: 'hall: a blocked seat that is left is free',
    file: HALL,
    find: 'this.#set(seat, this.#isMarked(seat) ? BLOCKED : FREE);',
    replace: 'this.#set(seat, FREE);',
    tests: CONTRACT,
  },
  {
    name: 'hall: single seats are left beside a window',
    file: HALL,
    find: 'const orphans = last - start === 1 ? 1 : 0;',
    replace: 'const orphans = 0;',
    tests: PROPERTY,
  },
  {
    name: 'hall: seats with a gap between them are neighbours',
    file: HALL,
    find: 'if (start >= 0 && (!free || this.#begins[first + at] === 1)) {',
    replace: 'if (start >= 0 && !free) {',
    tests: CONTRACT,
  },
  {
    name: 'hall: the row with the most free seats comes before one that has enough',
    file: HALL,
    find: 'if (free >= left) break;',
    replace: '',
    tests: PROPERTY,
  },
  {
    name: 'hall: of two seats that are equally near the last is taken',
    file: HALL,
    find: 'n - 1 - left <= right) ? left-- : right++;',
    replace: 'n - 1 - left < right) ? left-- : right++;',
    tests: CONTRACT,
  },
  {
    name: 'gate: some of the seats are taken where others are not free',
    file: MEMORY_SALE,
    find: "if (taken.length > 0) return { outcome: 'seat_taken', seats: taken };\n    return item.onSale",
    replace:
      "if (taken.length === seats!.length) return { outcome: 'seat_taken', seats: taken };\n    return item.onSale",
    tests: CONTRACT,
  },
  {
    name: 'gate: a seated item is sold like a counted one',
    file: MEMORY,
    find: 'if (item === undefined || !isKnown(item, request)) return UNKNOWN;',
    replace: 'if (item === undefined) return UNKNOWN;',
    tests: CONTRACT,
  },
  {
    name: 'gate: an order that ends keeps its seats',
    file: MEMORY_SALE,
    find: 'hold.item.seating!.hall.leave(hold.sitting.seats);\n    logSeats(sale, hold.item);',
    replace: 'logSeats(sale, hold.item);',
    tests: CONTRACT,
  },
  {
    name: 'gate: an older move is applied after a newer one',
    file: MEMORY,
    find: 'if (sitting && rev > Math.max(builtRev, sitting.movedRev)) {',
    replace: 'if (sitting && rev > builtRev) {',
    tests: CONTRACT,
  },
  {
    name: 'gate: a move that the snapshot contains is applied once more',
    file: MEMORY,
    find: 'if (sitting && rev > Math.max(builtRev, sitting.movedRev)) {',
    replace: 'if (sitting && rev > sitting.movedRev) {',
    tests: CONTRACT,
  },
  {
    name: 'gate: the house keeps the seats of an order that was moved',
    file: MEMORY,
    find: 'leaveHouse(item, houseHoldId(auditId));',
    replace: '',
    tests: CONTRACT,
  },
  {
    name: 'gate: a moved order is not sold any more',
    file: MEMORY,
    find: "const as = hall.isSold(sitting.seats[0]!) ? 'sold' : 'reserved';",
    replace: "const as = 'reserved';",
    tests: CONTRACT,
  },
  {
    name: 'gate: what was blocked before is blocked again',
    file: MEMORY,
    find: 'if (rev > item.seating.blockedRev) {',
    replace: 'if (rev > 0) {',
    tests: CONTRACT,
  },
  {
    name: 'gate: the house takes the seats of the order that is to be moved',
    file: MEMORY,
    find: 'const wanted = seats.filter((seat) => !left.has(seat) &&',
    replace: 'const wanted = seats.filter((seat) =>',
    tests: CONTRACT,
  },
  {
    name: 'gate: a paid order of a snapshot is reserved',
    file: MEMORY_SALE,
    find: 'if (seats !== undefined && paid) item.seating!.hall.sell(seats);',
    replace: '',
    tests: CONTRACT,
  },
  {
    name: 'seat log: one change fewer is told than is kept',
    file: 'src/gate/seat-log.ts',
    find: 'count > SEAT_CHANGES_MAX',
    replace: 'count >= SEAT_CHANGES_MAX',
    tests: CONTRACT,
  },
  {
    name: 'seat log: changes are told that were overwritten',
    file: 'src/gate/seat-log.ts',
    find: 'count > SEAT_CHANGES_MAX',
    replace: 'count > SEAT_CHANGES_MAX + 1',
    tests: CONTRACT,
  },

  // In Redis
  {
    name: 'redis gate: a seat that two have is free when one has left it',
    file: `${LUA}/_seats.lua`,
    find: 'if stored + changed <= 0 then return false end',
    replace: 'if stored + changed <= 9 then return false end',
    tests: REDIS,
  },
  {
    name: 'redis gate: an order that ends keeps its seats',
    file: `${LUA}/end.lua`,
    find: '      leaveSeats(hall, seatsIn(hall, seats))\n',
    replace: '',
    tests: REDIS,
  },
  {
    name: 'redis gate: changes without end are kept',
    file: `${LUA}/_seats.lua`,
    find: "redis.call('LTRIM', CHANGES, -4096, -1)",
    replace: '',
    tests: REDIS,
  },
  {
    name: 'redis gate: rows are looked for behind the one that was found',
    file: `${LUA}/admit-seats.lua`,
    find: 'hall.cursor[kind][k] = number\n',
    replace: 'hall.cursor[kind][k] = number + 1\n',
    tests: REDIS,
  },
  {
    name: 'redis gate: a row is found by what it had before this call',
    file: `${LUA}/admit-seats.lua`,
    find: 'if not stale[number] or measured(stale[number], kind) >= k then',
    replace: 'if true then',
    tests: REDIS,
  },
  {
    name: 'redis gate: ten neighbours are a pattern of their own',
    file: `${LUA}/admit-seats.lua`,
    find: "  if lowest == '%' then return '[%%&-\\127]' end\n",
    replace: '',
    tests: PROPERTY,
  },
  {
    name: 'redis gate: 67 neighbours are a pattern of their own',
    file: `${LUA}/admit-seats.lua`,
    find: "  if lowest == '^' then return '[_-\\127%^]' end\n",
    replace: '',
    tests: PROPERTY,
  },
  {
    name: 'redis gate: runs far from the centre are not looked at, though they leave no single seat',
    file: `${LUA}/admit-seats.lua`,
    find: 'if not first or (best and (step < 0 and length + k - 2 * behind or 2 * first + k - length) > least) then',
    replace: 'if not first or best then',
    tests: PROPERTY,
  },
  {
    name: 'redis gate: a run is cut across a gap',
    file: `${LUA}/admit-seats.lua`,
    find: "if next ~= place + 1 or find(row.text, '^F', behind) then",
    replace: 'if next ~= place + 1 then',
    tests: PROPERTY,
  },
  {
    name: 'redis gate: an item that is off sale is sold by number',
    file: `${LUA}/admit-seats.lua`,
    find: "    if item.offSale then return '41' end\n",
    replace: '',
    tests: REDIS,
  },
  {
    name: 'redis gate: an older move is applied after a newer one',
    file: `${LUA}/move-seats.lua`,
    find: "if rev > builtRev and rev > tonumber(movedRev == '' and 0 or movedRev) then",
    replace: 'if rev > builtRev then',
    tests: REDIS,
  },
  {
    name: 'redis gate: a move that the snapshot contains is applied once more',
    file: `${LUA}/move-seats.lua`,
    find: "if rev > builtRev and rev > tonumber(movedRev == '' and 0 or movedRev) then",
    replace: "if rev > tonumber(movedRev == '' and 0 or movedRev) then",
    tests: REDIS,
  },
  {
    name: 'redis gate: what was blocked before is blocked again',
    file: `${LUA}/apply-blocked.lua`,
    find: 'if newer and digest ~= known[2] then',
    replace: 'if digest ~= known[2] then',
    tests: REDIS,
  },
  {
    name: 'redis gate: a late part of the seats is written into a gate that sells',
    file: `${LUA}/build-seats.lua`,
    find: "or redis.call('HGET', KEYS[2], 'build') ~= ARGV[2] then",
    replace: "or redis.call('EXISTS', KEYS[2]) == 0 then",
    tests: BETWEEN,
  },
  {
    name: 'redis gate: seats stay behind when a sale is taken out',
    file: 'src/gate/redis/install.ts',
    find: 'return [items, holds, keys, house, seats, changes, stream];',
    replace: 'return [items, holds, keys, house, house, house, stream];',
    tests: PROPERTY,
  },
  {
    name: 'redis gate: seats are sold beside a version that does not know them',
    file: 'src/gate/redis/gate.ts',
    find: 'if (snapshot.items.some(({ seats }) => seats !== undefined)) await this.#mayWriteSeats();',
    replace: '',
    tests: FORMATS,
  },
  {
    name: 'admissions: a call has more seats than its bound',
    file: 'src/gate/redis/admissions.ts',
    find: '} else if (lane.weight + weight > this.#kind.waitingMax) {',
    replace: '} else if (lane.weight + weight > 2 * this.#kind.waitingMax) {',
    tests: BETWEEN,
  },

  // Between ledger and gate
  {
    name: 'rebuild: orders that were moved meanwhile sit where they sat',
    file: 'src/gate/rebuild.ts',
    find: '      await this.#moveSince(snapshot);\n',
    replace: '',
    tests: BETWEEN,
  },
  {
    name: 'rebuild: seats that were blocked meanwhile are sold',
    file: 'src/gate/rebuild.ts',
    find: 'return { ...sale, blockedSeats: await ledger.blockedSeats(saleId) };',
    replace: 'return sale;',
    tests: BETWEEN,
  },
  {
    name: 'upkeep: seats of the house are free before the gate hears who sits there',
    file: 'src/gate/upkeep.ts',
    find: 'for (const move of page) await gate.moveSeats(saleId, move);',
    replace: 'void page;',
    tests: BETWEEN,
  },
  {
    name: 'upkeep: seats of the house are free before the gate hears that they are blocked',
    file: 'src/gate/upkeep.ts',
    find: '    await rebuilder.apply(saleId);\n    const revs',
    replace: '    const revs',
    tests: BETWEEN,
  },
  {
    name: 'seat mover: a move is told to the wrong gate',
    file: 'src/orders/life/seat-mover.ts',
    find: 'tell: (move) => gate.moveSeats(move.saleId, move),',
    replace: 'tell: (move) => gate.moveSeats(move.itemId, move),',
    tests: BETWEEN,
  },
];
