import type { SeatRevision } from '../gate/port.ts';

/**
 * The id of an event of a sale's stream, which a client sends back as Last-Event-ID. It says how far the client has come in both of
 * the things that the stream tells: `epoch.rev` for counts and state (board.ts), and after a slash `epoch.n` for seats (seats.ts).
 * Every event carries both, so that whichever was the last, nothing is missed and little is repeated. A sale without seats has only
 * the first.
 */
export interface Positions {
  readonly counts: string | null;
  /** Null: none, or it cannot be read: the client gets all seats. */
  readonly seats: SeatRevision | null;
}

export function positionOf(counts: string, seats: string | null): string {
  return seats === null ? counts : `${counts}/${seats}`;
}

export function positionsOf(lastEventId: string | null): Positions {
  if (lastEventId === null) return { counts: null, seats: null };
  const slash = lastEventId.indexOf('/');
  if (slash < 0) return { counts: lastEventId, seats: null };
  return { counts: lastEventId.slice(0, slash), seats: parseRevision(lastEventId.slice(slash + 1)) };
}

export function revisionText({ epoch, n }: SeatRevision): string {
  return `${epoch}.${n}`;
}

export function parseRevision(text: string): SeatRevision | null {
  const [, epoch, n] = /^([0-9]{1,15})\.([0-9]{1,15})$/.exec(text) ?? [];
  return epoch === undefined ? null : { epoch: Number(epoch), n: Number(n) };
}
