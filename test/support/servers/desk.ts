import { connect, createServer, type Socket } from 'node:net';

/** Names the socket of the desk to all processes of one test run; setup.ts opens it. */
export const DESK_VARIABLE = 'DOORBUSTER_TEST_DESK';

/** The servers that the files of one test run share. A Redis starts in a twentieth of a second: each file has its own. */
export type SharedServer = 'mariadb' | 'postgres' | 'rabbitmq' | 'kafka';

/** Some systems cut the path of a socket off behind so many bytes. */
const PATH_BYTES_MAX = 100;

type Answer = { url: string } | { error: string };

/** The desk hands out the URLs of servers. It starts each of them once, when the first test file asks for it. */
export interface Desk {
  /** Nobody is answered any more. The servers are ended by whoever has started them. */
  close(): void;
}

/** Null if there can be no socket at this path. */
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
  // The run is over when its tests are.
  desk.unref();
  return { close: () => void desk.close() };
}

/** The URL of a server that all test files share, or null where there is no desk: then one starts a server of one's own. */
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
