-- Whose an Idempotency-Key is becomes data: who called, for which buyer, what for. It stood in a path before, which had to be
-- parsed, and which did not say whom an admin had acted for: another buyer's answer could be replayed.

-- Keys of calls, with the answer that a repeat gets (P5). Pruned after 24 hours.
CREATE TABLE call_keys (
  -- 'buyer:ann', 'admin:alice'
  caller      TEXT    NOT NULL,
  -- The buyer whom an admin acted for, or nothing.
  acting_for  TEXT    NOT NULL,
  operation   TEXT    NOT NULL,
  subject     TEXT    NOT NULL,
  key         TEXT    NOT NULL,
  fingerprint TEXT    NOT NULL,
  answer      TEXT    NOT NULL,
  created_at  INTEGER NOT NULL,
  PRIMARY KEY (caller, acting_for, operation, subject, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX call_keys_age ON call_keys (created_at);

-- Keys of orders (base/idempotency.ts), derived from the orders as claims and buyer_orders are. Pruned after 24 hours by walking
-- the orders (folded.pruned): an index by age would be one more tree that the fold writes in random order.
CREATE TABLE order_keys (
  sale_id     INTEGER NOT NULL,
  buyer       TEXT    NOT NULL,
  key         TEXT    NOT NULL,
  fingerprint TEXT    NOT NULL,
  order_id    INTEGER NOT NULL,
  created_at  INTEGER NOT NULL,
  PRIMARY KEY (sale_id, buyer, key)
) STRICT, WITHOUT ROWID;

-- What was bound in the last 24 hours stays bound.
INSERT INTO order_keys (sale_id, buyer, key, fingerprint, order_id, created_at)
  SELECT o.sale_id, o.buyer, k.key, k.fingerprint, k.order_id, k.created_at
  FROM keys k JOIN orders o ON o.id = k.order_id ORDER BY o.sale_id, o.buyer, k.key;

-- Orders up to this id were placed when a key did not say who used it: all that were admitted before this instant, by a clock
-- that is up to a minute ahead. Some of them may still be in the pipe. An id has the seconds since 2025-01-01 above 32 bits.
CREATE TABLE unscoped_keys (
  one   INTEGER PRIMARY KEY CHECK (one = 1),
  up_to INTEGER NOT NULL
) STRICT;
INSERT INTO unscoped_keys (one, up_to)
  SELECT 1, max((unixepoch() - 1735689600 + 60) * 4294967296 + 4294967295, coalesce((SELECT max(id) FROM orders), 0))
  WHERE EXISTS (SELECT 1 FROM sales);

-- 'POST /v1/sales', 'POST /v1/sales/1/pause', 'POST /v1/sales/1/items/a/stock', 'POST /v1/orders/1/cancel', 'POST /v1/ops/webhooks',
-- 'POST /v1/ops/webhooks/deliveries/1/redeliver'. `rest` is what stands behind the collection.
CREATE TEMP TABLE scopes AS
  WITH parts AS (
    SELECT *, CASE WHEN path LIKE 'POST /v1/sales/%' THEN substr(path, 16) WHEN path LIKE 'POST /v1/orders/%' THEN substr(path, 17)
      WHEN path LIKE 'POST /v1/ops/webhooks/deliveries/%' THEN substr(path, 34) ELSE '' END AS rest
    FROM keys WHERE order_id IS NULL AND answer IS NOT NULL
  ), named AS (
    SELECT *, substr(rest, 1, instr(rest, '/') - 1) AS id, substr(rest, instr(rest, '/') + 1) AS verb FROM parts
  )
  SELECT
    -- Those who changed a sale stand here by their bare name.
    CASE WHEN path LIKE 'POST /v1/sales%' THEN 'admin:' || caller ELSE caller END AS caller,
    CASE WHEN path = 'POST /v1/sales' THEN 'sale.create' WHEN path = 'POST /v1/ops/webhooks' THEN 'webhook.create'
      WHEN path LIKE 'POST /v1/ops/%' THEN 'webhook.' || verb WHEN path LIKE 'POST /v1/orders/%' THEN 'order.' || verb
      WHEN verb LIKE 'items/%' THEN 'sale.stock' ELSE 'sale.' || verb END AS operation,
    CASE WHEN verb LIKE 'items/%' THEN id || '/' || substr(verb, 7, length(verb) - 12) ELSE id END AS subject,
    key, fingerprint, answer, created_at
  FROM named;

INSERT INTO call_keys SELECT caller, '', operation, subject, key, fingerprint, answer, created_at FROM scopes;
-- An admin who moved an order may have acted for its buyer and for nobody else: both may have the answer.
INSERT INTO call_keys
  SELECT s.caller, o.buyer, s.operation, s.subject, s.key, s.fingerprint, s.answer, s.created_at
  FROM scopes s JOIN orders o ON o.id = CAST(s.subject AS INTEGER)
  WHERE s.operation LIKE 'order.%' AND s.caller LIKE 'admin:%';

DROP TABLE temp.scopes;
DROP TABLE keys;
