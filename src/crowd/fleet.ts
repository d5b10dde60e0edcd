import { type Caller, type CallOptions, Client, type Reply } from './client.ts';

/** The processes of one shop, each behind an address of its own. */
export class Fleet {
  readonly clients: readonly Client[];

  /** Any of them may have to take everybody, when the others are gone: each may open all the connections. */
  constructor(urls: readonly URL[], connections: number) {
    this.clients = urls.map((url) => new Client(url, connections));
  }

  /** The address number `at`, counted round and round. */
  client(at: number): Client {
    return this.clients[at % this.clients.length]!;
  }

  door(at = 0): Door {
    return new Door(this, at);
  }

  /** Cuts whatever is still open. */
  close(): void {
    for (const client of this.clients) client.close();
  }
}

/** A way into the shop that keeps to one address until the connection is lost, and then takes the next. */
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
    // Only the first of several calls that failed together moves on, or they would go round to where they came from.
    if (!reply.ok && this.#at === at) this.#at++;
    return reply;
  }
}
