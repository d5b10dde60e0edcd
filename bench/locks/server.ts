import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { adopt, temporaryFolder } from '../support.ts';

export interface Counters {
  /** Calls of each command so far, those made by scripts too. */
  calls: Map<string, number>;
  /** CPU time so far, in seconds. */
  cpuS: number;
}

/** A Redis of the benchmark's own, without persistence, and a connection to ask it for its counters. */
export class Server {
  readonly url: string;
  readonly #socket: Socket;

  private constructor(port: number, socket: Socket) {
    this.url = `redis://127.0.0.1:${port}`;
    this.#socket = socket;
  }

  static async start(): Promise<Server> {
    const port = await freePort();
    const options = ['--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'];
    const child = adopt(spawn('redis-server', options, { cwd: temporaryFolder(), stdio: 'ignore' }));
    let gone: string | null = null;
    child.on('error', (error) => {
      gone = `redis-server does not start (is it installed?): ${error.message}`;
    });
    child.on('exit', (code) => {
      gone ??= `redis-server ended with ${code}`;
    });
    for (let attempt = 0; attempt < 100; attempt++) {
      if (gone !== null) throw new Error(gone);
      const socket = connect(port, '127.0.0.1').setNoDelay(true);
      try {
        await once(socket, 'connect');
        return new Server(port, socket);
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
    throw new Error('redis-server does not listen');
  }

  async clear(): Promise<void> {
    await this.#ask('FLUSHALL');
    await this.#ask('CONFIG RESETSTAT');
  }

  async counters(): Promise<Counters> {
    const info = await this.#ask('INFO everything');
    const calls = new Map<string, number>();
    for (const [, command, count] of info.matchAll(/^cmdstat_(\S+?):calls=(\d+)/gm)) {
      if (command !== 'info' && !command!.startsWith('config')) calls.set(command!, Number(count));
    }
    const cpu = (field: string): number => Number(new RegExp(`^${field}:(\\S+)`, 'm').exec(info)![1]);
    return { calls, cpuS: cpu('used_cpu_user') + cpu('used_cpu_sys') };
  }

  /** One command in its inline form; enough of the protocol for a status and a bulk. */
  async #ask(command: string): Promise<string> {
    return new Promise((resolve, reject) => {
      let answer = '';
      const onData = (chunk: Buffer): void => {
        answer += chunk.toString('latin1');
        const head = /^(.)(.*?)\r\n/.exec(answer);
        if (head === null) return;
        const bulk = head[1] === '$';
        if (bulk && answer.length < head[0].length + Number(head[2]) + 2) return;
        this.#socket.off('data', onData).off('close', onClose);
        if (head[1] === '-') reject(new Error(`${command}: ${head[2]}`));
        else resolve(bulk ? answer.slice(head[0].length) : head[2]!);
      };
      const onClose = (): void => reject(new Error('redis-server is gone'));
      this.#socket.on('data', onData).on('close', onClose);
      this.#socket.write(`${command}\r\n`);
    });
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  return port;
}
