import { type LikeEvent, shardOfChannel } from './like.ts';

/**
 * The names that operators give to dead letters of likes, in paths. The pipe's own id of such a letter contains the liker's name, with any
 * characters; of one that could be read, time, epoch and number within its shard say the same.
 */
const BEGIN = 'like-';
const NUMBERED = /^(\d+)-(\d+)-(\d+)-/;

export function letterName(id: string, channel: string | null): string {
  const [, atMs, epoch, n] = NUMBERED.exec(id) ?? [];
  if (n === undefined || channel === null) return BEGIN + id;
  return `${BEGIN}${atMs}-${epoch}-${n}-${shardOfChannel(channel)}`;
}

/** Null: it names no letter of a like. `id`: the pipe's. `above`: above the pipe's ids of the few letters that may be meant. */
export function letterNamed(name: string): { readonly id: string } | { readonly above: string } | null {
  if (!name.startsWith(BEGIN)) return null;
  const id = name.slice(BEGIN.length);
  const [, atMs, epoch, n] = NUMBERED.exec(id) ?? [];
  return n === undefined ? { id } : { above: `${atMs}-${epoch}-${BigInt(n) + 1n}` };
}

/**
 * Of these ids of letters of one shard the oldest that is of the same pair and epoch as the event, and older than it; null: there is none.
 * A letter of another epoch has no effect any more.
 */
export function olderLetter({ subject, user, epoch, n }: LikeEvent, ids: readonly string[]): string | null {
  let oldest: { readonly id: string; readonly n: number } | null = null;
  for (const id of ids) {
    const found = NUMBERED.exec(id);
    if (found === null || Number(found[2]) !== epoch || id.slice(found[0].length) !== `${subject}-${user}`) continue;
    const number = Number(found[3]);
    if (number < (oldest?.n ?? n)) oldest = { id, n: number };
  }
  return oldest?.id ?? null;
}

/** When the like of this letter was decided; null: nobody can read that. */
export function letterTimeMs(id: string): number | null {
  const [, atMs] = NUMBERED.exec(id) ?? [];
  return atMs === undefined ? null : Number(atMs);
}

/** Whether a dead letter's message is a like, and not what stands for one that nobody can read. */
export function isReadable({ user }: LikeEvent): boolean {
  return user !== '';
}
