-- rerunnable
-- Refunds of a part of the money, and payments that providers declined.
--
-- MySQL has no ADD COLUMN IF NOT EXISTS: the statement is chosen by what is there.

-- How much of it is back with the buyer. P6: never more than came. And the way to the newest attempt of an order, however
-- many there are: payments_order would have to be sorted for it (a unique index is not continued by the primary key).
SET @add = IF((SELECT count(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'payments' AND column_name = 'refunded') = 0,
  'ALTER TABLE payments ADD COLUMN refunded BIGINT NOT NULL DEFAULT 0, ADD CONSTRAINT payments_refunded CHECK (refunded BETWEEN 0 AND amount), ADD KEY payments_newest (order_id, id)',
  'DO 0');
PREPARE add_column FROM @add;
EXECUTE add_column;
DEALLOCATE PREPARE add_column;

-- Refunds of a part of a payment: asked for by the shop (committed before the provider is called), or told by a provider
-- that cannot say how much is back in all. What a provider says in all stands in payments.refunded alone.
CREATE TABLE IF NOT EXISTS refunds (
  id         BIGINT         NOT NULL PRIMARY KEY,
  attempt_id BIGINT         NOT NULL,
  order_id   BIGINT         NOT NULL,
  amount     BIGINT         NOT NULL,
  -- What was back when it was asked for: with this one it is at least the sum.
  back_before BIGINT         NOT NULL,
  currency   VARCHAR(8)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  state      VARCHAR(16)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- What it is known by when it is asked for or told again: a digest of the Idempotency-Key or of the news.
  made_with  VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin NULL,
  -- The provider's own name for it.
  reference  VARBINARY(512) NULL,
  error      VARCHAR(500)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  actor      VARCHAR(200)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  origin     VARCHAR(200)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  next_at    BIGINT         NULL,
  tries      INT            NOT NULL,
  created_at BIGINT         NOT NULL,
  updated_at BIGINT         NOT NULL,
  asked      BIGINT         GENERATED ALWAYS AS (CASE WHEN state = 'asked' THEN attempt_id END) VIRTUAL,
  KEY refunds_made (attempt_id, made_with),
  -- One at a time: what is left of the money is known before the next one is asked for.
  UNIQUE KEY refunds_asked (asked),
  KEY refunds_due (next_at),
  CONSTRAINT refunds_state CHECK (state IN ('asked', 'done', 'void') AND amount > 0),
  -- P6: what was promised is not forgotten.
  CONSTRAINT refunds_next CHECK ((state = 'asked') = (next_at IS NOT NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Payments that a provider declined, of the last 24 hours: whoever tries cards is stopped by their number.
CREATE TABLE IF NOT EXISTS declines (
  attempt_id BIGINT         NOT NULL PRIMARY KEY,
  order_id   BIGINT         NOT NULL,
  buyer      VARBINARY(512) NOT NULL,
  "at"       BIGINT         NOT NULL,
  -- 1: an admin has lifted it from the buyer; it still counts for its order.
  lifted     SMALLINT       NOT NULL DEFAULT 0,
  KEY declines_buyer (buyer, "at")
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

SET @add = IF((SELECT count(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'sandbox_intents' AND column_name = 'refunded') = 0,
  'ALTER TABLE sandbox_intents ADD COLUMN refunded BIGINT NOT NULL DEFAULT 0', 'DO 0');
PREPARE add_column FROM @add;
EXECUTE add_column;
DEALLOCATE PREPARE add_column;
CREATE TABLE IF NOT EXISTS sandbox_refunds (
  refund_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  intent_id BIGINT      NOT NULL,
  amount    BIGINT      NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
