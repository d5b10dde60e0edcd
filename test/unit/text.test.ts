import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { keyFault, NAME_PATTERN, nameFault, TEXT_PATTERN, textFault } from '../../src/model/text.ts';
import { seeded } from '../property/seed.ts';

describe('nameFault', () => {
  it.each([
    'a',
    'alice@example.org',
    'two words',
    '张三',
    'ren\u00e9',
    'rene\u0301',
    '👩‍👩‍👧',
    'x'.repeat(128),
    '👍'.repeat(128),
  ])('takes %j', (text) => {
    expect(nameFault(text, 128)).toBeNull();
  });

  it.each([
    ['', 'empty'],
    ['x'.repeat(129), 'at most 128'],
    ['👍'.repeat(129), 'at most 128'],
    ['a\u0000b', 'control'],
    ['a\nb', 'control'],
    ['a\tb', 'control'],
    ['a\u007f', 'control'],
    ['a\u0085b', 'control'],
    ['a\u2028b', 'control'],
    ['\ud800', 'well-formed'],
    ['a\udc00b', 'well-formed'],
    [' a', 'blanks'],
    ['a ', 'blanks'],
    ['\u00a0a', 'blanks'],
    ['a\u3000', 'blanks'],
    ['\ufeffa', 'blanks'],
    [' ', 'blanks'],
  ])('refuses %j: %s', (text, why) => {
    expect(nameFault(text, 128)).toContain(why);
  });

  it('P2: what it takes is the same text after a way through UTF-8', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 40 }), (text) => {
        if (nameFault(text, 128) !== null) return;
        expect(Buffer.from(text, 'utf8').toString('utf8')).toBe(text);
        expect(text.trim()).toBe(text);
      }),
      seeded('names', { short: 500, long: 20_000 }),
    );
  });
});

it('the patterns that /openapi.json states say what nameFault and textFault say', () => {
  const [name, text] = [new RegExp(NAME_PATTERN, 'u'), new RegExp(TEXT_PATTERN, 'u')];
  const odd = [
    '\u0000',
    '\u001f',
    '\u007f',
    '\u0085',
    '\u009f',
    '\u2028',
    '\u2029',
    '\ud800',
    '\udc00',
    '\ufeff',
    '\u3000',
    '\u00a0',
  ];
  const unit = fc.oneof(
    fc.constantFrom(...odd, ' ', '\t', 'a', '界', '🎟'),
    fc.string({ unit: 'binary', maxLength: 1 }),
  );
  fc.assert(
    fc.property(fc.array(unit, { maxLength: 6 }), (parts) => {
      const some = parts.join('');
      expect([some, name.test(some)]).toEqual([some, nameFault(some, 128) === null]);
      expect([some, text.test(some)]).toEqual([some, textFault(some, 512) === null]);
    }),
    seeded('patterns of text', { short: 2000, long: 100_000 }),
  );
});

describe('keyFault', () => {
  it.each(['k', 'a b', '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~', 'x'.repeat(255)])('takes %j', (key) => {
    expect(keyFault(key)).toBeNull();
  });

  it.each(['', ' ', ' k', 'k ', 'x'.repeat(256), 'a\tb', 'a\nb', 'k\n', '\u007f', 'é', '键', 'a\u0000'])(
    'refuses %j',
    (key) => {
      expect(keyFault(key)).not.toBeNull();
    },
  );
});
