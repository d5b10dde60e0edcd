import type { Runtime } from '../base/runtime.ts';
import type { Readiness, Shop } from '../engine/shop.ts';
import type { Auth } from './auth.ts';
import type { BuyerLimits } from './buyer-limits.ts';
import type { Overload } from './overload.ts';
import type { EventStreams } from './sse.ts';

/** Of a body, unless its route says more. */
export const BODY_BYTES_MAX = 64 * 1024;

/** Where the routes find the shop. `get` throws a RetryableError while there is none (yet). */
export interface ShopSource {
  get(): Shop;
  readiness(): Readiness;
  /** True from the moment it drains: what is in flight is finished, nothing new is begun. */
  closing(): boolean;
  /** Milliseconds that commits have held the event loop. */
  blockedMs(): number;
}

export interface HttpOptions {
  authSecrets: string[];
  adminKeys: { name: string; key: string }[];
  /** Claims that a buyer's token must have; null: whatever it says. */
  issuer: string | null;
  audience: string | null;
  /** A token without `exp` is refused: it would live for ever. */
  requireExp: boolean;
  /** For trying it out: anybody gets a token, signed with a secret that is good for nothing else. */
  demo: { secret: string; hosts: readonly string[] } | null;
  /** Orders per buyer and second. */
  rateLimitBuyer: number;
  /** Other calls that change something, per buyer and second. */
  rateLimitBuyerWrites: number;
  /** Reads, per buyer and second. */
  rateLimitBuyerReads: number;
  /** Requests per address and second; null: off. */
  rateLimitAddress: number | null;
  corsOrigins: string[];
  /** Event streams of sales, and as many of orders. */
  sseMax: number;
  ssePerAddressMax: number;
  connectionsMax: number;
  connectionsPerAddressMax: number;
  requestWithinMs: number;
  metricsPublic: boolean;
  inFlightMax: number;
  eventLoopDelayMsMax: number;
  /** Secrets of signed webhooks; none: they are all refused. For providers that have none of their own. */
  paymentSecrets: string[];
  /** By providerName. */
  providerSecrets: Record<string, string[]>;
}

export const HTTP_DEFAULTS: HttpOptions = {
  authSecrets: [],
  adminKeys: [],
  issuer: null,
  audience: null,
  requireExp: false,
  demo: null,
  rateLimitBuyer: 20,
  rateLimitBuyerWrites: 10,
  rateLimitBuyerReads: 50,
  rateLimitAddress: null,
  corsOrigins: [],
  sseMax: 1000,
  ssePerAddressMax: 100,
  connectionsMax: 10_000,
  connectionsPerAddressMax: 1000,
  requestWithinMs: 15_000,
  metricsPublic: false,
  inFlightMax: 5000,
  eventLoopDelayMsMax: 250,
  paymentSecrets: [],
  providerSecrets: {},
};

/** What the routes share. */
export interface HttpContext {
  shop: ShopSource;
  options: HttpOptions;
  runtime: Runtime;
  auth: Auth;
  overload: Overload;
  streams: EventStreams;
  buyerLimits: BuyerLimits;
}
