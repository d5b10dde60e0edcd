import type { LikeEvent } from '../../../src/model/like.ts';

/**
 * Bytes of format 1 of likes, and of parcels of format 3, which carry them. Never edited: a change of what is written has a number
 * and a file of its own, and the version that makes it goes on reading these.
 */
const common = { epoch: 7, atMs: 1_700_000_000_000 };

export const LIKE_EVENTS: LikeEvent[] = [
  { ...common, subject: 'post:12', user: 'alice', liked: true, n: 41 },
  { ...common, subject: 'post:12', user: 'bob', liked: false, n: 42 },
  { ...common, subject: 'comment:9', user: '+ 买家', liked: true, n: 43 },
];

const ALONE = ['', '7\n1700000000000', 'l1', 'post:12\n41\n+alice'];

export const likes1 = {
  /** What all keys of shard 3 begin with, of a shop whose prefix is P. */
  begin: 'P:{likes:3}:',
  entries: [ALONE, ['', '7\n1700000000000', 'l1', 'post:12\n42\n-bob', 'l1', 'comment:9\n43\n++ 买家']],
  /** The same, with events of one subject in one field. */
  grouped: ['', '7\n1700000000000', 'l2', 'post:12\n41\n+alice\n42\n-bob', 'l1', 'comment:9\n43\n++ 买家'],
  wake: 'likes:3 7',
  letterId: '1700000000000-7-41-post:12-alice',
  retry: JSON.stringify(['2', '7', ALONE]),
  letter: JSON.stringify({ diedAtMs: 1_700_000_000_000, attempts: 5, error: 'too long', epoch: '7', fields: ALONE }),
  parcel: JSON.stringify([3, 'likes:3', 7, '1700000000000-1', ALONE]),
  probe: '[3,"likes:3",7,"1700000000000-1",null]',
};
