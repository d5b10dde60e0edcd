import { createRequire } from 'node:module';
import { TerminalError } from '../base/errors.ts';

const require = createRequire(import.meta.url);

/**
 * A package that only some users of the locks need, loaded when the first of them does. `doorbuster` brings it along;
 * `doorbuster-locks` names it as an optional peer and leaves it to its user. Required and not imported: whoever asks for it
 * (`observeLocks`, `schedule`) does not wait.
 */
export function optionalPackage<T>(name: 'croner' | 'prom-client', neededBy: string): T {
  try {
    return require(name) as T;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code !== 'MODULE_NOT_FOUND' || !message.includes(`'${name}'`)) throw error;
    throw new TerminalError('missing_package', `${neededBy} needs the package ${name}: npm install ${name}`, {
      cause: error,
    });
  }
}
