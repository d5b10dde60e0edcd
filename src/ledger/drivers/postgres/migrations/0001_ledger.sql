-- The ledger on PostgreSQL (13 or later).
--
-- Ids are 64-bit (base/ids.ts). Times are milliseconds since 1970. Text that names things compares bytewise (COLLATE "C"),
-- whatever collation the database was made with.

CREATE TABLE sales (
  id            BIGINT   NOT NULL PRIMARY KEY,
  name          TEXT     NOT NULL,
  opens_at      BIGINT   NOT NULL,
  closes_at     BIGINT   NOT NULL,
  per_buyer     INT      NOT NULL,
  -- The highest limit that was ever in force: the writer checks slots against it, since an order that was admitted
  -- under a higher limit is right even if the limit was lowered before its commit.
  per_buyer_max INT      NOT NULL,
  pay_within    INT      NOT NULL,
  paused        SMALLINT NOT NULL DEFAULT 0,
  closed        SMALLINT NOT NULL DEFAULT 0,
  version       INT      NOT NULL DEFAULT 1,
  created_at    BIGINT   NOT NULL,
  updated_at    BIGINT   NOT NULL,
  CONSTRAINT sales_window CHECK (closes_at > opens_at),
  CONSTRAINT sales_limit CHECK (per_buyer >= 1 AND per_buyer_max >= per_buyer)
);

CREATE TABLE items (
  id        BIGINT NOT NULL PRIMARY KEY,
  sale_id   BIGINT NOT NULL REFERENCES sales (id),
  position  INT    NOT NULL,
  code      TEXT   COLLATE "C" NOT NULL,
  name      TEXT   NOT NULL,
  amount    BIGINT NOT NULL,
  currency  TEXT   NOT NULL,
  kind      TEXT   NOT NULL,
  total     INT    NOT NULL,
  reserved  INT    NOT NULL DEFAULT 0,
  sold      INT    NOT NULL DEFAULT 0,
  blocked   INT    NOT NULL DEFAULT 0,
  -- Raised by every rebuild of the gate. An admission carries the epoch it was made under.
  epoch     INT    NOT NULL DEFAULT 1,
  -- Raised by one in every transaction that moves units: rev order is commit order.
  rev       BIGINT NOT NULL DEFAULT 0,
  CONSTRAINT items_code UNIQUE (sale_id, code),
  CONSTRAINT items_kind CHECK (kind IN ('counted', 'seated')),
  CONSTRAINT items_counts CHECK (total >= 0 AND reserved >= 0 AND sold >= 0 AND blocked >= 0),
  -- P1, below every statement: no transaction that breaks it can commit.
  CONSTRAINT items_within_total CHECK (reserved + sold + blocked <= total)
  -- A hot row changes with every batch: room for its next version on the same page.
) WITH (fillfactor = 25);

CREATE TABLE orders (
  id          BIGINT NOT NULL PRIMARY KEY,
  sale_id     BIGINT NOT NULL,
  item_id     BIGINT NOT NULL,
  created_at  BIGINT NOT NULL,
  updated_at  BIGINT NOT NULL,
  expires_at  BIGINT,
  amount      BIGINT NOT NULL,
  -- The fencing token of the lock under which the row was last changed; 0: none yet.
  fence       BIGINT NOT NULL DEFAULT 0,
  quantity    INT    NOT NULL,
  epoch       INT    NOT NULL,
  version     INT    NOT NULL DEFAULT 1,
  buyer       TEXT   COLLATE "C" NOT NULL,
  -- The buyer's places under the limit, one per unit: '1' or '1,2'.
  slots       TEXT   COLLATE "C" NOT NULL,
  currency    TEXT   COLLATE "C" NOT NULL,
  status      TEXT   COLLATE "C" NOT NULL,
  reason      TEXT   COLLATE "C",
  idem_key    TEXT   COLLATE "C",
  fingerprint TEXT   COLLATE "C" NOT NULL,
  -- The ended order whose late money paid this one.
  revives     BIGINT,
  CONSTRAINT orders_quantity CHECK (quantity >= 1),
  CONSTRAINT orders_status CHECK (status IN ('reserved', 'paid', 'cancelled', 'expired', 'rejected', 'refunded'))
);
CREATE INDEX orders_sale ON orders (sale_id, id);
-- P5: a key is bound to one order of its buyer and sale, in the order's own row: a table of keys would be one more row and
-- tree to write for each. Also the way to a buyer's orders. Set to NULL after 24 hours.
CREATE UNIQUE INDEX orders_key ON orders (buyer, sale_id, idem_key);

-- Orders whose time will be over, and no others: they leave it when they are paid or end.
CREATE INDEX orders_due ON orders (expires_at) WHERE status = 'reserved';

-- Attempts to pay (model/payment.ts). The row is committed before the provider is called.
CREATE TABLE payments (
  id         BIGINT   NOT NULL PRIMARY KEY,
  order_id   BIGINT   NOT NULL,
  amount     BIGINT   NOT NULL,
  -- The token of its order's lock under which it was opened; 0: none. So the order itself need not be written for that.
  fence      BIGINT NOT NULL DEFAULT 0,
  next_at    BIGINT,
  created_at BIGINT   NOT NULL,
  updated_at BIGINT   NOT NULL,
  tries      INT      NOT NULL,
  -- 1: it is the money of its order, now or until it was refunded.
  pays       SMALLINT NOT NULL,
  provider   TEXT     COLLATE "C" NOT NULL,
  state      TEXT     COLLATE "C" NOT NULL,
  currency   TEXT     COLLATE "C" NOT NULL,
  -- Who began it, and from where; NULL: from inside.
  actor      TEXT NOT NULL,
  origin     TEXT,
  -- The provider's own name for it.
  reference  TEXT     COLLATE "C",
  error      TEXT,
  CONSTRAINT payments_state CHECK
    (state IN ('open', 'captured', 'failed', 'voided', 'late', 'refunding', 'refunded') AND pays IN (0, 1)),
  -- P6: nothing is forgotten about that somebody still has to do something about. One that ended without money may be in doubt.
  CONSTRAINT payments_next CHECK (CASE WHEN state IN ('open', 'late', 'refunding') THEN next_at IS NOT NULL
    ELSE next_at IS NULL OR state IN ('failed', 'voided') END),
  CONSTRAINT payments_paid CHECK
    (CASE pays WHEN 1 THEN state IN ('captured', 'refunding', 'refunded') ELSE state <> 'captured' END)
);
-- P6: at most one attempt of an order whose end nobody knows, and at most one that it was paid with. Also the way to its attempts.
CREATE UNIQUE INDEX payments_order ON payments (order_id, (CASE WHEN state = 'open' THEN 0 WHEN pays = 1 THEN 1 END));
CREATE UNIQUE INDEX payments_reference ON payments (reference, provider) WHERE reference IS NOT NULL;
CREATE INDEX payments_due ON payments (next_at) WHERE next_at IS NOT NULL;

-- One row per live unit (P2). A released unit's slot is free again.
CREATE TABLE claims (
  sale_id  BIGINT   NOT NULL,
  order_id BIGINT   NOT NULL,
  slot     SMALLINT NOT NULL,
  buyer    TEXT     COLLATE "C" NOT NULL,
  CONSTRAINT claims_pkey PRIMARY KEY (sale_id, buyer, slot),
  CONSTRAINT claims_slot CHECK (slot BETWEEN 1 AND 100)
);

-- One row per seat of a live order. Apart from the claims, which every order writes: an index more there is a page more to
-- be written for each.
CREATE TABLE seat_claims (
  sale_id  BIGINT NOT NULL,
  order_id BIGINT NOT NULL,
  seat     TEXT   COLLATE "C" NOT NULL,
  CONSTRAINT seat_claims_pkey PRIMARY KEY (sale_id, seat)
);
CREATE INDEX seat_claims_order ON seat_claims (order_id);

-- Keys of orders up to this id are gone: they were older than 24 hours.
CREATE TABLE pruned (
  one      INT    NOT NULL PRIMARY KEY,
  order_id BIGINT NOT NULL,
  CONSTRAINT pruned_one CHECK (one = 1)
);
INSERT INTO pruned (one, order_id) VALUES (1, 0);

-- Idempotency keys of administrative calls, with the answer that a repeat gets (P5). Pruned after 24 hours.
CREATE TABLE answers (
  created_at  BIGINT NOT NULL,
  caller      TEXT   COLLATE "C" NOT NULL,
  path        TEXT   COLLATE "C" NOT NULL,
  "key"       TEXT   COLLATE "C" NOT NULL,
  fingerprint TEXT   COLLATE "C" NOT NULL,
  answer      TEXT,
  CONSTRAINT answers_pkey PRIMARY KEY (caller, path, "key")
);
CREATE INDEX answers_age ON answers (created_at);

-- Units that ended in the ledger and are not yet back in the gate (P4). Those that are, since done_at, are kept for a while:
-- a gate that is built from a snapshot gets every release of a later rev again.
CREATE TABLE release_outbox (
  order_id   BIGINT NOT NULL PRIMARY KEY,
  sale_id    BIGINT NOT NULL,
  item_id    BIGINT NOT NULL,
  rev        BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  done_at    BIGINT,
  units      INT    NOT NULL,
  buyer      TEXT   COLLATE "C" NOT NULL
);
CREATE INDEX release_outbox_waiting ON release_outbox (done_at, created_at);
CREATE INDEX release_outbox_sale ON release_outbox (sale_id, rev);

-- Events for those who subscribed: one per version of an order, gone when somebody has taken it over.
CREATE TABLE order_events (
  order_id BIGINT NOT NULL,
  "at"     BIGINT NOT NULL,
  version  INT    NOT NULL,
  type     TEXT   COLLATE "C" NOT NULL,
  body     TEXT   NOT NULL,
  CONSTRAINT order_events_pkey PRIMARY KEY (order_id, version)
);
CREATE INDEX order_events_age ON order_events ("at", order_id, version);

-- The sandbox provider's own book of payments.
CREATE TABLE sandbox_intents (
  id       BIGINT   NOT NULL PRIMARY KEY,
  order_id BIGINT   NOT NULL,
  amount   BIGINT   NOT NULL,
  due_at   BIGINT,
  told     SMALLINT NOT NULL,
  currency TEXT     COLLATE "C" NOT NULL,
  state    TEXT     COLLATE "C" NOT NULL
);
CREATE INDEX sandbox_intents_due ON sandbox_intents (told, state, due_at);

-- Changes of sales that the gate has yet to hear of: written with the change, removed when the gate has it.
CREATE TABLE gate_tasks (
  audit_id   BIGINT NOT NULL PRIMARY KEY,
  sale_id    BIGINT NOT NULL,
  created_at BIGINT NOT NULL
);

-- A block of ids belongs to whoever raised `next` over it, from the commit on.
CREATE TABLE id_blocks (
  kind   TEXT   COLLATE "C" NOT NULL PRIMARY KEY,
  "next" BIGINT NOT NULL
);

CREATE TABLE audit (
  id      BIGINT NOT NULL PRIMARY KEY,
  "at"    BIGINT NOT NULL,
  actor   TEXT   NOT NULL,
  -- The address it came from; NULL: from inside.
  origin  TEXT,
  action  TEXT   NOT NULL,
  subject TEXT   COLLATE "C" NOT NULL,
  detail  TEXT   NOT NULL
);
CREATE INDEX audit_subject ON audit (subject, id);

-- Who is told of orders (webhooks). One that said 410 is `gone`; a deleted one goes with the last of its deliveries.
CREATE TABLE webhook_endpoints (
  id         BIGINT NOT NULL PRIMARY KEY,
  created_at BIGINT NOT NULL,
  url        TEXT   COLLATE "C" NOT NULL,
  events     TEXT   COLLATE "C" NOT NULL,
  -- What is sent there is signed with it: it must be known, and so stands here as it is.
  secret     TEXT   COLLATE "C" NOT NULL,
  state      TEXT   COLLATE "C" NOT NULL,
  reason     TEXT,
  -- The Idempotency-Key of the call, and whose it was.
  made_with  TEXT   COLLATE "C",
  CONSTRAINT webhook_endpoints_state CHECK (state IN ('active', 'gone', 'deleted'))
);
CREATE UNIQUE INDEX webhook_endpoints_key ON webhook_endpoints (made_with) WHERE made_with IS NOT NULL;

-- One event for one endpoint. Pending with no next_at: it waits for an older one of the same order.
CREATE TABLE webhook_deliveries (
  id          BIGINT NOT NULL PRIMARY KEY,
  endpoint_id BIGINT NOT NULL,
  order_id    BIGINT NOT NULL,
  created_at  BIGINT NOT NULL,
  -- The first try.
  began_at    BIGINT,
  next_at     BIGINT,
  done_at     BIGINT,
  version     INT    NOT NULL,
  tries       INT    NOT NULL,
  last_status INT,
  type        TEXT   COLLATE "C" NOT NULL,
  state       TEXT   COLLATE "C" NOT NULL,
  last_error  TEXT,
  -- What is sent, to the letter.
  body        TEXT   NOT NULL,
  CONSTRAINT webhook_deliveries_state CHECK (state IN ('pending', 'delivered', 'failed')
    AND (state = 'pending') = (done_at IS NULL) AND (done_at IS NULL OR next_at IS NULL))
);
CREATE UNIQUE INDEX webhook_deliveries_order ON webhook_deliveries (order_id, endpoint_id, version);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, done_at, next_at);
CREATE INDEX webhook_deliveries_list ON webhook_deliveries (endpoint_id, id);

-- Written by the probe that asks whether the ledger can store anything.
CREATE TABLE probe (
  one  INT    NOT NULL PRIMARY KEY,
  "at" BIGINT NOT NULL,
  CONSTRAINT probe_one CHECK (one = 1)
);
INSERT INTO probe (one, "at") VALUES (1, 0);
