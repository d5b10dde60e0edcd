import { connect, createServer, type Socket } from 'node:net';

/** The environment variable with the path of the desk's socket; setup.ts opens it. */
export const DESK_VARIABLE = 'DOORBUSTER_TEST_DESK';

/** The servers that all files of a test run share. Redis starts in 50 ms, so each file has its own. */
export type SharedServer = 'mariadb' | 'postgres' | 'rabbitmq' | 'kafka';

/** Some systems truncate longer socket paths. */
const PATH_BYTES_MAX = 100;

type Answer = { url: string } | { error: string };

/** The desk hands out the URLs of shared servers. It starts each of them once, on the first request. */
export interface Desk {
  /** Stops answering. The servers are ended by the process that started them. */
  close(): void;
}

/** Null if no socket can be opened at this path. */
export async function openDesk(
  path: string,
  servers: Record<SharedServer, () => Promise<{ readonly url: string }>>,
): Promise<Desk | null> {
  if (Buffer.byteLength(path) > PATH_BYTES_MAX) return null;
  const started = new Map<string, Promise<Answer>>();
  const start = async (name: string): Promise<Answer> => {
    const server = servers[name as SharedServer];
    if (server === undefined) return { error: `the desk has no ${name}` };
    try {
      return { url: (await server()).url };
    } catch (error) {
      return { error: String(error) };
    }
  };
  const desk = createServer((socket) => {
    socket.on('error', () => socket.destroy());
    socket.once('data', async (name) => {
      const asked = String(name);
      if (!started.has(asked)) started.set(asked, start(asked));
      socket.end(JSON.stringify(await started.get(asked)));
    });
  });
  await new Promise<void>((resolve, reject) => {
    desk.once('error', reject);
    desk.listen(path, resolve);
  });
  // The socket must not keep the run alive.
  desk.unref();
  return { close: () => void desk.close() };
}

/** The URL of a shared server, or null if there is no desk: then start your own. */
export async function askDesk(name: SharedServer): Promise<string | null> {
  const path = process.env[DESK_VARIABLE];
  if (!path) return null;
  const said = await conversation(connect(path), name);
  const answer = JSON.parse(said) as Answer;
  if ('error' in answer) throw new Error(answer.error);
  return answer.url;
}

function conversation(socket: Socket, words: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let said = '';
    socket.on('error', reject);
    socket.on('data', (chunk) => {
      said += chunk;
    });
    socket.on('end', () => resolve(said));
    socket.write(words);
  });
}
