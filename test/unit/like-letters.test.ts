import { describe, expect, it } from 'vitest';
import type { Actor, AuditLedger } from '../../src/ledger/port.ts';
import { type LikeEvent, likeChannel, shardOf } from '../../src/model/like.ts';
import { LIKE_ENTRIES } from '../../src/model/like-entry.ts';
import { letterName, olderLetter } from '../../src/model/like-letter.ts';
import type { DeadLetter, DeadLetters } from '../../src/pipe/port.ts';
import { compareNewestFirst } from '../../src/pipe/redis-streams/letter.ts';
import { DecideLikeLetters } from '../../src/social/likes/dead-letters.ts';
import { likeEvent } from '../support/streams.ts';

const ADMIN: Actor = { kind: 'admin', name: 'admin', origin: null };
const common = { error: 'too long', attempts: 5, diedAtMs: 0 };

function letterOf(message: LikeEvent): DeadLetter<LikeEvent> {
  return { id: LIKE_ENTRIES.idOf(message), channel: likeChannel(shardOf(message.subject)), message, ...common };
}

/** Of an entry that nobody can read. */
function oddLetter(shard: number, name: string): DeadLetter<LikeEvent> {
  const channel = likeChannel(shard);
  return { id: name, channel, message: LIKE_ENTRIES.unreadable(channel, name, 1, ''), ...common };
}

function decide(all: DeadLetter<LikeEvent>[]) {
  const done: string[] = [];
  const find = (id: string) => all.find((letter) => letter.id === id) ?? null;
  const letters: DeadLetters<LikeEvent> = {
    list: async (limit, before) =>
      all
        .filter(({ id }) => before === null || compareNewestFirst(before, id) < 0)
        .sort((one, other) => compareNewestFirst(one.id, other.id))
        .slice(0, limit),
    get: async (id) => find(id),
    idsIn: async (channel) => all.filter((letter) => letter.channel === channel).map(({ id }) => id),
    retry: async () => true,
    drop: async (id) => all.splice(all.indexOf(find(id)!), 1).length === 1,
  };
  const likes = {
    olderArrived: async ({ n }: LikeEvent) => void done.push(`waited before ${n}`),
    giveUp: async ({ n }: LikeEvent) => void done.push(`gave up ${n}`),
    reopen: async (shard: number) => void done.push(`opened ${shard}`),
  };
  const ledger = { note: async () => void done.push('noted') } as Partial<AuditLedger> as AuditLedger;
  const auditIds = { next: async () => '1' } as never;
  return { done, letters: new DecideLikeLetters(letters, { likes, ledger, auditIds, watched: (work) => work }) };
}

describe('dead letters of likes', () => {
  it('an entry that nobody can read opens its shard anew when it is the last of its shard, however many others have', async () => {
    const others = Array.from({ length: 1500 }, (_, at) => letterOf(likeEvent(at + 1, { subject: 'post:2' })));
    const shard = (shardOf('post:2') + 1) % 8;
    const { letters, done } = decide([...others, oddLetter(shard, 'entry-1-1'), oddLetter(shard, 'entry-1-2')]);
    expect(await letters.end('like-entry-1-1', ADMIN)).toBe(true);
    expect(done).toEqual(['noted']);
    expect(await letters.end('like-entry-1-2', ADMIN)).toBe(true);
    expect(done).toEqual(['noted', 'noted', `opened ${shard}`]);
    expect(await letters.end('like-entry-1-2', ADMIN)).toBe(false);
  });

  it('of two letters of a pair the older has to be decided first', async () => {
    const [older, newer] = [likeEvent(7, { user: 'ann' }), likeEvent(9, { user: 'ann', liked: false })].map(
      letterOf,
    ) as [DeadLetter<LikeEvent>, DeadLetter<LikeEvent>];
    const nameOf = ({ id, channel }: DeadLetter<LikeEvent>) => letterName(id, channel);
    const { letters, done } = decide([newer, older]);
    expect(await letters.end(nameOf(newer), ADMIN)).toEqual({ older: nameOf(older) });
    expect(done, 'nothing is changed, and nothing noted').toEqual(['waited before 9']);
    expect(await letters.end(nameOf(older), ADMIN)).toBe(true);
    expect(await letters.end(nameOf(newer), ADMIN)).toBe(true);
    expect(done.slice(1)).toEqual(['waited before 7', 'noted', 'gave up 7', 'waited before 9', 'noted', 'gave up 9']);
  });

  it('an older letter is one of the same pair and epoch with a smaller number; the oldest is named', () => {
    const event = likeEvent(9, { subject: 'post:12', user: 'ann-1', epoch: 3 });
    const idOf = (over: Partial<LikeEvent>) => LIKE_ENTRIES.idOf({ ...event, ...over });
    const others = [
      { n: 9 },
      { n: 10 },
      { n: 7, epoch: 2 },
      { n: 7, epoch: 4 },
      { n: 7, user: 'ann' },
      { n: 7, user: '1' },
      { n: 7, subject: 'post:1' as const },
      { n: 7, subject: 'comment:12' as const },
    ].map(idOf);
    expect(olderLetter(event, ['entry-1-1', 'foreign-1', ...others])).toBeNull();
    expect(olderLetter(event, [])).toBeNull();
    const older = [8, 2, 5].map((n) => idOf({ n, atMs: 99 - n }));
    expect(olderLetter(event, [...others, ...older])).toBe(older[1]);
  });
});
