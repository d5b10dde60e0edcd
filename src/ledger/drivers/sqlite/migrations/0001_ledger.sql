-- The ledger of the embedded shop.
--
-- Ids are 64-bit (base/ids.ts). Times are milliseconds since 1970. Text compares bytewise (SQLite's BINARY).
-- Tables are STRICT: SQLite would otherwise store any type anywhere.

CREATE TABLE sales (
  id            INTEGER PRIMARY KEY,
  name          TEXT    NOT NULL,
  opens_at      INTEGER NOT NULL,
  closes_at     INTEGER NOT NULL,
  per_buyer     INTEGER NOT NULL CHECK (per_buyer >= 1),
  -- The highest limit that was ever in force: the writer checks slots against it, since an order that was admitted
  -- under a higher limit is right even if the limit was lowered before its commit.
  per_buyer_max INTEGER NOT NULL CHECK (per_buyer_max >= per_buyer),
  pay_within    INTEGER NOT NULL,
  paused        INTEGER NOT NULL DEFAULT 0,
  closed        INTEGER NOT NULL DEFAULT 0,
  version       INTEGER NOT NULL DEFAULT 1,
  created_at    INTEGER NOT NULL,
  updated_at    INTEGER NOT NULL,
  CHECK (closes_at > opens_at)
) STRICT;

CREATE TABLE items (
  id        INTEGER PRIMARY KEY,
  sale_id   INTEGER NOT NULL REFERENCES sales (id),
  position  INTEGER NOT NULL,
  code      TEXT    NOT NULL,
  name      TEXT    NOT NULL,
  amount    INTEGER NOT NULL,
  currency  TEXT    NOT NULL,
  kind      TEXT    NOT NULL CHECK (kind IN ('counted', 'seated')),
  total     INTEGER NOT NULL CHECK (total >= 0),
  reserved  INTEGER NOT NULL DEFAULT 0 CHECK (reserved >= 0),
  sold      INTEGER NOT NULL DEFAULT 0 CHECK (sold >= 0),
  blocked   INTEGER NOT NULL DEFAULT 0 CHECK (blocked >= 0),
  -- Raised by every rebuild of the gate. An admission carries the epoch it was made under.
  epoch     INTEGER NOT NULL DEFAULT 1,
  -- Raised by one in every transaction that moves units: rev order is commit order.
  rev       INTEGER NOT NULL DEFAULT 0,
  UNIQUE (sale_id, code),
  -- P1, below every statement: no transaction that breaks it can commit.
  CHECK (reserved + sold + blocked <= total)
) STRICT;

-- Orders are appended in commit order and hold everything that claims, keys and buyer_orders are derived from, so that
-- the commit a buyer waits for writes only at the end of trees. See docs/internals/sqlite-ledger.md.
CREATE TABLE orders (
  seq         INTEGER PRIMARY KEY,
  id          INTEGER NOT NULL,
  sale_id     INTEGER NOT NULL,
  item_id     INTEGER NOT NULL REFERENCES items (id),
  buyer       TEXT    NOT NULL,
  quantity    INTEGER NOT NULL CHECK (quantity >= 1),
  -- The buyer's places under the limit, one per unit: '1' or '1,2'.
  slots       TEXT    NOT NULL,
  amount      INTEGER NOT NULL,
  currency    TEXT    NOT NULL,
  status      TEXT    NOT NULL CHECK (status IN ('reserved', 'paid', 'cancelled', 'expired', 'rejected', 'refunded')),
  reason      TEXT,
  epoch       INTEGER NOT NULL,
  idem_key    TEXT,
  fingerprint TEXT    NOT NULL,
  -- The fencing token of the lock under which the row was last changed; 0: none yet.
  fence       INTEGER NOT NULL DEFAULT 0,
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  expires_at  INTEGER,
  version     INTEGER NOT NULL DEFAULT 1,
  -- The ended order whose late money paid this one.
  revives     INTEGER
) STRICT;
CREATE UNIQUE INDEX orders_id ON orders (id);
CREATE INDEX orders_sale ON orders (sale_id, id);
-- Orders whose time will be over, and no others: they leave it when they are paid or end.
CREATE INDEX orders_due ON orders (expires_at) WHERE status = 'reserved';

-- Attempts to pay (model/payment.ts). The row is committed before the provider is called.
CREATE TABLE payments (
  id         INTEGER PRIMARY KEY,
  order_id   INTEGER NOT NULL,
  provider   TEXT    NOT NULL,
  state      TEXT    NOT NULL CHECK (state IN ('open', 'captured', 'failed', 'voided', 'late', 'refunding', 'refunded')),
  -- 1: it is the money of its order, now or until it was refunded.
  pays       INTEGER NOT NULL CHECK (pays IN (0, 1)),
  amount     INTEGER NOT NULL,
  currency   TEXT    NOT NULL,
  -- Who began it, and from where; NULL: from inside.
  actor      TEXT    NOT NULL,
  origin     TEXT,
  -- The provider's own name for it.
  reference  TEXT,
  error      TEXT,
  -- The token of its order's lock under which it was opened; 0: none. So the order itself need not be written for that.
  fence      INTEGER NOT NULL DEFAULT 0,
  next_at    INTEGER,
  tries      INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  -- P6: nothing is forgotten about that somebody still has to do something about. One that ended without money may be in doubt.
  CHECK (CASE WHEN state IN ('open', 'late', 'refunding') THEN next_at IS NOT NULL
    ELSE next_at IS NULL OR state IN ('failed', 'voided') END),
  CHECK (CASE pays WHEN 1 THEN state IN ('captured', 'refunding', 'refunded') ELSE state <> 'captured' END)
) STRICT;
-- P6: at most one attempt of an order whose end nobody knows, and at most one that it was paid with. Also the way to its attempts.
CREATE UNIQUE INDEX payments_order ON payments (order_id, CASE WHEN state = 'open' THEN 0 WHEN pays = 1 THEN 1 END);
CREATE UNIQUE INDEX payments_reference ON payments (reference, provider) WHERE reference IS NOT NULL;
CREATE INDEX payments_due ON payments (next_at) WHERE next_at IS NOT NULL;

-- One row per live unit (P2). A released unit's slot is free again.
CREATE TABLE claims (
  sale_id  INTEGER NOT NULL,
  buyer    TEXT    NOT NULL,
  slot     INTEGER NOT NULL CHECK (slot BETWEEN 1 AND 100),
  order_id INTEGER NOT NULL,
  seat     TEXT,
  PRIMARY KEY (sale_id, buyer, slot)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX claims_seat ON claims (sale_id, seat) WHERE seat IS NOT NULL;

-- Idempotency keys (P5). `order_id` for orders, `answer` for administrative calls. Pruned after 24 hours.
CREATE TABLE keys (
  caller      TEXT    NOT NULL,
  path        TEXT    NOT NULL,
  key         TEXT    NOT NULL,
  fingerprint TEXT    NOT NULL,
  order_id    INTEGER,
  answer      TEXT,
  created_at  INTEGER NOT NULL,
  PRIMARY KEY (caller, path, key)
) STRICT, WITHOUT ROWID;
-- Keys of orders are pruned by walking the orders (folded.pruned): an index by age would be one more tree that the fold
-- writes in random order.
CREATE INDEX keys_age ON keys (created_at) WHERE order_id IS NULL;

CREATE TABLE buyer_orders (
  buyer    TEXT    NOT NULL,
  order_id INTEGER NOT NULL,
  PRIMARY KEY (buyer, order_id)
) STRICT, WITHOUT ROWID;

-- claims, keys and buyer_orders hold all orders up to this seq; what is above is in memory, and in orders.
CREATE TABLE folded (
  one    INTEGER PRIMARY KEY CHECK (one = 1),
  seq    INTEGER NOT NULL,
  -- Keys of orders up to this seq are gone: they were older than 24 hours.
  pruned INTEGER NOT NULL DEFAULT 0 CHECK (pruned <= seq)
) STRICT;
INSERT INTO folded (one, seq) VALUES (1, 0);

-- Units that ended in the ledger and are not yet back in the gate (P4). Those that are, since done_at, are kept for a while:
-- a gate that is built from a snapshot gets every release of a later rev again.
CREATE TABLE release_outbox (
  order_id   INTEGER PRIMARY KEY,
  sale_id    INTEGER NOT NULL,
  item_id    INTEGER NOT NULL,
  buyer      TEXT    NOT NULL,
  units      INTEGER NOT NULL,
  rev        INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  done_at    INTEGER
) STRICT;
CREATE INDEX release_outbox_waiting ON release_outbox (done_at, created_at);
CREATE INDEX release_outbox_sale ON release_outbox (sale_id, rev);

-- Events for those who subscribed: one per version of an order, gone when somebody has taken it over.
CREATE TABLE order_events (
  order_id INTEGER NOT NULL,
  version  INTEGER NOT NULL,
  type     TEXT    NOT NULL,
  at       INTEGER NOT NULL,
  body     TEXT    NOT NULL,
  PRIMARY KEY (order_id, version)
) STRICT, WITHOUT ROWID;
CREATE INDEX order_events_age ON order_events (at, order_id, version);

-- The sandbox provider's own book of payments.
CREATE TABLE sandbox_intents (
  id       INTEGER PRIMARY KEY,
  order_id INTEGER NOT NULL,
  amount   INTEGER NOT NULL,
  currency TEXT    NOT NULL,
  state    TEXT    NOT NULL,
  due_at   INTEGER,
  told     INTEGER NOT NULL
) STRICT;
CREATE INDEX sandbox_intents_due ON sandbox_intents (told, state, due_at);

-- A block of ids belongs to whoever raised `next` over it, from the commit on.
CREATE TABLE id_blocks (
  kind TEXT    PRIMARY KEY,
  next INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
  id      INTEGER PRIMARY KEY,
  at      INTEGER NOT NULL,
  actor   TEXT    NOT NULL,
  -- The address it came from; NULL: from inside.
  origin  TEXT,
  action  TEXT    NOT NULL,
  subject TEXT    NOT NULL,
  detail  TEXT    NOT NULL
) STRICT;
CREATE INDEX audit_subject ON audit (subject, id);

-- Who is told of orders (webhooks). One that said 410 is `gone`; a deleted one goes with the last of its deliveries.
CREATE TABLE webhook_endpoints (
  id         INTEGER PRIMARY KEY,
  created_at INTEGER NOT NULL,
  url        TEXT    NOT NULL,
  events     TEXT    NOT NULL,
  -- What is sent there is signed with it: it must be known, and so stands here as it is.
  secret     TEXT    NOT NULL,
  state      TEXT    NOT NULL CHECK (state IN ('active', 'gone', 'deleted')),
  reason     TEXT,
  -- The Idempotency-Key of the call, and whose it was.
  made_with  TEXT
) STRICT;
CREATE UNIQUE INDEX webhook_endpoints_key ON webhook_endpoints (made_with) WHERE made_with IS NOT NULL;

-- One event for one endpoint. Pending with no next_at: it waits for an older one of the same order.
CREATE TABLE webhook_deliveries (
  id          INTEGER PRIMARY KEY,
  endpoint_id INTEGER NOT NULL,
  order_id    INTEGER NOT NULL,
  created_at  INTEGER NOT NULL,
  -- The first try.
  began_at    INTEGER,
  next_at     INTEGER,
  done_at     INTEGER,
  version     INTEGER NOT NULL,
  tries       INTEGER NOT NULL,
  last_status INTEGER,
  type        TEXT    NOT NULL,
  state       TEXT    NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
  last_error  TEXT,
  -- What is sent, to the letter.
  body        TEXT    NOT NULL,
  CHECK ((state = 'pending') = (done_at IS NULL) AND (done_at IS NULL OR next_at IS NULL))
) STRICT;
CREATE UNIQUE INDEX webhook_deliveries_order ON webhook_deliveries (order_id, endpoint_id, version);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, done_at, next_at);
CREATE INDEX webhook_deliveries_list ON webhook_deliveries (endpoint_id, id);

-- Written by the probe that asks whether the ledger can store anything.
CREATE TABLE probe (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  at  INTEGER NOT NULL
) STRICT;
INSERT INTO probe (one, at) VALUES (1, 0);
