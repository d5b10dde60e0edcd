// A bare server that answers 503 to everything as cheaply as Node can: it shows what the attackers alone cost the machine.
import { createServer } from 'node:http';

const server = createServer((_request, response) => {
  response.writeHead(503, { 'content-length': 0 });
  response.end();
});
server.requestTimeout = 15_000;
server.on('clientError', (_error, socket) => socket.destroy());
server.listen(0, '127.0.0.1', () => process.send!((server.address() as { port: number }).port));
process.on('disconnect', () => process.exit(0));
