/**
 * A user in the filters (lua/_filter.lua): 36 bits of a hash of the name, as 6 characters from `0` to `o`, the low bits first. All
 * processes of a shop must compute the same, or a filter would forget users: a change needs a new format (src/model/formats.ts).
 *
 * Not a secret: somebody who chooses names that collide makes Redis ask the ledger more often, and nothing else.
 */
export function userMark(user: string): string {
  let a = 0xdeadbeef;
  let b = 0x41c6ce57;
  for (let at = 0; at < user.length; at++) {
    const char = user.charCodeAt(at);
    a = Math.imul(a ^ char, 0x9e3779b1);
    b = Math.imul(b ^ char, 0x5f356495);
  }
  // Names that differ in their last character only must differ in every bit with a chance of one half.
  a = mixed(a ^ Math.imul(b ^ (b >>> 13), 0xc2b2ae35));
  b = mixed(b ^ Math.imul(a ^ (a >>> 16), 0x85ebca6b));
  return TWO[a & 4095]! + TWO[(a >>> 12) & 4095]! + TWO[b & 4095]!;
}

function mixed(hash: number): number {
  let h = hash ^ (hash >>> 16);
  h = Math.imul(h, 0x85ebca6b);
  h ^= h >>> 13;
  h = Math.imul(h, 0xc2b2ae35);
  return h ^ (h >>> 16);
}

const FIRST = '0'.charCodeAt(0);
/** 12 bits as two characters. */
const TWO = Array.from({ length: 4096 }, (_, bits) => String.fromCharCode(FIRST + (bits & 63), FIRST + (bits >> 6)));
