// The attackers' process. Each message names a target (or null); the answer is the result of the attack before.
import { Attack, type AttackerCounts, type Target } from './attacker.ts';
import { ATTACKERS } from './attackers.ts';

export interface AttackOrder {
  target: Target | null;
  /** Names of the attackers to use; empty: all. */
  only: string[];
}

export type AttackReport = Record<string, AttackerCounts>;

const TICK_MS = 10;

let attacks: Attack[] = [];
let timer: NodeJS.Timeout | undefined;

function begin(target: Target, only: readonly string[]): void {
  const chosen = ATTACKERS.filter(({ name }) => only.length === 0 || only.includes(name));
  attacks = chosen.map(({ connections }) => new Attack(target, connections));
  const startedMs = performance.now();
  // Each acts at once for the first time.
  const done = chosen.map(() => 0);
  timer = setInterval(() => {
    const seconds = (performance.now() - startedMs) / 1000;
    for (const [at, attacker] of chosen.entries()) {
      const due = Math.floor(seconds * attacker.perSecond) + 1;
      // Catch up after a late tick, to keep the offered rate.
      for (; done[at]! < due; done[at]!++) attacks[at]!.act(attacker);
    }
  }, TICK_MS);
}

function end(only: readonly string[]): AttackReport {
  clearInterval(timer);
  const chosen = ATTACKERS.filter(({ name }) => only.length === 0 || only.includes(name));
  const report = Object.fromEntries(attacks.map(({ counts }, at) => [chosen[at]!.name, structuredClone(counts)]));
  for (const attack of attacks) attack.end();
  attacks = [];
  return report;
}

process.on('message', ({ target, only }: AttackOrder) => {
  const report = end(only);
  if (target !== null) begin(target, only);
  process.send!(report);
});
process.on('disconnect', () => process.exit(0));
process.send!('ready');
