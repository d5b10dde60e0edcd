import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { LIKE_SHARDS, shardOf } from '../../src/model/like.ts';
import { LIKE_ENTRIES } from '../../src/model/like-entry.ts';
import { LIKES } from '../../src/pipe/likes.ts';
import { compareNewestFirst } from '../../src/pipe/redis-streams/letter.ts';
import { likeEntryOf, likeEvent } from '../support/streams.ts';

const { decode, encode, split, idOf } = LIKE_ENTRIES;

const event = fc
  .record({
    n: fc.nat(),
    subject: fc.constantFrom('post:1', 'post:18446744073709551615', 'comment:1'),
    user: fc.string({ unit: fc.constantFrom('a', 'ü', '键', ' ', '+', '-', 'l', '1'), minLength: 1 }),
    liked: fc.boolean(),
  })
  .map(({ n, ...over }) => likeEvent(n, over));

describe('an entry of likes', () => {
  it('is read as it was written; taken apart it is the same events', () => {
    fc.assert(
      fc.property(fc.array(event, { minLength: 1, maxLength: 8 }), (events) => {
        const fields = likeEntryOf(events);
        expect(decode('likes:0', fields)).toEqual(events);
        const { messages, rest } = split(fields);
        expect(rest).toBeNull();
        expect(messages.map(({ id }) => id)).toEqual(events.map(idOf));
        expect(messages.flatMap((each) => decode('likes:0', each.fields))).toEqual(events);
      }),
    );
  });

  const header = ['', '1\n1700000000000'];
  it.each([
    ['no header', ['l1', 'post:1\n1\n+a'], 'no header'],
    ['a header without a time', ['', '1', 'l1', 'post:1\n1\n+a'], '1 parts'],
    ['an epoch that is none', ['', 'x\n1'], '"x" is no number'],
    ['a field that is nothing', [...header, 'what', 'is this'], 'what'],
    ['a field of orders', [...header, 'o1', '1\n1\nf\n1\nb'], '"o1"'],
    ['fewer events than it says', [...header, 'l2', 'post:1\n1\n+a'], '2 likes'],
    ['more events than it says', [...header, 'l1', 'post:1\n1\n+a\n2\n+b'], '1 likes'],
    ['a field without events', [...header, 'l0', 'post:1'], '"l0"'],
    ['what cannot be liked', [...header, 'l1', 'sale:1\n1\n+a'], '"sale:1" cannot be liked'],
    ['a number that is none', [...header, 'l1', 'post:1\n-1\n+a'], '"-1" is no number'],
    ['neither liked nor taken back', [...header, 'l1', 'post:1\n1\nalice'], '"alice"'],
    ['nobody', [...header, 'l1', 'post:1\n1\n+'], '"+"'],
  ])('that no script has written is refused: %s', (_, fields, words) => {
    expect(() => decode('likes:0', fields)).toThrow(words);
  });

  it('what cannot be taken apart is what is left', () => {
    const good = likeEvent(5);
    const odd = ['l9', 'x', 'what', 'is this'];
    const half = ['l2', 'post:3\n6\n+carol\nseven\n+dave'];
    const { messages, rest } = split([...encode(good), ...odd, ...half]);
    const carol = likeEvent(6, { subject: 'post:3', user: 'carol' });
    expect(messages).toEqual([good, carol].map((each) => ({ id: idOf(each), fields: encode(each) })));
    expect(rest).toEqual([...header, ...odd, 'l1', 'post:3\nseven\n+dave']);
    for (const fields of [['what', 'is this'], header]) expect(split(fields)).toEqual({ messages: [], rest: fields });
  });

  it('has one id per event; the later one comes first, whatever its length', () => {
    const events = [
      likeEvent(9),
      likeEvent(10),
      likeEvent(1, { epoch: 2 }),
      likeEvent(1, { epoch: 2, user: 'z' }),
      likeEvent(0, { atMs: 1_700_000_000_001 }),
      likeEvent(0, { atMs: 10_000_000_000_000 }),
    ];
    const ids = ['entry-1-0', ...events.map(idOf)];
    expect(ids.toSorted(compareNewestFirst)).toEqual(ids.toReversed());
  });
});

describe('the shards of likes', () => {
  it('are always the same, and every one has its share', () => {
    expect(['post:1', 'post:2', 'comment:1', 'post:18446744073709551615'].map(shardOf)).toEqual([2, 7, 7, 6]);
    const counts = Array<number>(LIKE_SHARDS).fill(0);
    for (let post = 0; post < 8000; post++) counts[shardOf(`post:${post}`)]!++;
    expect(Math.min(...counts)).toBeGreaterThan(800);
    expect(Math.max(...counts)).toBeLessThan(1200);
  });

  it('are the channels that the pipe looks at', () => {
    expect(LIKES.names).toEqual([0, 1, 2, 3, 4, 5, 6, 7].map((shard) => `likes:${shard}`));
    expect(LIKES.names).toContain(LIKES.channelOf(likeEvent(1)));
    expect(['likes:0', 'likes:12', 'sale:1', 'likes:', 'likes:x'].map((name) => LIKES.has(name))).toEqual([
      ...[true, true, false, false, false],
    ]);
  });
});
