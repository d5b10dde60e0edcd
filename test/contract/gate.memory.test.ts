import { MemoryGate } from '../../src/gate/memory.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { gateContract } from './gate.ts';
import { manualRuntime } from './manual.ts';

gateContract('memory', async () => {
  const runtime = manualRuntime();
  const emitted: OrderMessage[] = [];
  return { gate: new MemoryGate(runtime, (m) => emitted.push(m)), clock: runtime.clock, emitted: async () => emitted };
});
