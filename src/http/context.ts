import type { Runtime } from '../base/runtime.ts';
import { sizeOf } from '../contract/size.ts';
import type { Readiness, Shop } from '../engine/shop.ts';
import type { Auth } from './auth.ts';
import type { BuyerLimits } from './buyer-limits.ts';
import type { Overload } from './overload.ts';
import type { PasswordLimits } from './password-limits.ts';
import type { EventStreams } from './sse.ts';

/** The largest body, unless the route allows more or less. */
export const BODY_BYTES_MAX = 64 * 1024;
const BODY_BYTES_MIN = 4 * 1024;
/** For layout: blanks and line feeds. */
const LAYOUT_BYTES = 1024;

/**
 * A body limit for a route that many call: the power of two that the longest valid body fits into, however it is escaped. Parsing 64
 * KiB of unknown fields takes milliseconds, whoever sends them.
 */
export function bodyBytesMax(schema: object): number {
  const bytes = sizeOf(schema).bytes + LAYOUT_BYTES;
  let max = BODY_BYTES_MIN;
  while (max < bytes && max < BODY_BYTES_MAX) max *= 2;
  return max;
}

/** Gives the routes their shop. `get` throws a RetryableError while the shop is not open (yet). */
export interface ShopSource {
  get(): Shop;
  readiness(): Readiness;
  /** True once the shop drains: requests in flight finish, new ones are refused. */
  closing(): boolean;
  /** Total milliseconds for which commits have blocked the event loop. */
  blockedMs(): number;
}

export interface HttpOptions {
  authSecrets: string[];
  adminKeys: { name: string; key: string }[];
  /** `iss` and `aud` that a buyer's token must have; null: not checked. */
  issuer: string | null;
  audience: string | null;
  /** Refuse a token without `exp`: it would stay valid for ever. */
  requireExp: boolean;
  /** Demo: anybody gets a token, signed with a secret that is used for nothing else. */
  demo: { secret: string; hosts: readonly string[] } | null;
  /** People may register and sign in: their tokens are accepted. */
  accounts: boolean;
  /** Orders per buyer and second. */
  rateLimitBuyer: number;
  /** Payments and cancellations per buyer and second; as many posts, comments and likes. */
  rateLimitBuyerWrites: number;
  /** Reads, per buyer and second. */
  rateLimitBuyerReads: number;
  /** Orders that were placed, per buyer in 24 hours, whatever became of them. */
  ordersPerDay: number;
  /** Posts, comments and edits per buyer in 24 hours, and the characters of all of them. */
  postsPerDay: number;
  writingCharsPerDay: number;
  /** Requests per address and second; null: off. */
  rateLimitAddress: number | null;
  corsOrigins: string[];
  /** Open event streams of sales; the same number again for orders. */
  sseMax: number;
  ssePerAddressMax: number;
  connectionsMax: number;
  connectionsPerAddressMax: number;
  requestWithinMs: number;
  metricsPublic: boolean;
  inFlightMax: number;
  eventLoopDelayMsMax: number;
  /** Secrets for webhooks of providers without secrets of their own. If empty, those webhooks are refused. */
  paymentSecrets: string[];
  /** Secrets by provider name. */
  providerSecrets: Record<string, string[]>;
}

export const HTTP_DEFAULTS: HttpOptions = {
  authSecrets: [],
  adminKeys: [],
  issuer: null,
  audience: null,
  requireExp: false,
  demo: null,
  accounts: false,
  rateLimitBuyer: 20,
  rateLimitBuyerWrites: 10,
  rateLimitBuyerReads: 50,
  ordersPerDay: 2000,
  postsPerDay: 1000,
  writingCharsPerDay: 1_000_000,
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
  passwordLimits: PasswordLimits;
}
