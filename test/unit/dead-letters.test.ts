import { describe, expect, it } from 'vitest';
import { composeId, ID_EPOCH_MS } from '../../src/base/ids.ts';
import { LIKE_SHARDS, type LikeEvent, likeChannel, shardOf } from '../../src/model/like.ts';
import { LIKE_ENTRIES } from '../../src/model/like-entry.ts';
import { letterName, letterNamed } from '../../src/model/like-letter.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { ORDER_ENTRIES } from '../../src/model/stream-entry.ts';
import type { DeadLetter, DeadLetters } from '../../src/pipe/port.ts';
import { compareNewestFirst } from '../../src/pipe/redis-streams/letter.ts';
import { DeadLetterList } from '../../src/views/dead-letters.ts';
import { likeEvent, orderMessage } from '../support/streams.ts';

/** Letters as the pipe lists them. */
function lettersOf<M>(all: readonly DeadLetter<M>[]): DeadLetters<M> {
  const sorted = all.toSorted((one, other) => compareNewestFirst(one.id, other.id));
  const list = async (limit: number, before: string | null) =>
    sorted.filter(({ id }) => before === null || compareNewestFirst(before, id) < 0).slice(0, limit);
  return { list } as Partial<DeadLetters<M>> as DeadLetters<M>;
}

const common = { error: 'too long', attempts: 5, diedAtMs: 0 };
const SECONDS = 50_000_000;

function orderLetter(second: number, sequence: number): DeadLetter<OrderMessage> {
  const id = composeId(SECONDS + second, sequence);
  return { id, channel: 'sale:7', message: orderMessage(id), ...common };
}

function likeLetter(second: number, over: Partial<LikeEvent> = {}): DeadLetter<LikeEvent> {
  const message = likeEvent(1, { atMs: ID_EPOCH_MS + (SECONDS + second) * 1000 + 500, ...over });
  return { id: LIKE_ENTRIES.idOf(message), channel: likeChannel(shardOf(message.subject)), message, ...common };
}

const unreadable = {
  order: {
    ...common,
    id: 'entry-1-0',
    channel: 'sale:7',
    message: ORDER_ENTRIES.unreadable('sale:7', 'entry-1-0', 1, ''),
  },
  like: {
    ...common,
    id: 'entry-1-0',
    channel: 'likes:3',
    message: LIKE_ENTRIES.unreadable('likes:3', 'entry-1-0', 1, ''),
  },
};

describe('the list of dead letters', () => {
  const orders = [orderLetter(1, 1), orderLetter(3, 2), orderLetter(3, 3), unreadable.order];
  const likes = [
    likeLetter(0, { user: '键 /~?#' }),
    likeLetter(3, { user: 'x'.repeat(128) }),
    likeLetter(3, { user: 'y', subject: 'comment:9' }),
    likeLetter(4, { liked: false }),
    unreadable.like,
  ];
  const list = new DeadLetterList(lettersOf(orders), lettersOf(likes));

  it('has orders and likes, newest first, and what nobody can read last', async () => {
    const { data, nextCursor } = await list.page(50, null);
    expect(nextCursor).toBeNull();
    expect(data.map(({ kind, buyer }) => `${kind} ${buyer.slice(0, 3)}`)).toEqual([
      'like u1',
      'like xxx',
      'like y',
      'order b',
      'order b',
      'order b',
      'like 键 /',
      'order ',
      'like ',
    ]);
    expect(data[0]).toMatchObject({ subject: 'post:1', liked: false, attempts: 5 });
    expect(data.at(-1)).toMatchObject({ kind: 'like', id: 'like-entry-1-0', subject: null });
    for (const { id } of data) expect(id).toMatch(/^[0-9A-Za-z._-]{1,100}$/);
    expect(new Set(data.map(({ id }) => id)).size).toBe(data.length);
  });

  it.each([1, 2, 3, 8, 9, 10])('is the same in pages of %i', async (limit) => {
    const { data: all } = await list.page(50, null);
    const found: unknown[] = [];
    let cursor: string | null = null;
    do {
      const page: Awaited<ReturnType<typeof list.page>> = await list.page(limit, cursor);
      expect(page.data.length).toBeGreaterThan(0);
      found.push(...page.data);
      cursor = page.nextCursor;
      if (cursor !== null) expect(cursor).toMatch(/^[0-9A-Za-z._~-]{1,1500}$/);
    } while (cursor !== null);
    expect(found).toEqual(all);
  });

  it('has only what there can be', async () => {
    expect(await new DeadLetterList(null, null).page(5, null)).toEqual({ data: [], nextCursor: null });
    const some = new DeadLetterList(lettersOf(orders), null);
    const { data, nextCursor } = await some.page(1, null);
    // As it was before likes had letters.
    expect(nextCursor).toBe(data[0]!.id);
  });
});

describe('the name of a like’s letter', () => {
  it('finds it among those of the same time and number', () => {
    const { id } = likeLetter(3, { user: 'ann' });
    const name = letterName(id, 'likes:5');
    expect(name).toMatch(/^like-\d+-1-1-5$/);
    const named = letterNamed(name);
    expect(named).toHaveProperty('above');
    const { above } = named as { above: string };
    expect(compareNewestFirst(above, id), 'below').toBeLessThan(0);
    const next = LIKE_ENTRIES.idOf(likeEvent(2, { atMs: Number(/\d+/.exec(id)![0]) }));
    expect(compareNewestFirst(above, next), 'not below').toBeGreaterThan(0);
  });

  it('is none of an order’s, and that of an unreadable one is its entry’s', () => {
    expect(letterNamed('12345')).toBeNull();
    expect(letterNamed('entry-1-0')).toBeNull();
    expect(letterNamed('like-entry-1-0')).toEqual({ id: 'entry-1-0' });
    expect(letterName('foreign-17', null)).toBe('like-foreign-17');
    expect(letterNamed('like-foreign-17')).toEqual({ id: 'foreign-17' });
    expect(LIKE_SHARDS).toBeLessThanOrEqual(16);
  });
});
