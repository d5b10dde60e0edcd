import { type Caller, type CallOptions, Client, type Reply } from './client.ts';

/** The processes of one shop, each with its own address. */
export class Fleet {
  readonly clients: readonly Client[];

  /** Each client may open all the connections, because one process must serve everybody if the others are down. */
  constructor(urls: readonly URL[], connections: number) {
    this.clients = urls.map((url) => new Client(url, connections));
  }

  /** The client number `at`, modulo their number. */
  client(at: number): Client {
    return this.clients[at % this.clients.length]!;
  }

  door(at = 0): Door {
    return new Door(this, at);
  }

  /** Closes all connections. */
  close(): void {
    for (const client of this.clients) client.close();
  }
}

/** Calls the same address until a connection fails, then the next one. */
export class Door implements Caller {
  readonly #fleet: Fleet;
  #at: number;

  constructor(fleet: Fleet, at: number) {
    this.#fleet = fleet;
    this.#at = at;
  }

  async call(method: string, path: string, options?: CallOptions): Promise<Reply> {
    const at = this.#at;
    const reply = await this.#fleet.client(at).call(method, path, options);
    // Of several calls that fail together only the first moves on; otherwise they could go round to the same address.
    if (!reply.ok && this.#at === at) this.#at++;
    return reply;
  }
}
