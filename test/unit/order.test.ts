import { describe, expect, it } from 'vitest';
import { orderFingerprint } from '../../src/model/order.ts';

describe('the fingerprint of an order', () => {
  it('of a counted item stays as keys were stored with it', () => {
    expect(orderFingerprint('voucher-100', 2)).toBe('voucher-100 x2');
    expect(orderFingerprint('voucher-100', 2, {})).toBe('voucher-100 x2');
    expect(orderFingerprint('voucher-100', 2, { together: undefined, seats: undefined })).toBe('voucher-100 x2');
  });

  it('covers the seats, whatever their order', () => {
    expect(orderFingerprint('stalls', 3, { seats: [10, 9, 100] })).toBe('stalls s9.10.100');
    expect(orderFingerprint('stalls', 3, { seats: [100, 10, 9] })).toBe('stalls s9.10.100');
  });

  it('covers together', () => {
    expect(orderFingerprint('stalls', 2, { together: true })).toBe('stalls x2 together');
    expect(orderFingerprint('stalls', 2, { together: false })).toBe('stalls x2');
  });

  it('is another one for another request', () => {
    const texts = ['stalls', 'stalls-x'].flatMap((code) => [
      ...[1, 12].flatMap((quantity) => [false, true].map((together) => orderFingerprint(code, quantity, { together }))),
      ...[[1], [2], [12], [1, 2], [1, 2, 12]].map((seats) => orderFingerprint(code, seats.length, { seats })),
    ]);
    expect(new Set(texts).size).toBe(texts.length);
  });

  it('fits the column of every database', () => {
    const seats = Array.from({ length: 100 }, (_, index) => 99_999 - index);
    expect(orderFingerprint('x'.repeat(64), 100, { seats }).length).toBeLessThan(1024);
  });
});
