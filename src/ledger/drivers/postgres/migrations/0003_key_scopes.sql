-- Whose an Idempotency-Key is becomes data: who called, for which buyer, what for. It stood in a path before, which had to be
-- parsed, and which did not say whom an admin had acted for: another buyer's answer could be replayed.

-- Keys of calls, with the answer that a repeat gets (P5). Pruned after 24 hours.
CREATE TABLE call_keys (
  created_at  BIGINT NOT NULL,
  -- 'buyer:ann', 'admin:alice'
  caller      TEXT   COLLATE "C" NOT NULL,
  -- The buyer whom an admin acted for, or nothing.
  acting_for  TEXT   COLLATE "C" NOT NULL,
  operation   TEXT   COLLATE "C" NOT NULL,
  subject     TEXT   COLLATE "C" NOT NULL,
  "key"       TEXT   COLLATE "C" NOT NULL,
  fingerprint TEXT   COLLATE "C" NOT NULL,
  answer      TEXT,
  CONSTRAINT call_keys_pkey PRIMARY KEY (caller, acting_for, operation, subject, "key")
);
CREATE INDEX call_keys_age ON call_keys (created_at);

-- Orders up to this id were placed when a key did not say who used it: all that were admitted before this instant, by a clock
-- that is up to a minute ahead. Some of them may still be in the pipe. An id has the seconds since 2025-01-01 above 32 bits.
CREATE TABLE unscoped_keys (
  one   INT    NOT NULL PRIMARY KEY,
  up_to BIGINT NOT NULL,
  CONSTRAINT unscoped_keys_one CHECK (one = 1)
);
INSERT INTO unscoped_keys (one, up_to)
  SELECT 1, greatest((floor(extract(epoch FROM clock_timestamp()))::bigint - 1735689600 + 60) * 4294967296 + 4294967295,
    (SELECT max(id) FROM orders))
  WHERE EXISTS (SELECT 1 FROM sales);

-- What was bound in the last 24 hours stays bound. By the parts of 'POST /v1/sales', 'POST /v1/sales/1/pause',
-- 'POST /v1/sales/1/items/a/stock', 'POST /v1/orders/1/cancel', 'POST /v1/ops/webhooks' and
-- 'POST /v1/ops/webhooks/deliveries/1/redeliver'.
CREATE TEMPORARY TABLE scopes ON COMMIT DROP AS
  WITH named AS (
    SELECT *, split_part(path, '/', 3) AS kind, split_part(path, '/', 4) AS id, split_part(path, '/', 5) AS verb FROM answers
    WHERE answer IS NOT NULL
  )
  SELECT
    -- Those who changed a sale stand here by their bare name.
    CASE kind WHEN 'sales' THEN 'admin:' || caller ELSE caller END AS caller,
    CASE WHEN kind = 'ops' THEN CASE split_part(path, '/', 5) WHEN '' THEN 'webhook.create' ELSE 'webhook.redeliver' END
      WHEN kind = 'orders' THEN 'order.' || verb WHEN id = '' THEN 'sale.create' WHEN verb = 'items' THEN 'sale.stock'
      ELSE 'sale.' || verb END AS operation,
    CASE WHEN kind = 'ops' THEN split_part(path, '/', 6) WHEN verb = 'items' THEN id || '/' || split_part(path, '/', 6)
      ELSE id END AS subject,
    "key", fingerprint, answer, created_at
  FROM named;

INSERT INTO call_keys (caller, acting_for, operation, subject, "key", fingerprint, answer, created_at)
  SELECT caller, '', operation, subject, "key", fingerprint, answer, created_at FROM scopes;
-- An admin who moved an order may have acted for its buyer and for nobody else: both may have the answer.
INSERT INTO call_keys (caller, acting_for, operation, subject, "key", fingerprint, answer, created_at)
  SELECT s.caller, o.buyer, s.operation, s.subject, s."key", s.fingerprint, s.answer, s.created_at
  FROM scopes s JOIN orders o ON o.id = CASE WHEN s.operation LIKE 'order.%' THEN s.subject::bigint END
  WHERE s.caller LIKE 'admin:%';

DROP TABLE answers;
