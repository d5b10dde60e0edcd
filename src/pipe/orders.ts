import { saleChannel } from '../model/channel.ts';
import type { OrderMessage } from '../model/order.ts';
import { ORDER_ENTRIES } from '../model/stream-entry.ts';
import type { Channels } from './channels.ts';

const CHANNEL = /^sale:\d+$/;

/** Admitted orders: a channel for each sale. The gate bounds them (PIPE_MAX); in one process the requests in flight do. */
export const ORDERS: Channels<OrderMessage> = {
  kind: 'orders',
  codec: ORDER_ENTRIES,
  names: null,
  bound: Infinity,
  has: (channel) => CHANNEL.test(channel),
  channelOf: ({ saleId }) => saleChannel(saleId),
  places: (layout) => layout.orders,
};
