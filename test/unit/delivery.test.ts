import { describe, expect, it } from 'vitest';
import { RedisUnavailableError } from '../../src/base/redis/link.ts';
import { BatchDelivery, type BatchDeliveryOptions } from '../../src/pipe/redis-streams/delivery.ts';
import { manualRuntime } from '../contract/manual.ts';

describe('an outage of the pipe', () => {
  function world() {
    const runtime = manualRuntime();
    const lines: string[] = [];
    const log = Object.create(runtime.log) as typeof runtime.log;
    log.error = (({ kind }: { kind: string }, text: string) => void lines.push(`${kind}: ${text}`)) as typeof log.error;
    log.info = log.error;
    // Only its log is tested here.
    const delivery = new BatchDelivery({ channels: { kind: 'orders' } } as BatchDeliveryOptions<never>, {
      ...runtime,
      log,
    });
    const out = (): void => delivery.noteOutage(new RedisUnavailableError('no answer to SMEMBERS within 1000 ms'));
    return { runtime, lines, delivery, out };
  }

  it('a single failure on a busy host is not logged, because the next attempt succeeds', async () => {
    const { runtime, lines, delivery, out } = world();
    // Two commands whose answers arrive in the same late turn.
    out();
    out();
    expect(delivery.reason).toBe('no answer to SMEMBERS within 1000 ms');
    await runtime.timers.advance(1000);
    delivery.noteBack();
    await runtime.timers.advance(1000);
    out();
    expect(lines).toEqual([]);
  });

  it('is logged once when the next attempt fails, too, and so is its end', async () => {
    const { runtime, lines, delivery, out } = world();
    for (let tries = 0; tries < 4; tries++) {
      out();
      await runtime.timers.advance(1000);
    }
    expect(lines).toEqual(['orders: the pipe is out']);
    delivery.noteBack();
    delivery.noteBack();
    expect([lines, delivery.reason]).toEqual([['orders: the pipe is out', 'orders: the pipe is back'], null]);
  });
});
