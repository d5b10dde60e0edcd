-- Numbered seats, and what a sale says about itself. The version before ignores all of it: columns have defaults, and it writes no seats.

ALTER TABLE sales
  -- When the event begins that it sells tickets for. No order depends on it.
  ADD COLUMN starts_at   BIGINT,
  ADD COLUMN description TEXT,
  -- An https URL.
  ADD COLUMN image       TEXT,
  -- A JSON object of text values.
  ADD COLUMN metadata    TEXT,
  ADD COLUMN venue       TEXT,
  -- The epoch that the items had when one was last added, repriced or taken off sale: gates of this epoch and below do not know the items
  -- as they are.
  ADD COLUMN items_epoch INT NOT NULL DEFAULT 0;

ALTER TABLE items ADD COLUMN on_sale SMALLINT NOT NULL DEFAULT 1 CONSTRAINT items_on_sale CHECK (on_sale IN (0, 1));

-- What an item says about itself, and the map of its seats. Both are apart from the item's row: every commit of orders writes a new copy of
-- that row, however long it is. An item without such texts has no row here.
CREATE TABLE item_texts (
  item_id     BIGINT NOT NULL PRIMARY KEY,
  description TEXT,
  image       TEXT,
  metadata    TEXT
);

-- The seats of a seated item (model/seat-map.ts), as text in parts. Never changed; the item's total is the number of its seats.
CREATE TABLE seat_maps (
  item_id BIGINT NOT NULL,
  part    INT    NOT NULL,
  content TEXT   NOT NULL,
  CONSTRAINT seat_maps_pkey PRIMARY KEY (item_id, part)
);

-- P1: one row per seat of a live order, or of the house (order 0): blocked. `seat` is the seat's place in its item's map, from 0. There
-- is no index by order: an order knows its seats. The table that 0001 made under this name is empty: nothing ever wrote to it.
DROP TABLE seat_claims;
CREATE TABLE seat_claims (
  item_id  BIGINT NOT NULL,
  order_id BIGINT NOT NULL,
  seat     INT    NOT NULL,
  CONSTRAINT seat_claims_pkey PRIMARY KEY (item_id, seat),
  CONSTRAINT seat_claims_seat CHECK (seat >= 0)
);

ALTER TABLE orders
  -- '12.13': where the order sits now, or sat when it ended; NULL: its item is counted.
  ADD COLUMN seats          TEXT COLLATE "C",
  -- The seats that it was admitted with, by which a repeat of its message is recognized; NULL: it was never moved.
  ADD COLUMN admitted_seats TEXT COLLATE "C";

-- Orders that were moved to other seats and whose holds the gate has yet to move. Those that it has moved, since done_at, are kept for a
-- while: a gate that is built from a snapshot hears of every move of a later rev again.
CREATE TABLE seat_moves (
  order_id   BIGINT NOT NULL,
  sale_id    BIGINT NOT NULL,
  item_id    BIGINT NOT NULL,
  -- The gate holds the new seats for the house under it.
  audit_id   BIGINT NOT NULL,
  rev        BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  done_at    BIGINT,
  -- The version that the move gave the order.
  version    INT    NOT NULL,
  buyer      TEXT   COLLATE "C" NOT NULL,
  from_seats TEXT   COLLATE "C" NOT NULL,
  to_seats   TEXT   COLLATE "C" NOT NULL,
  CONSTRAINT seat_moves_pkey PRIMARY KEY (order_id, version)
);
CREATE INDEX seat_moves_waiting ON seat_moves (done_at, created_at);
CREATE INDEX seat_moves_sale ON seat_moves (sale_id, rev);
