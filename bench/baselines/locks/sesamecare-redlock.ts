import { load } from './packages.ts';
import { type RedlockClass, redlockAdapters } from './redlock.ts';

export const adapters = redlockAdapters('@sesamecare-oss/redlock', async () => {
  return (await load<{ Redlock: RedlockClass }>('@sesamecare-oss/redlock')).Redlock;
});
