import { MemoryGate } from '../../src/gate/memory.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { gateContract } from './gate.ts';
import { gateSeatsContract } from './gate-seats.ts';
import { manualRuntime } from './manual.ts';

for (const contract of [gateContract, gateSeatsContract]) {
  contract('memory', async () => {
    const runtime = manualRuntime();
    const emitted: OrderMessage[] = [];
    const gate = new MemoryGate(runtime, (message) => emitted.push(message));
    return { gate, clock: runtime.clock, emitted: async () => emitted };
  });
}
