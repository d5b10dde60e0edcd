import { describe, expect, it } from 'vitest';
import { SpinWait } from '../../src/base/redis/spin-wait.ts';
import { systemTimers, type Timers } from '../../src/base/timers.ts';

/** A link whose answers come after so many turns; turns are run by hand. */
class Link {
  readonly #turns: (() => void)[] = [];
  readonly #timers: Timers = { ...systemTimers, nextTurn: (run) => this.#turns.push(run) };
  readonly spinWait = new SpinWait(this.#timers, () => !this.waiting);
  waiting = false;
  #sentAt = 0;

  /** Sends something that is answered after `turns` turns; how many turns it stayed awake for it. */
  ask(turns: number): number {
    this.waiting = true;
    this.#sentAt = this.spinWait.sent();
    let awake = 0;
    for (; this.#turns.length > 0; awake++) {
      if (awake === turns) this.#answer();
      this.#turns.shift()!();
    }
    if (this.waiting) this.#answer();
    return awake;
  }

  #answer(): void {
    this.waiting = false;
    this.spinWait.answered(this.#sentAt);
  }
}

const NEVER = Number.MAX_SAFE_INTEGER;

describe('SpinWait', () => {
  it('stays awake until the answer is there, and not for longer', () => {
    const link = new Link();
    expect(link.ask(20)).toBe(21);
    expect(link.ask(0)).toBe(1);
  });

  it('falls asleep after 64 turns', () => {
    expect(new Link().ask(NEVER)).toBe(64);
  });

  it('is tried only now and then once it was in vain too often, and again when it is worth it', () => {
    const link = new Link();
    for (let i = 0; i < 8; i++) expect(link.ask(NEVER)).toBe(64);
    const tries = Array.from({ length: 640 }, () => link.ask(NEVER));
    expect(tries.filter((turns) => turns > 0)).toHaveLength(10);
    // Nearer now: the next that is tried finds out.
    while (link.ask(20) === 0);
    expect(link.ask(20)).toBe(21);
  });

  it('notices that it is in vain also where something is always being sent', () => {
    const turns: (() => void)[] = [];
    let awake = 0;
    const spinWait = new SpinWait({ ...systemTimers, nextTurn: (run) => turns.push(run) }, () => false);
    // Something is sent in every tenth turn and answered a hundred turns after.
    const answers: { at: number; sentAt: number }[] = [];
    for (let now = 0; now < 10_000; now++) {
      if (now % 10 === 0) answers.push({ at: now + 100, sentAt: spinWait.sent() });
      if (answers[0]?.at === now) spinWait.answered(answers.shift()!.sentAt);
      if (turns.length > 0) awake++;
      turns.shift()?.();
    }
    // For the first few, and for 64 turns of every 640.
    expect(awake).toBeLessThan(2000);
  });

  it('what is sent meanwhile has its own 64 turns', () => {
    const turns: (() => void)[] = [];
    const spinWait = new SpinWait({ ...systemTimers, nextTurn: (run) => turns.push(run) }, () => false);
    const turn = (times: number): void => {
      for (let i = 0; i < times; i++) turns.shift()?.();
    };
    spinWait.sent();
    turn(60);
    spinWait.sent();
    turn(63);
    expect(turns).toHaveLength(1);
    turn(1);
    expect(turns).toHaveLength(0);
  });
});
