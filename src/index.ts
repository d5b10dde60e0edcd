/**
 * Doorbuster as a library: the server's engine in your process.
 *
 *     const shop = await createDoorbuster({ data: './data' });
 *     const placed = await shop.orders.place({ sale, buyer: 'alice', item: 'voucher', key: 'a1' });
 *     if (placed.ok) console.log(placed.order.id); else console.log(placed.code);
 *     await shop.close();
 */
import './base/node-version.ts';

export { DoorbusterError, RetryableError, TerminalError } from './base/errors.ts';
export type { Logger } from './base/logger.ts';
export type { Readiness } from './engine/shop.ts';
export {
  createDoorbuster,
  type Doorbuster,
  type DoorbusterOptions,
  type Ended,
  type ItemPatchInput,
  type NewItemInput,
  type NewSaleInput,
  type OrderRefusal,
  type Paid,
  type Placed,
  type PlaceInput,
  type SaleDeleteResult,
  type SalePatchInput,
  type SaleResult,
} from './library/doorbuster.ts';
export type { MoveResult, Seats, SeatsResult } from './library/seats.ts';
export type {
  CommentResult,
  DeleteResult,
  LikeResult,
  LikeSubject,
  PostResult,
  SocialLibrary,
} from './library/social.ts';
export type { Finding } from './model/finding.ts';
export type { Money } from './model/money.ts';
export type { SeatRowDefinition } from './model/seat-map.ts';
export type {
  CaptureRequest,
  CaptureResult,
  PaymentProvider,
  ProviderState,
  RefundRequest,
} from './payments/port.ts';
export type { SaleEvent } from './views/board.ts';
export type { ShopEvents } from './views/events.ts';
export type { Consistency, Item, Order, Sale } from './views/present.ts';
export type { Comment, LikedBy, LikedSubject, Likes, Person, Post } from './views/present-social.ts';
export type { SeatsChanged, SeatsEvent, SeatsSnapshot } from './views/seats.ts';
