import type { Command } from './command.ts';
export const doctor: Command = {
  name: 'doctor',
  summary: 'check versions, schema, disk and configuration',
  help: '',
  run: async () => 1,
};
