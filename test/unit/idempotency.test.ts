import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { bodyFingerprint, digestOf } from '../../src/base/idempotency.ts';
import { seeded } from '../property/seed.ts';

it('the order of members, at any depth, and blanks do not make another body', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (body) => {
      expect(bodyFingerprint(JSON.parse(JSON.stringify(reversed(body), null, 2)))).toBe(bodyFingerprint(body));
    }),
    seeded('the fingerprint of a body', { short: 300, long: 10_000 }),
  );
});

it('anything else does', () => {
  const bodies = [{}, { a: 1 }, { a: '1' }, { b: 1 }, { a: null }, { a: 1, b: 2 }, { a: 2, b: 1 }, { a: { b: 1 } }];
  const lists = [[], [1, 2], [2, 1], [{ a: 1 }, { b: 2 }], [{ a: 1, b: 2 }], [{ b: 2 }, { a: 1 }]];
  const prints = [...bodies, ...lists, '', 'a', 0, true].map(bodyFingerprint);
  expect(new Set(prints).size).toBe(prints.length);
});

it('no body is an empty one', () => {
  for (const none of [undefined, null]) expect(bodyFingerprint(none)).toBe(bodyFingerprint({}));
});

// Both are stored for a day, and longer, by processes of earlier versions.
it('is what earlier versions have stored', () => {
  const sha256 = (text: string): string => createHash('sha256').update(text).digest('base64url');
  expect(bodyFingerprint({ token: 'ok', method: 'sandbox' })).toBe(sha256('{"method":"sandbox","token":"ok"}'));
  expect(bodyFingerprint({})).toBe('RBNvo1WzZ4oRRq0W9-hknpT7T8If536DEMBg9hyq_4o');
  expect(bodyFingerprint({ add: -3 })).toBe(sha256('{"add":-3}'));
  const hex = createHash('sha256').update('["admin:alice",null,"order.refund","7","k"]').digest('hex');
  expect(digestOf('admin:alice', null, 'order.refund', '7', 'k')).toBe(hex);
});

/** With the members of all objects the other way round. */
function reversed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(reversed);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(
    Object.entries(value)
      .reverse()
      .map(([name, member]) => [name, reversed(member)]),
  );
}
