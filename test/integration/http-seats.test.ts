import { afterAll, beforeAll, describe } from 'vitest';
import { cleanUp, startServer, type TestServer } from '../support/server.ts';
import { seatsOverHttp } from './seats-suite.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startServer();
});
afterAll(cleanUp);

describe('numbered seats, embedded', () => seatsOverHttp(() => ({ a: server, b: server })));
