import { connect } from 'node:net';

/** The first that a server answers to these bytes, on a connection of their own; an error if there is no answer. */
export function firstAnswer(host: string, port: number, bytes: Uint8Array, withinMs: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, host);
    const settle = (error: Error | null, answer?: Buffer): void => {
      clearTimeout(late);
      socket.destroy();
      if (error) reject(error);
      else resolve(answer!);
    };
    const late = setTimeout(() => settle(new Error(`no answer within ${withinMs} ms`)), withinMs);
    socket.once('connect', () => socket.write(bytes));
    socket.once('data', (answer) => settle(null, answer));
    socket.once('error', settle);
    socket.once('close', () => settle(new Error('closed without an answer')));
  });
}
