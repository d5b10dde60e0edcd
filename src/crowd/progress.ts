import type { Runtime } from '../base/runtime.ts';
import { grouped } from './words.ts';

/** The progress of a crowd. */
export interface Tally {
  /** What it is doing: getting tokens, ordering, waiting for the orders that were answered 202, or liking. */
  stage: 'tokens' | 'orders' | 'queued' | 'likes';
  done: number;
  of: number;
  sold: number;
  refused: number;
  /** Orders answered 202 that are not decided yet. */
  queued: number;
  /** Orders answered 202 that ended rejected. */
  rejected: number;
  /** Likes that were made or taken back. */
  changed: number;
  requests: number;
}

export function newTally(of: number): Tally {
  return { stage: 'tokens', done: 0, of, sold: 0, refused: 0, queued: 0, rejected: 0, changed: 0, requests: 0 };
}

export interface Screen {
  isTTY?: boolean;
  columns?: number;
  write(text: string): unknown;
}

const BAR_EVERY_MS = 100;
const LINE_EVERY_MS = 1_000;
const BAR_WIDTH = 24;

/** Draws a bar on a terminal, or a line per second anywhere else. The returned function ends it. */
export function showProgress(screen: Screen, tally: () => Tally, { timers, clock }: Runtime): () => void {
  const tty = screen.isTTY === true;
  let lastMs = clock.monotonic();
  let lastRequests = 0;
  let perSecond = 0;
  const draw = (): void => {
    const now = tally();
    const nowMs = clock.monotonic();
    // Averaged over a second; otherwise the figure would flicker.
    if (nowMs - lastMs >= LINE_EVERY_MS) {
      perSecond = Math.round(((now.requests - lastRequests) / (nowMs - lastMs)) * 1000);
      lastMs = nowMs;
      lastRequests = now.requests;
    }
    const words = wordsOf(now, perSecond);
    if (!tty) screen.write(`${words}\n`);
    else screen.write(`\r\x1b[K${`${bar(now)} ${words}`.slice(0, (screen.columns || 80) - 1)}`);
  };
  const cancel = timers.every(tty ? BAR_EVERY_MS : LINE_EVERY_MS, draw);
  return () => {
    cancel();
    if (tty) screen.write('\r\x1b[K');
  };
}

function bar({ done, of }: Tally): string {
  const filled = of === 0 ? 0 : Math.floor((done / of) * BAR_WIDTH);
  return `[${'█'.repeat(filled)}${'░'.repeat(BAR_WIDTH - filled)}]`;
}

function wordsOf(tally: Tally, perSecond: number): string {
  const { stage, done, of, sold, refused, queued, rejected, changed } = tally;
  const far = `${grouped(done)} of ${grouped(of)}`;
  const rate = perSecond > 0 ? `, ${grouped(perSecond)} requests/s` : '';
  if (stage === 'tokens') return `${far} tokens`;
  if (stage === 'likes') return `${far} likers: ${grouped(changed)} changes${rate}`;
  const later = rejected > 0 ? `, ${grouped(rejected)} rejected later` : '';
  if (stage === 'queued') return `${far} queued orders decided: ${grouped(sold)} sold${later}`;
  const waiting = queued > 0 ? `, ${grouped(queued)} queued` : '';
  return `${far} buyers: ${grouped(sold)} sold${waiting}${later}, ${grouped(refused)} refusals${rate}`;
}
