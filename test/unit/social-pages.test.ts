import { beforeEach, describe, expect, it } from 'vitest';
import type { Page } from '../../src/ledger/port.ts';
import type { ShownPost, SocialReader } from '../../src/social/port.ts';
import { SocialPages } from '../../src/views/social-pages.ts';
import { type ManualRuntime, manualRuntime, settled, T0 } from '../contract/manual.ts';

const PAGE_CHARS_MAX = 256 * 1024;

describe('pages of posts', () => {
  let runtime: ManualRuntime;
  let pages: SocialPages;
  let posts: ShownPost[];
  let read: number;

  beforeEach(() => {
    runtime = manualRuntime();
    read = 0;
    const list = async (_: object, { limit, before }: Page): Promise<ShownPost[]> => {
      const found = posts.filter(({ id }) => before === null || Number(id) < Number(before)).slice(0, limit);
      read += found.length;
      return found;
    };
    pages = new SocialPages(runtime, { posts: { list } } as unknown as SocialReader);
  });

  function postsOf(...lengths: number[]): ShownPost[] {
    const counts = { likes: 0, comments: 0, version: 1, createdAtMs: T0, updatedAtMs: T0, deleted: false, liked: null };
    const shown = { count: 0, exact: true, asOfMs: T0 };
    return lengths.map((length, at) => ({
      ...{ ...counts, shown, id: String(1000 - at), author: 'ann', authorName: null },
      ...{ title: '', content: 'x'.repeat(length) },
    }));
  }

  async function page(limit: number, before: string | null = null): Promise<{ ids: string[]; next: string | null }> {
    const asked = pages.publicPosts({}, { limit, before });
    let isOver = false;
    void asked.then(() => {
      isOver = true;
    });
    await settled();
    while (!isOver) {
      await runtime.timers.turn();
      await runtime.timers.advance(10);
    }
    const { data, nextCursor } = JSON.parse(String((await asked).body));
    return { ids: data.map(({ id }: { id: string }) => id), next: nextCursor };
  }

  async function walked(limit: number): Promise<string[]> {
    const all: string[] = [];
    for (let next: string | null = null; ; ) {
      const { ids, next: after }: { ids: string[]; next: string | null } = await page(limit, next);
      all.push(...ids);
      if (after === null) return all;
      next = after;
    }
  }

  it('P10: of long ones no more are read than fill a page, and a few', async () => {
    posts = postsOf(...Array(300).fill(10_000));
    const { ids, next } = await page(200);
    expect(ids).toHaveLength(Math.ceil(PAGE_CHARS_MAX / 10_000));
    expect(next).toBe(ids.at(-1));
    expect(read).toBeLessThanOrEqual(32);
    read = 0;
    // Short ones before them do not change that.
    posts = postsOf(...Array(32).fill(1), ...Array(300).fill(10_000));
    expect((await page(200, '1001')).ids).toHaveLength(32 + 27);
    expect(read).toBeLessThanOrEqual(32 + 32);
  });

  it('has each of them once, whatever ends a page: its length, its size, or both with the last row', async () => {
    const full = PAGE_CHARS_MAX / 32;
    for (const lengths of [
      Array(199).fill(1),
      Array(200).fill(1),
      Array(201).fill(1),
      Array(450).fill(1),
      Array(32).fill(full),
      Array(33).fill(full),
      Array(64).fill(full),
      [...Array(31).fill(1), PAGE_CHARS_MAX, PAGE_CHARS_MAX, 1],
      [],
    ]) {
      posts = postsOf(...lengths);
      runtime.clock.advance(1000);
      expect(await walked(200)).toEqual(posts.map(({ id }) => id));
    }
  });
});
