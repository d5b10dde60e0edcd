// The attackers' process. It is told whom to attack (or null), and says then what came of the attack before.
import { Attack, type AttackerCounts, type Target } from './attacker.ts';
import { ATTACKERS } from './attackers.ts';

export interface AttackOrder {
  target: Target | null;
  /** Names of the attackers to take; none: all. */
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
  // The first act of each is now.
  const done = chosen.map(() => 0);
  timer = setInterval(() => {
    const seconds = (performance.now() - startedMs) / 1000;
    for (const [at, attacker] of chosen.entries()) {
      const due = Math.floor(seconds * attacker.perSecond) + 1;
      // What a late tick has missed comes now: the offered rate stays what it is.
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
