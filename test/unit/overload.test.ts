import { EventEmitter } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { beforeEach, describe, expect, it } from 'vitest';
import { Overload } from '../../src/http/overload.ts';
import { type ManualRuntime, manualRuntime } from '../contract/manual.ts';

describe('overload', () => {
  let runtime: ManualRuntime;
  let blockedMs: number;
  let overload: Overload;

  beforeEach(() => {
    runtime = manualRuntime();
    blockedMs = 0;
    overload = new Overload(runtime, { inFlightMax: 2, delayMsMax: 100 }, () => blockedMs);
  });

  /** Blocks the event loop for `ms`, then runs its timers. */
  async function busy(ms: number, committing = 0): Promise<void> {
    runtime.clock.advance(ms);
    blockedMs += committing;
    await runtime.timers.advance(0);
  }

  it('a loop that is on time is not overloaded', async () => {
    await runtime.timers.advance(1000);
    expect(overload.delayMs).toBe(0);
    expect(overload.reason).toBeNull();
  });

  it('one late tick is forgiven, several are not, and it ends by itself', async () => {
    await busy(200);
    expect(overload.reason).toBeNull();
    for (let tick = 0; tick < 4; tick++) await busy(250);
    expect(overload.reason).toMatch(/late/);
    await runtime.timers.advance(1000);
    expect(overload.reason).toBeNull();
  });

  it('the time of commits is work and does not count', async () => {
    for (let tick = 0; tick < 20; tick++) await busy(550, 500);
    expect(overload.delayMs).toBe(0);
    expect(overload.reason).toBeNull();
    // The same delay without commits does.
    for (let tick = 0; tick < 20; tick++) await busy(550);
    expect(overload.reason).toMatch(/late/);
  });

  it('commits beside other work do not hide it', async () => {
    for (let tick = 0; tick < 20; tick++) await busy(850, 500);
    expect(overload.reason).toMatch(/late/);
  });

  it('P10: commits excuse a second of a delay and not more', async () => {
    // 50 ms until the tick, 1 000 ms of commits, and as much beside them as is allowed.
    for (let tick = 0; tick < 20; tick++) await busy(1150, 1100);
    expect([overload.delayMs, overload.reason]).toEqual([100, null]);
    for (let tick = 0; tick < 2; tick++) await busy(1151, 1101);
    expect(overload.reason).toMatch(/late/);
    // However long, and although it is nothing but commits.
    for (let tick = 0; tick < 2; tick++) await busy(46_050, 46_000);
    expect(overload.reason).toMatch(/45000 ms late/);
  });

  it('a request is in flight until it is answered, and leaves once', () => {
    const requests = [1, 2, 3].map(() => new EventEmitter() as IncomingMessage);
    for (const request of requests.slice(0, 2)) overload.enter(request);
    expect(overload.reason).toBeNull();
    overload.enter(requests[2]!);
    expect(overload.reason).toMatch(/in flight/);
    // Counted once, however often it is called.
    overload.enter(requests[2]!);
    expect(overload.inFlight).toBe(3);
    overload.answered(requests[0]!);
    expect([overload.inFlight, overload.reason]).toEqual([2, null]);
    // Called twice: answered and then left by its client, or a stream that opens and then closes.
    overload.answered(requests[0]!);
    overload.answered(requests[1]!);
    overload.answered(requests[1]!);
    expect(overload.inFlight).toBe(1);
    // A request that was never counted is not subtracted.
    overload.answered(new EventEmitter() as IncomingMessage);
    expect(overload.inFlight).toBe(1);
  });

  it('a request that is not counted yet is judged as if it were', () => {
    const requests = [1, 2, 3].map(() => new EventEmitter() as IncomingMessage);
    for (const request of requests.slice(0, 2)) overload.enter(request);
    expect(overload.reasonFor(requests[1]!)).toBeNull();
    expect(overload.reasonFor(requests[2]!)).toMatch(/in flight/);
  });

  it('stops measuring when it is closed', () => {
    overload.close();
    expect(runtime.timers.pending).toBe(0);
  });
});
