import type { Command } from './command.ts';
export const crowd: Command = {
  name: 'crowd',
  summary: 'send a crowd of buyers and check the promises',
  help: '',
  run: async () => 1,
};
