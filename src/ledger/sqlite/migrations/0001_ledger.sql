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
  version     INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE UNIQUE INDEX orders_id ON orders (id);
CREATE INDEX orders_sale ON orders (sale_id, id);

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

-- Units that ended in the ledger and are not yet back in the gate (P4).
CREATE TABLE release_outbox (
  order_id   INTEGER PRIMARY KEY,
  sale_id    INTEGER NOT NULL,
  item_id    INTEGER NOT NULL,
  units      INTEGER NOT NULL,
  rev        INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

-- A block of ids belongs to whoever raised `next` over it, from the commit on.
CREATE TABLE id_blocks (
  kind TEXT    PRIMARY KEY,
  next INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
  id      INTEGER PRIMARY KEY,
  at      INTEGER NOT NULL,
  actor   TEXT    NOT NULL,
  action  TEXT    NOT NULL,
  subject TEXT    NOT NULL,
  detail  TEXT    NOT NULL
) STRICT;
CREATE INDEX audit_subject ON audit (subject, id);

-- Written by the probe that asks whether the ledger can store anything.
CREATE TABLE probe (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  at  INTEGER NOT NULL
) STRICT;
INSERT INTO probe (one, at) VALUES (1, 0);
