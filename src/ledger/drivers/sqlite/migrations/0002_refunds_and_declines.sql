-- Refunds of a part of the money, and payments that providers declined.

-- How much of it is back with the buyer. P6: never more than came.
ALTER TABLE payments ADD COLUMN refunded INTEGER NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND amount);
-- The newest attempt of an order, however many there are. A payment that works is never in it: paying costs nothing more.
CREATE INDEX payments_ended ON payments (order_id, id) WHERE pays = 0 AND state <> 'open';

-- Refunds of a part of a payment: asked for by the shop (committed before the provider is called), or told by a provider
-- that cannot say how much is back in all. What a provider says in all stands in payments.refunded alone.
CREATE TABLE refunds (
  id         INTEGER PRIMARY KEY,
  attempt_id INTEGER NOT NULL,
  order_id   INTEGER NOT NULL,
  amount     INTEGER NOT NULL CHECK (amount > 0),
  -- What was back when it was asked for: with this one it is at least the sum.
  back_before INTEGER NOT NULL,
  currency   TEXT    NOT NULL,
  state      TEXT    NOT NULL CHECK (state IN ('asked', 'done', 'void')),
  -- What it is known by when it is asked for or told again: a digest of the Idempotency-Key or of the news.
  made_with  TEXT,
  -- The provider's own name for it.
  reference  TEXT,
  error      TEXT,
  actor      TEXT    NOT NULL,
  origin     TEXT,
  next_at    INTEGER,
  tries      INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  -- P6: what was promised is not forgotten.
  CHECK ((state = 'asked') = (next_at IS NOT NULL))
) STRICT;
CREATE INDEX refunds_made ON refunds (attempt_id, made_with);
-- One at a time: what is left of the money is known before the next one is asked for.
CREATE UNIQUE INDEX refunds_asked ON refunds (attempt_id) WHERE state = 'asked';
CREATE INDEX refunds_due ON refunds (next_at) WHERE next_at IS NOT NULL;

-- Payments that a provider declined, of the last 24 hours: whoever tries cards is stopped by their number.
CREATE TABLE declines (
  attempt_id INTEGER PRIMARY KEY,
  order_id   INTEGER NOT NULL,
  buyer      TEXT    NOT NULL,
  at         INTEGER NOT NULL,
  -- 1: an admin has lifted it from the buyer; it still counts for its order.
  lifted     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX declines_buyer ON declines (buyer, at);

ALTER TABLE sandbox_intents ADD COLUMN refunded INTEGER NOT NULL DEFAULT 0;
CREATE TABLE sandbox_refunds (
  refund_id TEXT    PRIMARY KEY,
  intent_id INTEGER NOT NULL,
  amount    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
