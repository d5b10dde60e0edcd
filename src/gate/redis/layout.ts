/** The keys of one epoch of a sale. */
export interface EpochKeys {
  readonly items: string;
  readonly holds: string;
  readonly keys: string;
  readonly house: string;
  readonly stream: string;
}

/** The keys of a sale; all share a hash tag, so that one script may touch them in a cluster. */
export interface SaleKeys {
  /** The prefix of the names of an epoch's keys: `<epoch>:items` and so on follow. */
  readonly begin: string;
  readonly gate: string;
  readonly epochs: string;
  readonly retry: string;
  readonly dead: string;
  readonly decided: string;
  readonly emptied: string;
  of(epoch: number | string): EpochKeys;
}

/** Where a gate's keys are (docs/internals/distributed.md). The bucket is 0: hot stock can be split later. */
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

  constructor(prefix: string) {
    this.#prefix = prefix;
    this.sales = `${prefix}:sales`;
    this.shop = `${prefix}:shop`;
    this.format = `${prefix}:format`;
    this.wake = `${prefix}:wake`;
  }

  sale(saleId: string): SaleKeys {
    const begin = `${this.#prefix}:{${saleId}:0}:`;
    return {
      begin,
      gate: `${begin}gate`,
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
        stream: `${begin}${epoch}:stream`,
      }),
    };
  }

  /** The name of a key that never exists, on the node of this sale's keys; null: on any node. */
  probe(saleId: string | null): string {
    return saleId === null ? `${this.#prefix}:probe` : `${this.#prefix}:{${saleId}:0}:probe`;
  }
}

/** A key belongs to its buyer. Names hold no control characters, so that a line feed separates. */
export function keyName(buyer: string, key: string): string {
  return `${buyer}\n${key}`;
}
