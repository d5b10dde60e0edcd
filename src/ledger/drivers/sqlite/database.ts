import type * as sqlite from 'node:sqlite';

// Not imported: on a Node that lacks the module an import fails before base/node-version.ts can say what is wrong.
export const { DatabaseSync } = process.getBuiltinModule('node:sqlite');
export type DatabaseSync = sqlite.DatabaseSync;
