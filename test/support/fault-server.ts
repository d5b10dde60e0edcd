import { type StartOptions, startServer, type TestServer } from './server.ts';

/** A server that does not take a busy test machine for an overload. */
export function startCalmServer(options: StartOptions = {}): Promise<TestServer> {
  return startServer({ ...options, env: { EVENT_LOOP_DELAY_MAX_MS: '60000', ...options.env } });
}
