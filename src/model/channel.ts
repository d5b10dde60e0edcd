/**
 * The channels of the pipe, by name. A channel carries messages of one kind, in order: `sale:<id>` the orders of a sale,
 * `likes:<shard>` the likes of a shard.
 */
export const CHANNEL_PATTERN = /^[a-z]+:\d+$/;

const SALE = 'sale:';
const ID = /^\d+$/;

export function saleChannel(saleId: string): string {
  return SALE + saleId;
}

/** The sale whose orders the channel carries. Null: it carries something else. */
export function saleOf(channel: string): string | null {
  return channel.startsWith(SALE) ? channel.slice(SALE.length) : null;
}

/**
 * The name as it is written into Redis and at brokers, and by which a partition is chosen. A sale stands there as its bare id, as it
 * did before there were other channels: older processes read and write it so.
 */
export function writtenName(channel: string): string {
  return saleOf(channel) ?? channel;
}

/** The channel that is written like this. */
export function channelWritten(name: string): string {
  return ID.test(name) ? SALE + name : name;
}
