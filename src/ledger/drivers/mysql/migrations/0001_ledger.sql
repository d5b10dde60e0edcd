-- rerunnable
-- The ledger on MySQL (8.0.16 or later) and MariaDB (10.6 or later).
--
-- MySQL commits before and after every CREATE TABLE, so that a start which dies in the middle leaves a part of this file:
-- each statement does nothing where its work is done already, and the file is run again.
--
-- Ids are 64-bit (base/ids.ts). Times are milliseconds since 1970. Text that names things is VARBINARY: the collations
-- take `Alice` for `alice`, and those that do not still take `a` for `a ` (they pad). Lengths are bytes of UTF-8.
-- Identifiers in double quotes: our sessions run with ANSI_QUOTES.

CREATE TABLE IF NOT EXISTS sales (
  id            BIGINT       NOT NULL PRIMARY KEY,
  name          VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  opens_at      BIGINT       NOT NULL,
  closes_at     BIGINT       NOT NULL,
  per_buyer     INT          NOT NULL,
  -- The highest limit that was ever in force: the writer checks slots against it, since an order that was admitted
  -- under a higher limit is right even if the limit was lowered before its commit.
  per_buyer_max INT          NOT NULL,
  pay_within    INT          NOT NULL,
  paused        SMALLINT     NOT NULL DEFAULT 0,
  closed        SMALLINT     NOT NULL DEFAULT 0,
  version       INT          NOT NULL DEFAULT 1,
  created_at    BIGINT       NOT NULL,
  updated_at    BIGINT       NOT NULL,
  CONSTRAINT sales_window CHECK (closes_at > opens_at),
  CONSTRAINT sales_limit CHECK (per_buyer >= 1 AND per_buyer_max >= per_buyer)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS items (
  id        BIGINT         NOT NULL PRIMARY KEY,
  sale_id   BIGINT         NOT NULL,
  position  INT            NOT NULL,
  code      VARBINARY(256) NOT NULL,
  name      VARCHAR(200)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  amount    BIGINT         NOT NULL,
  currency  VARCHAR(8)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  kind      VARCHAR(8)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  total     INT            NOT NULL,
  reserved  INT            NOT NULL DEFAULT 0,
  sold      INT            NOT NULL DEFAULT 0,
  blocked   INT            NOT NULL DEFAULT 0,
  -- Raised by every rebuild of the gate. An admission carries the epoch it was made under.
  epoch     INT            NOT NULL DEFAULT 1,
  -- Raised by one in every transaction that moves units: rev order is commit order.
  rev       BIGINT         NOT NULL DEFAULT 0,
  UNIQUE KEY items_code (sale_id, code),
  CONSTRAINT items_sale FOREIGN KEY (sale_id) REFERENCES sales (id),
  CONSTRAINT items_kind CHECK (kind IN ('counted', 'seated')),
  CONSTRAINT items_counts CHECK (total >= 0 AND reserved >= 0 AND sold >= 0 AND blocked >= 0),
  -- P1, below every statement: no transaction that breaks it can commit.
  CONSTRAINT items_within_total CHECK (reserved + sold + blocked <= total)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS orders (
  id          BIGINT          NOT NULL PRIMARY KEY,
  sale_id     BIGINT          NOT NULL,
  item_id     BIGINT          NOT NULL,
  buyer       VARBINARY(512)  NOT NULL,
  quantity    INT             NOT NULL,
  -- The buyer's places under the limit, one per unit: '1' or '1,2'.
  slots       VARCHAR(400)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount      BIGINT          NOT NULL,
  currency    VARCHAR(8)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status      VARCHAR(16)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  reason      VARCHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NULL,
  epoch       INT             NOT NULL,
  idem_key    VARBINARY(255)  NULL,
  fingerprint VARBINARY(1024) NOT NULL,
  -- The fencing token of the lock under which the row was last changed; 0: none yet.
  fence       BIGINT          NOT NULL DEFAULT 0,
  created_at  BIGINT          NOT NULL,
  updated_at  BIGINT          NOT NULL,
  expires_at  BIGINT          NULL,
  version     INT             NOT NULL DEFAULT 1,
  -- The number that the inserting transaction drew for itself: the rows that it really inserted are those that bear it.
  batch       BIGINT          NOT NULL,
  -- The ended order whose late money paid this one.
  revives     BIGINT          NULL,
  -- When the time of a reserved order is over; NULL for all others. Not stored: it is in its index only.
  due_at      BIGINT          GENERATED ALWAYS AS (CASE WHEN status = 'reserved' THEN expires_at END) VIRTUAL,
  KEY orders_sale (sale_id, id),
  KEY orders_due (due_at),
  -- P5: a key is bound to one order of its buyer and sale, in the order's own row: a table of keys would be one more row and
  -- tree to write for each. Also the way to a buyer's orders. Set to NULL after 24 hours.
  UNIQUE KEY orders_key (buyer, sale_id, idem_key),
  CONSTRAINT orders_quantity CHECK (quantity >= 1),
  CONSTRAINT orders_status CHECK (status IN ('reserved', 'paid', 'cancelled', 'expired', 'rejected', 'refunded'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Attempts to pay (model/payment.ts). The row is committed before the provider is called.
CREATE TABLE IF NOT EXISTS payments (
  id         BIGINT         NOT NULL PRIMARY KEY,
  order_id   BIGINT         NOT NULL,
  provider   VARBINARY(64)  NOT NULL,
  state      VARCHAR(16)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- 1: it is the money of its order, now or until it was refunded.
  pays       SMALLINT       NOT NULL,
  amount     BIGINT         NOT NULL,
  currency   VARCHAR(8)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- Who began it, and from where; NULL: from inside.
  actor      VARCHAR(200)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  origin     VARCHAR(200)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  -- The provider's own name for it.
  reference  VARBINARY(512) NULL,
  error      VARCHAR(500)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  -- The token of its order's lock under which it was opened; 0: none. So the order itself need not be written for that.
  fence      BIGINT         NOT NULL DEFAULT 0,
  next_at    BIGINT         NULL,
  tries      INT            NOT NULL,
  created_at BIGINT         NOT NULL,
  updated_at BIGINT         NOT NULL,
  counts     SMALLINT       GENERATED ALWAYS AS (CASE WHEN state = 'open' THEN 0 WHEN pays = 1 THEN 1 END) VIRTUAL,
  -- P6: at most one attempt of an order whose end nobody knows, and at most one that it was paid with. Also the way to its attempts.
  UNIQUE KEY payments_order (order_id, counts),
  UNIQUE KEY payments_reference (reference, provider),
  KEY payments_due (next_at),
  CONSTRAINT payments_state CHECK
    (state IN ('open', 'captured', 'failed', 'voided', 'late', 'refunding', 'refunded') AND pays IN (0, 1)),
  -- P6: nothing is forgotten about that somebody still has to do something about. One that ended without money may be in doubt.
  CONSTRAINT payments_next CHECK (CASE WHEN state IN ('open', 'late', 'refunding') THEN next_at IS NOT NULL
    ELSE next_at IS NULL OR state IN ('failed', 'voided') END),
  CONSTRAINT payments_paid CHECK
    (CASE pays WHEN 1 THEN state IN ('captured', 'refunding', 'refunded') ELSE state <> 'captured' END)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row per live unit (P2). A released unit's slot is free again.
CREATE TABLE IF NOT EXISTS claims (
  sale_id  BIGINT         NOT NULL,
  buyer    VARBINARY(512) NOT NULL,
  slot     SMALLINT       NOT NULL,
  order_id BIGINT         NOT NULL,
  PRIMARY KEY (sale_id, buyer, slot),
  CONSTRAINT claims_slot CHECK (slot BETWEEN 1 AND 100)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row per seat of a live order. Apart from the claims, which every order writes: an index more there is a page more to
-- be written for each.
CREATE TABLE IF NOT EXISTS seat_claims (
  sale_id  BIGINT         NOT NULL,
  seat     VARBINARY(256) NOT NULL,
  order_id BIGINT         NOT NULL,
  PRIMARY KEY (sale_id, seat),
  KEY seat_claims_order (order_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Keys of orders up to this id are gone: they were older than 24 hours.
CREATE TABLE IF NOT EXISTS pruned (
  one      INT    NOT NULL PRIMARY KEY,
  order_id BIGINT NOT NULL,
  CONSTRAINT pruned_one CHECK (one = 1)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
INSERT INTO pruned (one, order_id) VALUES (1, 0) ON DUPLICATE KEY UPDATE one = one;

-- Idempotency keys of administrative calls, with the answer that a repeat gets (P5). Pruned after 24 hours.
CREATE TABLE IF NOT EXISTS answers (
  caller      VARBINARY(512)  NOT NULL,
  path        VARBINARY(1024) NOT NULL,
  "key"       VARBINARY(255)  NOT NULL,
  fingerprint VARBINARY(1024) NOT NULL,
  answer      MEDIUMTEXT      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  created_at  BIGINT          NOT NULL,
  PRIMARY KEY (caller, path, "key"),
  KEY answers_age (created_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Units that ended in the ledger and are not yet back in the gate (P4). Those that are, since done_at, are kept for a while:
-- a gate that is built from a snapshot gets every release of a later rev again.
CREATE TABLE IF NOT EXISTS release_outbox (
  order_id   BIGINT         NOT NULL PRIMARY KEY,
  sale_id    BIGINT         NOT NULL,
  item_id    BIGINT         NOT NULL,
  buyer      VARBINARY(512) NOT NULL,
  units      INT            NOT NULL,
  rev        BIGINT         NOT NULL,
  created_at BIGINT         NOT NULL,
  done_at    BIGINT         NULL,
  KEY release_outbox_waiting (done_at, created_at),
  KEY release_outbox_sale (sale_id, rev)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Events for those who subscribed: one per version of an order, gone when somebody has taken it over.
CREATE TABLE IF NOT EXISTS order_events (
  order_id BIGINT      NOT NULL,
  version  INT         NOT NULL,
  type     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  "at"     BIGINT      NOT NULL,
  body     MEDIUMTEXT  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  PRIMARY KEY (order_id, version),
  KEY order_events_age ("at", order_id, version)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The sandbox provider's own book of payments.
CREATE TABLE IF NOT EXISTS sandbox_intents (
  id       BIGINT      NOT NULL PRIMARY KEY,
  order_id BIGINT      NOT NULL,
  amount   BIGINT      NOT NULL,
  currency VARCHAR(8)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  state    VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  due_at   BIGINT      NULL,
  told     SMALLINT    NOT NULL,
  KEY sandbox_intents_due (told, state, due_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Changes of sales that the gate has yet to hear of: written with the change, removed when the gate has it.
CREATE TABLE IF NOT EXISTS gate_tasks (
  audit_id   BIGINT NOT NULL PRIMARY KEY,
  sale_id    BIGINT NOT NULL,
  created_at BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A block of ids belongs to whoever raised `next` over it, from the commit on.
CREATE TABLE IF NOT EXISTS id_blocks (
  kind   VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
  "next" BIGINT      NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS audit (
  id      BIGINT       NOT NULL PRIMARY KEY,
  "at"    BIGINT       NOT NULL,
  actor   VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  -- The address it came from; NULL: from inside.
  origin  VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  action  VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  subject VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  detail  MEDIUMTEXT   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  KEY audit_subject (subject, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Who is told of orders (webhooks). One that said 410 is `gone`; a deleted one goes with the last of its deliveries.
CREATE TABLE IF NOT EXISTS webhook_endpoints (
  id         BIGINT        NOT NULL PRIMARY KEY,
  created_at BIGINT        NOT NULL,
  url        VARCHAR(2048) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  events     VARCHAR(200)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- What is sent there is signed with it: it must be known, and so stands here as it is.
  secret     VARCHAR(200)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  state      VARCHAR(16)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  reason     VARCHAR(500)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  -- The Idempotency-Key of the call, and whose it was.
  made_with  VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NULL,
  UNIQUE KEY webhook_endpoints_key (made_with),
  CONSTRAINT webhook_endpoints_state CHECK (state IN ('active', 'gone', 'deleted'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One event for one endpoint. Pending with no next_at: it waits for an older one of the same order.
CREATE TABLE IF NOT EXISTS webhook_deliveries (
  id          BIGINT       NOT NULL PRIMARY KEY,
  endpoint_id BIGINT       NOT NULL,
  order_id    BIGINT       NOT NULL,
  created_at  BIGINT       NOT NULL,
  -- The first try.
  began_at    BIGINT       NULL,
  next_at     BIGINT       NULL,
  done_at     BIGINT       NULL,
  version     INT          NOT NULL,
  tries       INT          NOT NULL,
  last_status INT          NULL,
  type        VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  state       VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  last_error  VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  -- What is sent, to the letter.
  body        MEDIUMTEXT   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  UNIQUE KEY webhook_deliveries_order (order_id, endpoint_id, version),
  KEY webhook_deliveries_due (endpoint_id, done_at, next_at),
  KEY webhook_deliveries_list (endpoint_id, id),
  CONSTRAINT webhook_deliveries_state CHECK (state IN ('pending', 'delivered', 'failed')
    AND (state = 'pending') = (done_at IS NULL) AND (done_at IS NULL OR next_at IS NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Written by the probe that asks whether the ledger can store anything.
CREATE TABLE IF NOT EXISTS probe (
  one  INT    NOT NULL PRIMARY KEY,
  "at" BIGINT NOT NULL,
  CONSTRAINT probe_one CHECK (one = 1)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
INSERT INTO probe (one, "at") VALUES (1, 0) ON DUPLICATE KEY UPDATE one = one;
