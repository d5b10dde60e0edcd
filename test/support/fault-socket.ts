import { connect, type Socket } from 'node:net';

/** A raw connection, to send what no client would send and to see how it ends. */
export interface BareSocket {
  socket: Socket;
  /** Everything received so far. */
  heard(): string;
  /** 'end' if the other side closed the connection normally, 'error' if it was reset. */
  ended: Promise<'end' | 'error'>;
}

export async function bareSocket(url: string, text: string): Promise<BareSocket> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  let heard = '';
  socket.on('data', (chunk) => {
    heard += chunk;
  });
  const ended = new Promise<'end' | 'error'>((resolve) => {
    socket.on('error', () => resolve('error'));
    socket.on('end', () => resolve('end'));
    socket.on('close', () => resolve('end'));
  });
  await new Promise((resolve, reject) => {
    socket.once('connect', resolve);
    socket.once('error', reject);
  });
  socket.write(text);
  return { socket, heard: () => heard, ended };
}
