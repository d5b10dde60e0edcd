import { connect, createServer, type Server, type Socket } from 'node:net';
import { forget, remember } from './clean-up.ts';
import { freePort, HOST } from './process.ts';

export type Direction = 'toServer' | 'toClient';

export interface ProxyCounters {
  /** Connections accepted so far, and those open now. */
  accepted: number;
  open: number;
  /** Bytes passed on. */
  bytesToServer: number;
  bytesToClient: number;
  /** Replies that the server has given and the client did not get. */
  repliesDropped: number;
}

/** What the server says, and what the client had said on that connection since the server spoke last. */
export interface Exchange {
  reply: Buffer;
  request: Buffer;
}

/** A network between a client and a server on this machine that fails on demand. It knows bytes, not messages. */
export interface FaultProxy extends AsyncDisposable {
  host: string;
  port: number;
  /** A copy, as of now. */
  counters(): ProxyCounters;
  /** New connections go to that port of this machine from now on; those that are open stay where they are. */
  target(port: number): void;
  /** Ends all connections at once, on both sides. New ones are accepted. */
  cut(): void;
  /** True: stops listening, so that connecting fails with ECONNREFUSED; open connections stay. */
  refuse(refused: boolean): Promise<void>;
  /** Passes nothing on in either direction, not even the end of a connection; new ones are accepted, and get no data. */
  freeze(): void;
  /** Passes on what was held back, in order. */
  thaw(): void;
  /**
   * Loses replies: the server has executed the command, but the client's connection ends without the reply. A number:
   * the next chunks from the server, on any connection. A function: every chunk for which it returns
   * true. 0 ends it.
   */
  dropReplies(which: number | ((exchange: Exchange) => boolean)): void;
  /**
   * Holds back the next request for which it returns true: the client's connection ends, and the server waits until
   * `passHeld` gives it the request. Resolves when one is held.
   */
  holdRequest(which: (request: Buffer) => boolean): Promise<void>;
  /** Sends the held request to the server, on its original connection; the answer is dropped. */
  passHeld(): void;
  /**
   * Passes on the next request for which it returns true, and ends the client's connection: the server works for
   * nobody, without knowing it. Resolves when that has happened.
   */
  forsake(which: (request: Buffer) => boolean): Promise<void>;
  /** Connections whose request was held back or forsaken and that the server has not ended. */
  heldOpen(): number;
  /** Delays each chunk by `ms` from now on, in one or both directions; 0 ends it. Order is kept. */
  delay(ms: number, direction?: Direction): void;
  close(): Promise<void>;
}

/** One direction of one connection. */
interface Lane {
  from: Socket;
  to: Socket;
  direction: Direction;
  /** A null chunk is the end. */
  queue: { atMs: number; chunk: Buffer | null }[];
  timer: NodeJS.Timeout | null;
}

interface Link {
  lanes: [Lane, Lane];
  request: Buffer[];
}

/**
 * True for the answer to a COMMIT. PostgreSQL's answer names it, and COMMIT is sent together with earlier statements, whose
 * answers may come first. MySQL's answer does not name it, but COMMIT is sent alone.
 */
export function saysCommitted({ request, reply }: Exchange): boolean {
  if (reply.includes('C\0\0\0\x0bCOMMIT\0', 0, 'latin1')) return true;
  return request.subarray(-7).toString('latin1') === '\x03COMMIT';
}

export async function startProxy(firstTarget: number): Promise<FaultProxy> {
  let targetPort = firstTarget;
  const port = await freePort();
  const links = new Set<Link>();
  const delayMs: Record<Direction, number> = { toServer: 0, toClient: 0 };
  const passed: Record<Direction, number> = { toServer: 0, toClient: 0 };
  let accepted = 0;
  let repliesDropped = 0;
  let frozen = false;
  let listener: Server | null = null;
  let isLost: (exchange: Exchange) => boolean = () => false;
  let toHold: { which: (request: Buffer) => boolean; held: () => void; pass: boolean } | null = null;
  let held: { server: Socket; chunk: Buffer }[] = [];

  const open = new Set<Socket>();

  const hold = (link: Link, chunk: Buffer): void => {
    const [{ from: client, to: server }] = link.lanes;
    links.delete(link);
    for (const lane of link.lanes) if (lane.timer) clearTimeout(lane.timer);
    client.removeAllListeners('close');
    server.removeAllListeners();
    server.on('error', () => server.destroy());
    server.on('end', () => server.destroy());
    server.resume();
    client.destroy();
    if (toHold!.pass) server.write(chunk);
    else held.push({ server, chunk });
    open.add(server);
    server.on('close', () => open.delete(server));
    toHold!.held();
    toHold = null;
  };

  const end = (link: Link): void => {
    links.delete(link);
    for (const lane of link.lanes) {
      if (lane.timer) clearTimeout(lane.timer);
      lane.queue = [];
      lane.from.destroy();
    }
  };

  const pump = (lane: Lane): void => {
    if (lane.timer) clearTimeout(lane.timer);
    lane.timer = null;
    while (!frozen && lane.queue.length > 0) {
      const { atMs, chunk } = lane.queue[0]!;
      const waitMs = atMs - performance.now();
      if (waitMs > 0) {
        lane.timer = setTimeout(() => pump(lane), Math.ceil(waitMs));
        return;
      }
      lane.queue.shift();
      if (chunk === null) {
        lane.to.end();
        continue;
      }
      passed[lane.direction] += chunk.length;
      // Backpressure: stop reading from the sender until the receiver has drained.
      if (!lane.to.write(chunk)) lane.from.pause();
    }
  };

  const accept = (client: Socket): void => {
    accepted++;
    const server = connect({ host: HOST, port: targetPort, noDelay: true, allowHalfOpen: true });
    const lanes: [Lane, Lane] = [
      { from: client, to: server, direction: 'toServer', queue: [], timer: null },
      { from: server, to: client, direction: 'toClient', queue: [], timer: null },
    ];
    const link: Link = { lanes, request: [] };
    links.add(link);
    for (const lane of lanes) {
      const put = (chunk: Buffer | null): void => {
        // Never before the previous chunk, even if the delay has become shorter since.
        const atMs = Math.max(performance.now() + delayMs[lane.direction], lane.queue.at(-1)?.atMs ?? 0);
        lane.queue.push({ atMs, chunk });
        pump(lane);
      };
      lane.from.on('data', (chunk) => {
        if (lane.direction === 'toServer') {
          if (toHold?.which(chunk)) {
            hold(link, chunk);
            return;
          }
          link.request.push(chunk);
        } else {
          const lost = isLost({ reply: chunk, request: Buffer.concat(link.request) });
          link.request = [];
          if (lost) {
            repliesDropped++;
            end(link);
            return;
          }
        }
        put(chunk);
      });
      lane.from.on('end', () => put(null));
      lane.to.on('drain', () => {
        if (!frozen) lane.from.resume();
      });
      lane.from.on('error', () => end(link));
      lane.from.on('close', () => {
        // Unless both directions ended in order, end the whole connection.
        if (!lane.from.readableEnded || lane.to.destroyed) end(link);
      });
      if (frozen) lane.from.pause();
    }
  };

  const listen = (): Promise<void> =>
    new Promise((resolve, reject) => {
      listener = createServer({ noDelay: true, allowHalfOpen: true }, accept);
      listener.once('error', reject);
      listener.listen(port, HOST, resolve);
    });
  const stopListening = (): void => {
    listener?.close();
    listener = null;
  };
  const cut = (): void => {
    for (const link of [...links]) end(link);
    held = [];
    for (const server of open) server.destroy();
  };
  const endNow = (): void => {
    stopListening();
    cut();
  };
  const started = { end: async () => endNow(), endNow };
  const close = async (): Promise<void> => {
    forget(started);
    endNow();
  };

  await listen();
  remember(started);
  return {
    host: HOST,
    port,
    counters: () => ({
      accepted,
      open: links.size,
      bytesToServer: passed.toServer,
      bytesToClient: passed.toClient,
      repliesDropped,
    }),
    target: (next) => {
      targetPort = next;
    },
    cut,
    refuse: async (refused) => {
      if (refused) stopListening();
      else if (listener === null) await listen();
    },
    freeze: () => {
      frozen = true;
      for (const { lanes } of links) for (const { from } of lanes) from.pause();
    },
    thaw: () => {
      frozen = false;
      for (const { lanes } of links) {
        for (const lane of lanes) {
          lane.from.resume();
          pump(lane);
        }
      }
    },
    dropReplies: (which) => {
      let left = typeof which === 'number' ? which : 0;
      isLost = typeof which === 'number' ? () => left-- > 0 : which;
    },
    holdRequest: (which) =>
      new Promise((resolve) => {
        toHold = { which, held: resolve, pass: false };
      }),
    forsake: (which) =>
      new Promise((resolve) => {
        toHold = { which, held: resolve, pass: true };
      }),
    passHeld: () => {
      const passed = held;
      held = [];
      for (const { server, chunk } of passed) {
        if (!server.destroyed) server.end(chunk);
      }
    },
    heldOpen: () => open.size,
    delay: (ms, direction) => {
      for (const way of ['toServer', 'toClient'] as const) {
        if (direction === undefined || direction === way) delayMs[way] = ms;
      }
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}
