import { afterAll, beforeAll, describe } from 'vitest';
import { countTests } from './count.ts';
import { Ground, type LocksWorld } from './locks-ground.ts';
import { latchContract, multiContract, onceContract, readWriteContract, semaphoreContract } from './locks-kinds.ts';
import { fairContract, mutexContract, reentryContract } from './locks-mutex.ts';
import { argumentsContract, closeContract, sightContract, tokenContract } from './locks-sight.ts';

export type { LocksWorld } from './locks-ground.ts';

/**
 * What `createLocks` promises, wherever the locks live. Every backend passes all of it. The tests have names of their own
 * and run side by side: what each waits for is time, not work.
 */
export function locksContract(name: string, makeWorld: () => Promise<LocksWorld>): void {
  describe.concurrent(`locks contract: ${name}`, () => {
    countTests('locks', name);
    const ground = new Ground();

    beforeAll(async () => ground.set(await makeWorld()));
    afterAll(() => ground.clear());

    mutexContract(ground);
    reentryContract(ground);
    fairContract(ground);
    readWriteContract(ground);
    semaphoreContract(ground);
    latchContract(ground);
    multiContract(ground);
    onceContract(ground);
    tokenContract(ground);
    sightContract(ground);
    closeContract(ground);
    argumentsContract(ground);
  });
}
