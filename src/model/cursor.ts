import type { CommentRecord } from './social.ts';

/** Cursors of lists that are not sorted by id alone. Clients get them as `nextCursor` and send them back. */

export function commentCursor({ likes, id }: Pick<CommentRecord, 'likes' | 'id'>): string {
  return `${likes}.${id}`;
}

export function commentPlace(cursor: string): { likes: number; id: string } {
  const [likes, id] = halves(cursor);
  return { likes: Number(likes), id };
}

/** `key`: a user, or the id of what is liked. */
export function likeCursor(atMs: number, key: string): string {
  return `${atMs}.${key}`;
}

export function likePlace(cursor: string): { atMs: number; key: string } {
  const [atMs, key] = halves(cursor);
  return { atMs: Number(atMs), key };
}

/** At the first point: a user's name may contain others. */
function halves(cursor: string): [string, string] {
  const point = cursor.indexOf('.');
  return [cursor.slice(0, point), cursor.slice(point + 1)];
}
