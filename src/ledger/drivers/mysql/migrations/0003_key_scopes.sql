-- rerunnable
-- Whose an Idempotency-Key is becomes data: who called, for which buyer, what for. It stood in a path before, which had to be
-- parsed, and which did not say whom an admin had acted for: another buyer's answer could be replayed.

-- Keys of calls, with the answer that a repeat gets (P5). Pruned after 24 hours.
CREATE TABLE IF NOT EXISTS call_keys (
  -- 'buyer:ann', 'admin:alice': a buyer's name has up to 512 bytes.
  caller      VARBINARY(520)  NOT NULL,
  -- The buyer whom an admin acted for, or nothing.
  acting_for  VARBINARY(512)  NOT NULL,
  operation   VARBINARY(32)   NOT NULL,
  subject     VARBINARY(512)  NOT NULL,
  "key"       VARBINARY(255)  NOT NULL,
  fingerprint VARBINARY(1024) NOT NULL,
  answer      MEDIUMTEXT      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  created_at  BIGINT          NOT NULL,
  PRIMARY KEY (caller, acting_for, operation, subject, "key"),
  KEY call_keys_age (created_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Orders up to this id were placed when a key did not say who used it: all that were admitted before this instant, by a clock
-- that is up to a minute ahead. Some of them may still be in the pipe. An id has the seconds since 2025-01-01 above 32 bits.
CREATE TABLE IF NOT EXISTS unscoped_keys (
  one   INT    NOT NULL PRIMARY KEY,
  up_to BIGINT NOT NULL,
  CONSTRAINT unscoped_keys_one CHECK (one = 1)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
-- Where the file is run again, by its last run: orders may have been admitted in between.
REPLACE INTO unscoped_keys (one, up_to)
  SELECT 1, GREATEST((FLOOR(UNIX_TIMESTAMP()) - 1735689600 + 60) * 4294967296 + 4294967295, COALESCE((SELECT max(id) FROM orders), 0))
  FROM DUAL WHERE EXISTS (SELECT 1 FROM sales);

-- It is gone if this file was run before, up to its last line.
CREATE TABLE IF NOT EXISTS answers (
  caller      VARBINARY(512)  NOT NULL,
  path        VARBINARY(1024) NOT NULL,
  "key"       VARBINARY(255)  NOT NULL,
  fingerprint VARBINARY(1024) NOT NULL,
  answer      MEDIUMTEXT      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  created_at  BIGINT          NOT NULL,
  PRIMARY KEY (caller, path, "key")
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What was bound in the last 24 hours stays bound. By the paths 'POST /v1/sales', 'POST /v1/sales/1/pause',
-- 'POST /v1/sales/1/items/a/stock', 'POST /v1/orders/1/cancel', 'POST /v1/ops/webhooks' and
-- 'POST /v1/ops/webhooks/deliveries/1/redeliver'. Those who changed a sale stand there by their bare name.
INSERT INTO call_keys (caller, acting_for, operation, subject, "key", fingerprint, answer, created_at)
  SELECT concat('admin:', caller), '', 'sale.create', '', "key", fingerprint, answer, created_at FROM answers
  WHERE path = 'POST /v1/sales' AND answer IS NOT NULL
  ON DUPLICATE KEY UPDATE call_keys."key" = call_keys."key";
INSERT INTO call_keys (caller, acting_for, operation, subject, "key", fingerprint, answer, created_at)
  SELECT concat('admin:', caller), '', concat('sale.', substring_index(path, '/', -1)),
    CASE WHEN path LIKE '%/items/%/stock'
      THEN concat(substring_index(substring_index(path, '/', 4), '/', -1), '/', substring_index(substring_index(path, '/', -2), '/', 1))
      ELSE substring_index(substring_index(path, '/', 4), '/', -1) END,
    "key", fingerprint, answer, created_at FROM answers
  WHERE path LIKE 'POST /v1/sales/%' AND answer IS NOT NULL
  ON DUPLICATE KEY UPDATE call_keys."key" = call_keys."key";
INSERT INTO call_keys (caller, acting_for, operation, subject, "key", fingerprint, answer, created_at)
  SELECT caller, '', 'webhook.create', '', "key", fingerprint, answer, created_at FROM answers
  WHERE path = 'POST /v1/ops/webhooks' AND answer IS NOT NULL
  ON DUPLICATE KEY UPDATE call_keys."key" = call_keys."key";
INSERT INTO call_keys (caller, acting_for, operation, subject, "key", fingerprint, answer, created_at)
  SELECT caller, '', concat(CASE WHEN path LIKE 'POST /v1/orders/%' THEN 'order.' ELSE 'webhook.' END, substring_index(path, '/', -1)),
    substring_index(substring_index(path, '/', -2), '/', 1), "key", fingerprint, answer, created_at FROM answers
  WHERE (path LIKE 'POST /v1/orders/%' OR path LIKE 'POST /v1/ops/webhooks/deliveries/%') AND answer IS NOT NULL
  ON DUPLICATE KEY UPDATE call_keys."key" = call_keys."key";
-- An admin who moved an order may have acted for its buyer and for nobody else: both may have the answer.
INSERT INTO call_keys (caller, acting_for, operation, subject, "key", fingerprint, answer, created_at)
  SELECT a.caller, o.buyer, concat('order.', substring_index(a.path, '/', -1)),
    substring_index(substring_index(a.path, '/', -2), '/', 1), a."key", a.fingerprint, a.answer, a.created_at
  FROM answers a JOIN orders o ON o.id = CAST(substring_index(substring_index(a.path, '/', -2), '/', 1) AS UNSIGNED)
  WHERE a.path LIKE 'POST /v1/orders/%' AND a.caller LIKE 'admin:%' AND a.answer IS NOT NULL
  ON DUPLICATE KEY UPDATE call_keys."key" = call_keys."key";

DROP TABLE answers;
