-- Numbered seats, and what a sale says about itself.

ALTER TABLE sales ADD COLUMN description TEXT;
-- An https URL.
ALTER TABLE sales ADD COLUMN image TEXT;
-- A JSON object of text values.
ALTER TABLE sales ADD COLUMN metadata TEXT;
-- When the event begins that it sells tickets for. No order depends on it.
ALTER TABLE sales ADD COLUMN starts_at INTEGER;
ALTER TABLE sales ADD COLUMN venue TEXT;
-- The epoch that the items had when one was last added, repriced or taken off sale: gates of this epoch and below do not know the items
-- as they are.
ALTER TABLE sales ADD COLUMN items_epoch INTEGER NOT NULL DEFAULT 0;

ALTER TABLE items ADD COLUMN on_sale INTEGER NOT NULL DEFAULT 1 CHECK (on_sale IN (0, 1));

-- What an item says about itself, and the map of its seats. Both are apart from the item's row: every commit of orders updates that row,
-- and SQLite writes an updated row as a whole, however long it is. An item without such texts has no row here.
CREATE TABLE item_texts (
  item_id     INTEGER PRIMARY KEY,
  description TEXT,
  image       TEXT,
  metadata    TEXT
) STRICT;

-- The seats of a seated item (model/seat-map.ts), as text in parts. Never changed; the item's total is the number of its seats.
CREATE TABLE seat_maps (
  item_id INTEGER NOT NULL,
  part    INTEGER NOT NULL,
  content TEXT    NOT NULL,
  PRIMARY KEY (item_id, part)
) STRICT;

-- P1: one row per seat of a live order, or of the house (order 0): blocked. `seat` is the seat's place in its item's map, from 0. Seats
-- of orders are derived from the orders, as claims are.
CREATE TABLE seat_claims (
  item_id  INTEGER NOT NULL,
  seat     INTEGER NOT NULL CHECK (seat >= 0),
  order_id INTEGER NOT NULL,
  PRIMARY KEY (item_id, seat)
) STRICT, WITHOUT ROWID;
-- Nobody ever wrote claims.seat. The column stays: to drop it, SQLite would write the whole table.
DROP INDEX claims_seat;

-- '12.13': where the order sits now, or sat when it ended; NULL: its item is counted.
ALTER TABLE orders ADD COLUMN seats TEXT;
-- The seats that it was admitted with, by which a repeat of its message is recognized; NULL: it was never moved.
ALTER TABLE orders ADD COLUMN admitted_seats TEXT;

-- Orders that were moved to other seats and whose holds the gate has yet to move. Those that it has moved, since done_at, are kept for a
-- while: a gate that is built from a snapshot hears of every move of a later rev again.
CREATE TABLE seat_moves (
  order_id   INTEGER NOT NULL,
  -- The version that the move gave the order.
  version    INTEGER NOT NULL,
  sale_id    INTEGER NOT NULL,
  item_id    INTEGER NOT NULL,
  buyer      TEXT    NOT NULL,
  from_seats TEXT    NOT NULL,
  to_seats   TEXT    NOT NULL,
  -- The gate holds the new seats for the house under it.
  audit_id   INTEGER NOT NULL,
  rev        INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  done_at    INTEGER,
  PRIMARY KEY (order_id, version)
) STRICT, WITHOUT ROWID;
CREATE INDEX seat_moves_waiting ON seat_moves (done_at, created_at);
CREATE INDEX seat_moves_sale ON seat_moves (sale_id, rev);
