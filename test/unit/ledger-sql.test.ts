import { describe, expect, it } from 'vitest';
import { RetryableError, TerminalError } from '../../src/base/errors.ts';
import { driverError as mysqlError } from '../../src/ledger/drivers/mysql/errors.ts';
import { inlined, literalsAlike, textLiteral } from '../../src/ledger/drivers/mysql/literal.ts';
import { driverError as postgresError } from '../../src/ledger/drivers/postgres/errors.ts';
import {
  byId,
  type Found,
  type ItemState,
  judge,
  mustBeWellFormed,
  NOTHING_FOUND,
} from '../../src/ledger/rules/backstops.ts';
import { ConflictError } from '../../src/ledger/works/work.ts';
import type { OrderMessage } from '../../src/model/order.ts';

describe('what an error of a database is about', () => {
  const mysql = (errno: number) =>
    mysqlError(Object.assign(new Error('x'), { errno, sqlState: 'HY000', sql: 'names' }));
  const postgres = (code: string) => postgresError(Object.assign(new Error('x'), { code, severity: 'ERROR' }));

  it.each([
    ['deadlock', mysql(1213)],
    ['rolled back by group replication', mysql(3101)],
    ['serialization failure', postgres('40001')],
    ['deadlock', postgres('40P01')],
  ])('%s: tried again', (_, error) => {
    expect(error).toBeInstanceOf(ConflictError);
  });

  it.each([
    ['lock wait timeout', mysql(1205)],
    ['statement timeout (MariaDB)', mysql(1969)],
    ['statement timeout (MySQL)', mysql(3024)],
    ['query interrupted', mysql(1317)],
    ['disk full', mysql(1021)],
    ['table full', mysql(1114)],
    ['storage engine', mysql(1030)],
    ['read-only server', mysql(1290)],
    ['read-only transaction', mysql(1792)],
    ['read-only mode', mysql(1836)],
    ['shutting down', mysql(1053)],
    ['too many connections', mysql(1040)],
    ['too many connections of the user', mysql(1203)],
    ['connection killed', mysql(1927)],
    ['a table is missing', mysql(1146)],
    ['lock timeout', postgres('55P03')],
    ['statement timeout', postgres('57014')],
    ['idle in transaction', postgres('25P03')],
    ['read-only', postgres('25006')],
    ['disk full', postgres('53100')],
    ['out of memory', postgres('53200')],
    ['too many connections', postgres('53300')],
    ['shutting down', postgres('57P01')],
    ['crash of another', postgres('57P02')],
    ['starting up', postgres('57P03')],
    ['I/O error', postgres('58030')],
    ['a table is missing', postgres('42P01')],
    ['refused', mysqlError(Object.assign(new Error('x'), { code: 'ECONNREFUSED', errno: -111 }))],
    ['reset', postgresError(Object.assign(new Error('x'), { code: 'ECONNRESET', errno: -104 }))],
    ['lost', mysqlError(Object.assign(new Error('x'), { code: 'PROTOCOL_CONNECTION_LOST', fatal: true }))],
    ['terminated', postgresError(new Error('Connection terminated unexpectedly'))],
  ])('%s: unavailable, and never the fault of a message', (_, error) => {
    expect(error).toBeInstanceOf(RetryableError);
    expect((error as RetryableError).code).toBe('unavailable');
  });

  it.each([
    ['too long', mysql(1406)],
    ['CHECK', mysql(4025)],
    ['CHECK', mysql(3819)],
    ['duplicate', mysql(1062)],
    ['out of range', mysql(1264)],
    ['invalid bytes', postgres('22021')],
    ['out of range', postgres('22003')],
    ['CHECK', postgres('23514')],
    ['too long for an index', postgres('54000')],
    ['too many arguments', postgres('54023')],
    ['a bug of ours', mysqlError(new TypeError('x'))],
    ['a fault that we found ourselves', postgresError(new TerminalError('order_malformed', 'x'))],
  ])('%s: about the values, and not retried', (_, error) => {
    expect(error).not.toBeInstanceOf(RetryableError);
    expect(error).not.toBeInstanceOf(ConflictError);
  });

  it('does not carry the statement, with the names in it, into a log', () => {
    expect(JSON.stringify(Object.entries(mysql(1406)))).not.toContain('names');
  });
});

describe('literals of MySQL', () => {
  it('are plain where that is safe, and digits otherwise', () => {
    expect(textLiteral('alice')).toBe("'alice'");
    for (const text of ["o'hara", 'a\\', 'é', '\n', '\u0000', '\u{1f389}', '\u00a5']) {
      expect(textLiteral(text)).toBe(`_utf8mb4 X'${Buffer.from(text).toString('hex')}'`);
    }
  });

  it('of one expression are all of one form', () => {
    expect(literalsAlike(['a', null, 1n])).toEqual(["'a'", 'NULL', '1']);
    expect(literalsAlike(['a', 'é', null])).toEqual(["_utf8mb4 X'61'", "_utf8mb4 X'c3a9'", 'NULL']);
  });

  it('stand where the places are, in order and in number', () => {
    expect(inlined('a = ? AND b IN (?) AND c = ?', ['?', [1n, 2n], null])).toBe("a = '?' AND b IN (1, 2) AND c = NULL");
    expect(() => inlined('a = ?', [1, 2])).toThrow(RangeError);
    expect(() => inlined('a = ? ?', [1])).toThrow(RangeError);
    expect(() => inlined('a IN (?)', [[]])).toThrow(RangeError);
    expect(() => inlined('a = ?', [Number.NaN])).toThrow(RangeError);
  });
});

describe('the verdict on a batch', () => {
  const item = (over: Partial<ItemState> = {}): ItemState => ({
    id: '2',
    saleId: '1',
    code: 'v',
    epoch: 3,
    free: 2,
    perBuyerMax: 2,
    seats: null,
    ...over,
  });
  const items = new Map([
    ['2', item()],
    ['10', item({ id: '10' })],
  ]);
  let lastId = 100;
  const message = (buyer: string, over: Partial<OrderMessage> = {}): OrderMessage => ({
    orderId: String(++lastId),
    saleId: '1',
    itemId: '2',
    itemCode: 'v',
    buyer,
    quantity: 1,
    slots: [1],
    price: { amount: 1, currency: 'CNY' },
    payWithinSeconds: 1,
    epoch: 3,
    key: null,
    fingerprint: 'x',
    ...over,
  });
  const words = (batch: OrderMessage[], found: Found = NOTHING_FOUND): string[] =>
    judge(batch, items, found).fresh.map(({ reason }) => reason ?? 'reserved');

  it('is clean only if nothing is to be said', () => {
    expect(judge([message('a'), message('b')], items, NOTHING_FOUND)).toMatchObject({
      clean: true,
      taken: [{ itemId: '2', epoch: 3, units: 2 }],
    });
    const twice = message('a');
    for (const batch of [[twice, twice], [message('a', { epoch: 2 })], [message('a'), message('b'), message('c')]]) {
      expect(judge(batch, items, NOTHING_FOUND).clean).toBe(false);
    }
  });

  it('P2 P5: in the order of the messages; what is rejected keeps nobody else out', () => {
    expect(words([message('a', { epoch: 2, key: 'k' }), message('a', { key: 'k' })])).toEqual([
      'gate_rebuilt',
      'reserved',
    ]);
    expect(words([message('a'), message('a'), message('a', { slots: [2] })])).toEqual([
      'reserved',
      'limit_reached',
      'reserved',
    ]);
    expect(words([message('a', { key: 'k' }), message('a', { slots: [2], key: 'k' })])).toEqual([
      'reserved',
      'gate_rebuilt',
    ]);
  });

  it('P1: an order that is stored takes no units, and neither does one that is refused', () => {
    const old = message('a');
    const found = { ...NOTHING_FOUND, orders: new Set([old.orderId]), claims: new Set(['1\nb\n1']) };
    const batch = [old, message('b'), message('c'), message('d'), message('e')];
    expect(words(batch, found)).toEqual(['limit_reached', 'reserved', 'reserved', 'sold_out']);
  });

  it('takes the units of items in the order of their ids', () => {
    const batch = [message('a', { itemId: '10' }), message('b')];
    expect(judge(batch, items, NOTHING_FOUND).taken.map(({ itemId }) => itemId)).toEqual(['2', '10']);
    expect(['10', '9', '253585859977150465', '2'].toSorted(byId)).toEqual(['2', '9', '10', '253585859977150465']);
  });

  it('messages that no gate sends are a fault before anything is sent', () => {
    mustBeWellFormed(message('a'));
    for (const wrong of [
      { orderId: '1; DROP TABLE orders' },
      { saleId: '' },
      { itemId: '-1' },
      { quantity: 0 },
      { quantity: 0.5 },
      { epoch: Number.NaN },
      { price: { amount: 2 ** 53, currency: 'CNY' } },
      { payWithinSeconds: Number.POSITIVE_INFINITY },
    ]) {
      expect(() => mustBeWellFormed(message('a', wrong)), JSON.stringify(wrong)).toThrow(TerminalError);
    }
  });
});
