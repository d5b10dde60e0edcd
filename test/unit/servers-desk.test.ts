import { join } from 'node:path';
import { afterAll, expect, it, vi } from 'vitest';
import { cleanUp, temporaryFolder } from '../support/server.ts';
import { askDesk, DESK_VARIABLE, openDesk, type SharedServer } from '../support/servers/desk.ts';

afterAll(async () => {
  vi.unstubAllEnvs();
  await cleanUp();
});

const none = (): Promise<never> => Promise.reject(new Error('should not be started'));

it('the desk starts a server when the first asks for it, and once; whoever comes gets the same', async () => {
  const path = join(temporaryFolder(), 'desk');
  let starts = 0;
  const mariadb = async (): Promise<{ url: string }> => ({ url: `mysql://${++starts}` });
  const desk = await openDesk(path, { mariadb, postgres: none, rabbitmq: none, kafka: none });
  vi.stubEnv(DESK_VARIABLE, path);
  expect(starts).toBe(0);
  const asked = Array.from({ length: 20 }, () => askDesk('mariadb'));
  expect(new Set(await Promise.all(asked))).toEqual(new Set(['mysql://1']));
  desk!.close();
});

it('why a server does not start is told to everybody who asks', async () => {
  const path = join(temporaryFolder(), 'desk');
  const desk = await openDesk(path, { mariadb: none, postgres: none, rabbitmq: none, kafka: none });
  vi.stubEnv(DESK_VARIABLE, path);
  for (let times = 0; times < 2; times++) await expect(askDesk('kafka')).rejects.toThrow('should not be started');
  await expect(askDesk('oracle' as SharedServer)).rejects.toThrow('no oracle');
  desk!.close();
});

it('without a desk a test starts a server of its own', async () => {
  vi.stubEnv(DESK_VARIABLE, '');
  expect(await askDesk('kafka')).toBeNull();
  const path = join(temporaryFolder(), 'x'.repeat(100));
  expect(await openDesk(path, { mariadb: none, postgres: none, rabbitmq: none, kafka: none })).toBeNull();
});
