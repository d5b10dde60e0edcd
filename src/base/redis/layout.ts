/** The keys of one epoch of a sale. */
export interface EpochKeys {
  readonly items: string;
  readonly holds: string;
  readonly keys: string;
  readonly house: string;
  /** The seats of all seated items, one string. */
  readonly seats: string;
  /** The last changes of seats, a list. */
  readonly changes: string;
  readonly stream: string;
}

/** The pipe's keys of a channel; all share a hash tag, so that one script may touch them in a cluster. */
export interface ChannelKeys {
  /** The prefix of the names of an epoch's keys: `<epoch>:stream` and so on follow. */
  readonly begin: string;
  /** A hash whose field `epoch` is the epoch in force. */
  readonly head: string;
  readonly epochs: string;
  readonly retry: string;
  readonly dead: string;
  readonly decided: string;
}

/** The keys of a sale, of which the pipe uses some. Its head is the gate. */
export interface SaleKeys extends ChannelKeys {
  readonly gate: string;
  readonly emptied: string;
  of(epoch: number | string): EpochKeys;
}

/** Where the channels of one kind stand. */
export interface ChannelPlaces {
  /** The Pub/Sub channel that announces new entries: `<name> <epoch>`. */
  readonly wake: string;
  /** Messages of a broker that nobody can read. */
  readonly foreign: string;
  /** The set of the names of the channels that have keys. Null: the channels are always the same. */
  readonly list: string | null;
  /** What all keys of a channel begin with. `name`: as it is written in Redis; for a sale its id. */
  begin(name: string): string;
  keys(name: string): ChannelKeys;
}

/**
 * The names of all keys and channels under a shop's prefix (docs/internals/distributed.md); the locks have names of their own
 * under `locks`. The bucket is 0: hot stock can be split later.
 */
export class Layout {
  readonly #prefix: string;
  /** Ids of sales that have keys. */
  readonly sales: string;
  /** Which shop has this prefix. */
  readonly shop: string;
  /** Which format its keys have, and which processes read it. */
  readonly format: string;
  /** The channel that announces new entries in a sale's stream. */
  readonly wake: string;
  /** The prefix of the locks. */
  readonly locks: string;
  /** What the pipe knows of sales. */
  readonly orders: ChannelPlaces;
  /** The shards of the likes. Apart from the orders, so that no process is woken for what it does not carry. */
  readonly likes: ChannelPlaces;

  constructor(prefix: string) {
    this.#prefix = prefix;
    this.sales = `${prefix}:sales`;
    this.shop = `${prefix}:shop`;
    this.format = `${prefix}:format`;
    this.wake = `${prefix}:wake`;
    this.locks = `${prefix}:lock`;
    this.orders = {
      wake: this.wake,
      foreign: `${prefix}:foreign`,
      list: this.sales,
      begin: (saleId) => this.begin(saleId),
      keys: (saleId) => this.sale(saleId),
    };
    const shard = (name: string): string => `${prefix}:{${name}}:`;
    this.likes = {
      wake: `${prefix}:wake:likes`,
      foreign: `${prefix}:foreign:likes`,
      list: null,
      begin: shard,
      keys: (name) => shardKeys(shard(name)),
    };
  }

  /** What all keys of a sale begin with. */
  begin(saleId: string): string {
    return `${this.#prefix}:{${saleId}:0}:`;
  }

  stream(saleId: string, epoch: number | string): string {
    return `${this.begin(saleId)}${epoch}:stream`;
  }

  /** Where a process hears what became of the orders that it admitted. */
  acks(process: string): string {
    return `${this.#prefix}:acks:${process}`;
  }

  /** By which any process finds an order that was answered as queued. */
  ticket(orderId: string): string {
    return `${this.#prefix}:ticket:${orderId}`;
  }

  sale(saleId: string): SaleKeys {
    const begin = this.begin(saleId);
    const gate = `${begin}gate`;
    return {
      begin,
      gate,
      head: gate,
      epochs: `${begin}epochs`,
      retry: `${begin}retry`,
      dead: `${begin}dead`,
      decided: `${begin}decided`,
      emptied: `${begin}emptied`,
      of: (epoch) => ({
        items: `${begin}${epoch}:items`,
        holds: `${begin}${epoch}:holds`,
        keys: `${begin}${epoch}:keys`,
        house: `${begin}${epoch}:house`,
        seats: `${begin}${epoch}:seats`,
        changes: `${begin}${epoch}:changes`,
        stream: this.stream(saleId, epoch),
      }),
    };
  }

  /** The name of a key that never exists, on the node of this sale's keys; null: on any node. */
  probe(saleId: string | null): string {
    return saleId === null ? `${this.#prefix}:probe` : `${this.begin(saleId)}probe`;
  }
}

function shardKeys(begin: string): ChannelKeys {
  return {
    begin,
    head: `${begin}head`,
    epochs: `${begin}epochs`,
    retry: `${begin}retry`,
    dead: `${begin}dead`,
    decided: `${begin}decided`,
  };
}

/** A key belongs to its buyer. Names hold no control characters, so that a line feed separates. */
export function keyName(buyer: string, key: string): string {
  return `${buyer}\n${key}`;
}
