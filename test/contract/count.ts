import { afterAll, beforeEach } from 'vitest';

/** Call it inside a contract suite: it prints at the end how many of its tests ran on this adapter. */
export function countTests(contract: string, adapter: string): void {
  let ran = 0;
  beforeEach(() => {
    ran++;
  });
  afterAll(() => console.log(`contract of the ${contract} × ${adapter}: ${ran} tests`));
}
