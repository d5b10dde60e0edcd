import { statfs } from 'node:fs/promises';
import type { Clock } from '../base/clock.ts';
import { unavailable } from '../base/errors.ts';

/** Space that posts and comments leave to orders: some hundred thousand of them. Less on a disk that has little. */
const RESERVED_BYTES_MAX = 256 * 2 ** 20;
const RESERVED_SHARE = 0.05;
/** One look a second serves all who write. */
const LOOK_AGAIN_MS = 1000;

/** Sizes of a file system, in bytes. */
export interface Space {
  readonly free: number;
  readonly total: number;
}

/**
 * Keeps what people write from filling the disk of the data folder: a full disk stops orders, too. So posts and comments are
 * refused some time before, while orders, payments and everything else go on.
 */
export class RoomForWriting {
  readonly #clock: Clock;
  readonly #look: () => Promise<Space>;
  #looking: Promise<void> | null = null;
  #lookedMs = -Infinity;
  #isEnough = true;

  constructor(clock: Clock, look: () => Promise<Space>) {
    this.#clock = clock;
    this.#look = look;
  }

  /** Throws a RetryableError if there is too little. */
  async mustBeEnough(): Promise<void> {
    if (this.#clock.monotonic() - this.#lookedMs >= LOOK_AGAIN_MS) {
      this.#looking ??= this.#lookNow();
      await this.#looking;
    }
    if (!this.#isEnough) throw unavailable('the disk is nearly full: what is left of it is for orders');
  }

  async #lookNow(): Promise<void> {
    try {
      const { free, total } = await this.#look();
      this.#isEnough = free >= Math.min(RESERVED_BYTES_MAX, total * RESERVED_SHARE);
    } catch {
      // A file system that does not tell: writing to it shows whether there is room.
      this.#isEnough = true;
    } finally {
      this.#lookedMs = this.#clock.monotonic();
      this.#looking = null;
    }
  }
}

/** Of the file system that a folder is in. */
export async function spaceOf(folder: string): Promise<Space> {
  const { bavail, blocks, bsize } = await statfs(folder);
  return { free: bavail * bsize, total: blocks * bsize };
}
