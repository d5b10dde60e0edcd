import { backOffMs } from '../../base/back-off.ts';
import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { each } from '../../base/sweep.ts';
import { pause } from '../../base/timers.ts';
import type { LikeLedger } from '../../ledger/port.ts';
import { ALL_SHARDS, LIKE_SHARDS } from '../../model/like.ts';
import type { LikeStore } from './redis/store.ts';

const RETRY_MS_MIN = 50;
const RETRY_MS_MAX = 2000;

export interface LeaveDependencies {
  readonly runtime: Runtime;
  readonly store: Pick<LikeStore, 'leave'>;
  readonly ledger: Pick<LikeLedger, 'likeShard'>;
}

/**
 * For a process that lets the ledger decide likes, after it has said so there: processes that still let Redis decide must not go on. Each
 * of them finds its shards shut, looks at the ledger, and is barred (shards.ts). Retries while Redis or the ledger is out, until the signal.
 */
export async function leaveToLedger(on: LeaveDependencies, signal: AbortSignal): Promise<void> {
  const { runtime, store, ledger } = on;
  const left = new Set(ALL_SHARDS);
  const leave = async (shard: number): Promise<void> => {
    const { epoch, mode } = await ledger.likeShard(shard);
    // Another process has been told otherwise since: it opens the shard.
    if (mode === 'direct') await store.leave(shard, epoch);
    left.delete(shard);
  };
  for (let failures = 0; left.size > 0 && !signal.aborted; failures++) {
    try {
      await each([...left], LIKE_SHARDS, leave, signal);
    } catch (error) {
      if (failures === 0) runtime.log.warn({ reason: messageOf(error) }, 'likes in Redis cannot be shut yet');
      await pause(runtime.timers, backOffMs(failures + 1, RETRY_MS_MIN, RETRY_MS_MAX), signal);
    }
  }
}
