import { type StartOptions, startServer, type TestServer } from './server.ts';

/** A server that takes a busy test machine for what it is, and not for an overload of the shop. */
export function startCalmServer(options: StartOptions = {}): Promise<TestServer> {
  return startServer({ ...options, env: { EVENT_LOOP_DELAY_MAX_MS: '60000', ...options.env } });
}
