import { type Logger, pino } from 'pino';
import { beforeEach, describe, expect, it } from 'vitest';
import { boundedLog } from '../../src/base/bounded-log.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { type ManualRuntime, manualRuntime } from '../contract/manual.ts';

describe('a log that a caller cannot fill', () => {
  let lines: { level: number; msg: string; more?: number }[];
  let log: Logger;
  let runtime: ManualRuntime;
  let bounded: Logger;

  beforeEach(() => {
    lines = [];
    log = pino({ level: 'debug', base: null }, { write: (line: string) => void lines.push(JSON.parse(line)) });
    runtime = manualRuntime();
    bounded = boundedLog(log, runtime.clock, runtime.timers);
  });

  it('10 lines of one kind in a second, then their number (P10)', async () => {
    for (let n = 0; n < 1_244; n++) bounded.error({ err: new Error('x'), n }, 'a request failed');
    expect(lines).toHaveLength(10);
    await runtime.timers.advance(1_000);
    expect(lines).toHaveLength(11);
    expect(lines[10]).toMatchObject({ level: 50, msg: 'a request failed … 1234 more', more: 1_234 });
    await runtime.timers.advance(5_000);
    expect(lines).toHaveLength(11);
    bounded.error('a request failed');
    expect(lines).toHaveLength(12);
  });

  it('exactly 10 lines are written as 10 lines, without a summary', async () => {
    for (let n = 0; n < 10; n++) bounded.warn('full');
    expect(runtime.timers.pending).toBe(0);
    await runtime.timers.advance(1_000);
    expect(lines).toHaveLength(10);
    bounded.warn('full');
    expect(lines).toHaveLength(11);
  });

  it('other kinds, other levels and debug go on', () => {
    for (let n = 0; n < 100; n++) bounded.error('one');
    bounded.error('two');
    bounded.warn('one');
    for (let n = 0; n < 30; n++) bounded.debug('each');
    expect(lines).toHaveLength(10 + 2 + 30);
  });

  it('a text that changes with every line is bounded as well', async () => {
    for (let n = 0; n < 5_000; n++) bounded.info(`caller ${n}`);
    expect(lines.length).toBeLessThanOrEqual(510);
    await runtime.timers.advance(1_000);
    expect(lines.at(-1)!.msg).toMatch(/^other lines … \d+ more$/);
  });

  it('a child keeps its bindings and is bounded with its parent', () => {
    const child = bounded.child({ reqId: 'r1' });
    for (let n = 0; n < 6; n++) child.error('a request failed');
    for (let n = 0; n < 6; n++) bounded.error('a request failed');
    expect(lines).toHaveLength(10);
    expect(lines[0]).toMatchObject({ reqId: 'r1' });
  });

  it('every runtime has one', () => {
    const { log: ours } = systemRuntime(log);
    for (let n = 0; n < 50; n++) ours.warn('all connections are taken');
    expect(lines).toHaveLength(10);
    expect(ours.isLevelEnabled('debug')).toBe(true);
  });
});
