import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ACTOR_KINDS } from '../../src/model/actor.ts';
import { decodeEntry, encodeEntry, splitEntry } from '../../src/model/stream-entry.ts';
import { entryOf, orderMessage } from '../support/streams.ts';

const line = fc.string({ unit: fc.constantFrom('a', 'ü', '键', ' ', ',', ';', '0', 'o', 'k', '$'), minLength: 1 });
const message = fc
  .record({
    orderId: fc.bigInt({ min: 1n, max: 2n ** 63n - 1n }).map(String),
    buyer: line,
    key: fc.option(line),
    fingerprint: line,
    placedBy: fc.option(
      fc.record({
        auditId: fc.bigInt({ min: 1n, max: 2n ** 63n - 1n }).map(String),
        kind: fc.constantFrom(...ACTOR_KINDS),
        name: fc.string({ unit: 'binary' }),
        origin: fc.option(fc.ipV6()),
      }),
    ),
    slots: fc.uniqueArray(fc.integer({ min: 1, max: 9 }), { minLength: 1 }),
  })
  .map(({ orderId, slots, placedBy, ...over }) =>
    orderMessage(orderId, { ...over, slots, quantity: slots.length, ...(placedBy && { placedBy }) }),
  );
/** Orders of one kind, as they stand in one entry. */
const batch = fc
  .tuple(fc.uniqueArray(message, { minLength: 1, maxLength: 8, selector: (m) => m.orderId }), fc.boolean())
  .map(([messages, seated]) =>
    seated ? messages.map((one, at) => ({ ...one, seats: one.slots.map((slot) => 100 * at + slot) })) : messages,
  );

describe('an entry of a stream', () => {
  it('is read as it was written; taken apart it is the same orders', () => {
    fc.assert(
      fc.property(batch, (messages) => {
        const fields = entryOf(messages);
        expect(decodeEntry('1', fields)).toEqual(messages);
        const { messages: parts, rest } = splitEntry(fields);
        expect(rest).toBeNull();
        expect(parts.map(({ id }) => id)).toEqual(messages.map(({ orderId }) => orderId));
        expect(parts.flatMap((each) => decodeEntry('1', each.fields))).toEqual(messages);
      }),
    );
  });

  it('with orders that are alike in one field, as the gate writes them', () => {
    const header = ['', '3\n900\nprocess-1', 'i2', '11\nvoucher, red\n8000\nCNY'];
    const bare = decodeEntry('7', [...header, 'o2', '2\n1.2\nvoucher x2\n101 102\nalice\nbob']);
    const common = {
      ...{ saleId: '7', itemId: '11', itemCode: 'voucher, red', quantity: 2, slots: [1, 2], payWithinSeconds: 900 },
      ...{ price: { amount: 8000, currency: 'CNY' }, epoch: 3, fingerprint: 'voucher x2', from: 'process-1' },
    };
    expect(bare).toEqual([
      { ...common, orderId: '101', buyer: 'alice', key: null },
      { ...common, orderId: '102', buyer: 'bob', key: null },
    ]);
    const keyed = decodeEntry('7', [...header, 'k2', '2\n1.2\nvoucher x2\n101 102\nalice\nk1\nbob\n']);
    expect(keyed.map(({ key }) => key)).toEqual(['k1', null]);
  });

  it.each([
    ['no header', ['i1', '2\nv\n1\nCNY'], 'no header'],
    ['a field that is nothing', ['', '1\n1\n', 'what', 'is this'], 'what'],
    ['fewer orders than it says', ['', '1\n1\n', 'i1', '2\nv\n1\nCNY', 'o2', '1\n1\nf\n1\nb'], '2 orders'],
    ['more orders than it says', ['', '1\n1\n', 'i1', '2\nv\n1\nCNY', 'o1', '1\n1\nf\n1 2\nb\nc'], '1 orders'],
    ['somebody of no kind', ['', '1\n1\n', 'by', '[["1","2","thief","x",null]]'], 'nobody can have placed order "1"'],
    ['an audit id that is none', ['', '1\n1\n', 'by', '[["1","","admin","x",null]]'], 'nobody can have placed'],
    ['what is not JSON', ['', '1\n1\n', 'by', 'x'], 'JSON'],
    ['an item that is not in it', ['', '1\n1\n', 'o1', '4\n1\nf\n1\nb'], 'item 4'],
    ['seats without their format', ['', '1\n1\n', 'i1', '2\nv\n1\nCNY', 'o1', '1\n1\nf\n1\n5\nb'], '1 orders'],
    ['no seats', ['2', '1\n1\n', 'i1', '2\nv\n1\nCNY', 'o1', '1\n1\nf\n1\nb'], '1 orders'],
    ['seats that are none', ['2', '1\n1\n', 'i1', '2\nv\n1\nCNY', 'o1', '1\n1\nf\n1\n5.x\nb'], '5.x'],
    ['seats of one of two', ['2', '1\n1\n', 'i1', '2\nv\n1\nCNY', 'o2', '1\n1\nf\n1 2\n5\nb\nc'], 'the seats'],
    ['more slots than seats', ['2', '1\n1\n', 'i1', '2\nv\n1\nCNY', 'o1', '1\n1.2\nf\n1\n5\nb'], '2 slots and 1'],
    ['a format of tomorrow', ['3', '1\n1\n', 'i1', '2\nv\n1\nCNY', 'o1', '1\n1\nf\n1\n5\nb'], 'no header'],
  ])('that no gate has written is refused: %s', (_, fields, words) => {
    expect(() => decodeEntry('1', fields)).toThrow(words);
  });

  it('what cannot be taken apart is what is left', () => {
    const good = encodeEntry(orderMessage('5'));
    const odd = ['o9', 'x', 'what', 'is this', 'o1', '1\n1\nf\nno id\nb'];
    const { messages, rest } = splitEntry([...good, ...odd]);
    expect(messages).toEqual([{ id: '5', fields: good }]);
    expect(rest).toEqual([...good.slice(0, 4), ...odd]);
    expect(splitEntry(['what', 'is this'])).toEqual({ messages: [], rest: ['what', 'is this'] });
  });
});
