import { once } from 'node:events';
import { connect } from 'node:net';
import { createInterface } from 'node:readline';

/**
 * The commands that clients send to a Redis server, as MONITOR shows them; not those that scripts run inside it.
 *
 * On a socket of its own, since ioredis' `monitor()` fails if a command is shown in the same packet as the answer to MONITOR:
 * it then takes the command for a reply that nobody waits for.
 */
export async function monitorRedis(url: string): Promise<{ commands: string[]; close(): void }> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  await once(socket, 'connect');
  const commands: string[] = [];
  const { promise: watching, resolve, reject } = Promise.withResolvers<void>();
  socket.on('error', reject);
  socket.on('close', () => reject(new Error('Redis closed the connection that monitors it')));
  createInterface({ input: socket }).on('line', (line) => {
    if (line === '+OK') resolve();
    else if (line.startsWith('-')) reject(new Error(line));
    else if (!/^\+[\d.]+ \[\d+ lua\]/.test(line)) commands.push(line);
  });
  socket.write('MONITOR\r\n');
  await watching;
  return { commands, close: () => socket.destroy() };
}
