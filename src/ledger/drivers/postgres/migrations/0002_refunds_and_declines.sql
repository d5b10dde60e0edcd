-- Refunds of a part of the money, and payments that providers declined.

-- How much of it is back with the buyer. P6: never more than came.
ALTER TABLE payments ADD COLUMN refunded BIGINT NOT NULL DEFAULT 0,
  ADD CONSTRAINT payments_refunded CHECK (refunded BETWEEN 0 AND amount);
-- The newest attempt of an order, however many there are. A payment that works is never in it: paying costs nothing more.
CREATE INDEX payments_ended ON payments (order_id, id) WHERE pays = 0 AND state <> 'open';

-- Refunds of a part of a payment: asked for by the shop (committed before the provider is called), or told by a provider
-- that cannot say how much is back in all. What a provider says in all stands in payments.refunded alone.
CREATE TABLE refunds (
  id         BIGINT NOT NULL PRIMARY KEY,
  attempt_id BIGINT NOT NULL,
  order_id   BIGINT NOT NULL,
  amount     BIGINT NOT NULL,
  -- What was back when it was asked for: with this one it is at least the sum.
  back_before BIGINT NOT NULL,
  next_at    BIGINT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  tries      INT    NOT NULL,
  currency   TEXT   COLLATE "C" NOT NULL,
  state      TEXT   COLLATE "C" NOT NULL,
  -- What it is known by when it is asked for or told again: a digest of the Idempotency-Key or of the news.
  made_with  TEXT   COLLATE "C",
  -- The provider's own name for it.
  reference  TEXT   COLLATE "C",
  error      TEXT,
  actor      TEXT   NOT NULL,
  origin     TEXT,
  CONSTRAINT refunds_state CHECK (state IN ('asked', 'done', 'void') AND amount > 0),
  -- P6: what was promised is not forgotten.
  CONSTRAINT refunds_next CHECK ((state = 'asked') = (next_at IS NOT NULL))
);
CREATE INDEX refunds_made ON refunds (attempt_id, made_with);
-- One at a time: what is left of the money is known before the next one is asked for.
CREATE UNIQUE INDEX refunds_asked ON refunds (attempt_id) WHERE state = 'asked';
CREATE INDEX refunds_due ON refunds (next_at) WHERE next_at IS NOT NULL;

-- Payments that a provider declined, of the last 24 hours: whoever tries cards is stopped by their number.
CREATE TABLE declines (
  attempt_id BIGINT   NOT NULL PRIMARY KEY,
  order_id   BIGINT   NOT NULL,
  "at"       BIGINT   NOT NULL,
  -- 1: an admin has lifted it from the buyer; it still counts for its order.
  lifted     SMALLINT NOT NULL DEFAULT 0,
  buyer      TEXT     COLLATE "C" NOT NULL
);
CREATE INDEX declines_buyer ON declines (buyer, "at");

ALTER TABLE sandbox_intents ADD COLUMN refunded BIGINT NOT NULL DEFAULT 0;
CREATE TABLE sandbox_refunds (
  refund_id TEXT   COLLATE "C" NOT NULL PRIMARY KEY,
  intent_id BIGINT NOT NULL,
  amount    BIGINT NOT NULL
);
