import { describe, expect, it } from 'vitest';
import { RedisUnavailableError } from '../../src/base/redis/link.ts';
import { Handover, type HandoverOptions } from '../../src/pipe/redis-streams/handover.ts';
import { manualRuntime } from '../contract/manual.ts';

describe('an outage of the pipe', () => {
  function world() {
    const runtime = manualRuntime();
    const lines: string[] = [];
    const log = Object.create(runtime.log) as typeof runtime.log;
    log.error = ((_: unknown, text: string) => void lines.push(text)) as typeof log.error;
    log.info = ((text: string) => void lines.push(text)) as typeof log.info;
    // Only its log is tested here.
    const handover = new Handover({} as HandoverOptions, { ...runtime, log });
    const out = (): void => handover.noteOutage(new RedisUnavailableError('no answer to SMEMBERS within 1000 ms'));
    return { runtime, lines, handover, out };
  }

  it('a single failure on a busy host is not logged, because the next attempt succeeds', async () => {
    const { runtime, lines, handover, out } = world();
    // Two commands whose answers arrive in the same late turn.
    out();
    out();
    expect(handover.reason).toBe('no answer to SMEMBERS within 1000 ms');
    await runtime.timers.advance(1000);
    handover.noteBack();
    await runtime.timers.advance(1000);
    out();
    expect(lines).toEqual([]);
  });

  it('is logged once when the next attempt fails, too, and so is its end', async () => {
    const { runtime, lines, handover, out } = world();
    for (let tries = 0; tries < 4; tries++) {
      out();
      await runtime.timers.advance(1000);
    }
    expect(lines).toEqual(['the pipe is out']);
    handover.noteBack();
    handover.noteBack();
    expect([lines, handover.reason]).toEqual([['the pipe is out', 'the pipe is back'], null]);
  });
});
