/**
 * Where a user stands in the filters (lua/_filter.lua): 8 hexadecimal digits that choose the block, then 8 characters from `0` to `O`, each
 * of which chooses one of the 32 bits of a word. All processes of a shop must compute the same, or a filter would forget users: a
 * change needs a new format (src/model/formats.ts).
 *
 * Not a secret: somebody who chooses names that collide makes Redis ask the ledger more often, and nothing else.
 */
export function userHash(user: string): string {
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
  const c = mixed((a + ((b << 15) | (b >>> 17))) | 0);
  return (
    BYTES[a >>> 24]! +
    BYTES[(a >>> 16) & 255]! +
    BYTES[(a >>> 8) & 255]! +
    BYTES[a & 255]! +
    BITS[b >>> 22]! +
    BITS[(b >>> 12) & 1023]! +
    BITS[(b >>> 2) & 1023]! +
    BITS[c >>> 22]!
  );
}

function mixed(hash: number): number {
  let h = hash ^ (hash >>> 16);
  h = Math.imul(h, 0x85ebca6b);
  h ^= h >>> 13;
  h = Math.imul(h, 0xc2b2ae35);
  return h ^ (h >>> 16);
}

const BYTES = Array.from({ length: 256 }, (_, byte) => byte.toString(16).toUpperCase().padStart(2, '0'));
const FIRST = '0'.charCodeAt(0);
const BITS = Array.from({ length: 1024 }, (_, two) => String.fromCharCode(FIRST + (two >> 5), FIRST + (two & 31)));
