import { systemRuntime } from '../../src/base/runtime.ts';
import { MemoryPipe } from '../../src/pipe/memory.ts';
import { settled } from './manual.ts';
import { pipeContract } from './pipe.ts';

pipeContract('memory', async () => {
  const pipe = new MemoryPipe(systemRuntime());
  const idle = async (): Promise<void> => {
    for (let turn = 0; turn < 4; turn++) await settled();
  };
  return { pipe, push: (message) => pipe.push(message), batchMax: 512, idle };
});
