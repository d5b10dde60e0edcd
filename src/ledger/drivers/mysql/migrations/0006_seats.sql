-- rerunnable
-- Numbered seats, and what a sale says about itself. The version before ignores all of it: columns have defaults, and it writes no seats.
--
-- MySQL has no ADD COLUMN IF NOT EXISTS: each statement is chosen by what is there.

-- `starts_at` is when the event begins that it sells tickets for: no order depends on it. `image` is an https URL, `metadata` a JSON
-- object of text values.
SET @change = IF((SELECT count(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'sales' AND column_name = 'venue') = 0,
  'ALTER TABLE sales ADD COLUMN description TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, ADD COLUMN image TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, ADD COLUMN metadata TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, ADD COLUMN starts_at BIGINT NULL, ADD COLUMN venue TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL',
  'DO 0');
PREPARE change_table FROM @change;
EXECUTE change_table;
DEALLOCATE PREPARE change_table;

-- The epoch that the items had when one was last added, repriced or taken off sale: gates of this epoch and below do not know the items
-- as they are.
SET @change = IF((SELECT count(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'sales' AND column_name = 'items_epoch') = 0,
  'ALTER TABLE sales ADD COLUMN items_epoch INT NOT NULL DEFAULT 0',
  'DO 0');
PREPARE change_table FROM @change;
EXECUTE change_table;
DEALLOCATE PREPARE change_table;

SET @change = IF((SELECT count(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'items' AND column_name = 'on_sale') = 0,
  'ALTER TABLE items ADD COLUMN on_sale SMALLINT NOT NULL DEFAULT 1, ADD CONSTRAINT items_on_sale CHECK (on_sale IN (0, 1))',
  'DO 0');
PREPARE change_table FROM @change;
EXECUTE change_table;
DEALLOCATE PREPARE change_table;

-- What an item says about itself, and the map of its seats. Both are apart from the item's row, which every commit of orders updates. An
-- item without such texts has no row here.
CREATE TABLE IF NOT EXISTS item_texts (
  item_id     BIGINT NOT NULL PRIMARY KEY,
  description TEXT   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  image       TEXT   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  metadata    TEXT   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The seats of a seated item (model/seat-map.ts), as text in parts: a statement must fit into a packet. Never changed; the item's total is
-- the number of its seats.
CREATE TABLE IF NOT EXISTS seat_maps (
  item_id BIGINT     NOT NULL,
  part    INT        NOT NULL,
  content MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  PRIMARY KEY (item_id, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- P1: one row per seat of a live order, or of the house (order 0): blocked. `seat` is the seat's place in its item's map, from 0. There
-- is no index by order: an order knows its seats. The table that 0001 made under this name is empty: nothing ever wrote to it.
SET @change = IF((SELECT count(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'seat_claims' AND column_name = 'sale_id') > 0,
  'DROP TABLE seat_claims', 'DO 0');
PREPARE change_table FROM @change;
EXECUTE change_table;
DEALLOCATE PREPARE change_table;
CREATE TABLE IF NOT EXISTS seat_claims (
  item_id  BIGINT NOT NULL,
  seat     INT    NOT NULL,
  order_id BIGINT NOT NULL,
  PRIMARY KEY (item_id, seat),
  CONSTRAINT seat_claims_seat CHECK (seat >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- `seats` ('12.13'): where the order sits now, or sat when it ended; NULL: its item is counted. `admitted_seats`: those that it was
-- admitted with, by which a repeat of its message is recognized; NULL: it was never moved. 100 seats of five digits fit.
SET @change = IF((SELECT count(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'orders' AND column_name = 'seats') = 0,
  'ALTER TABLE orders ADD COLUMN seats VARCHAR(600) CHARACTER SET ascii COLLATE ascii_bin NULL, ADD COLUMN admitted_seats VARCHAR(600) CHARACTER SET ascii COLLATE ascii_bin NULL',
  'DO 0');
PREPARE change_table FROM @change;
EXECUTE change_table;
DEALLOCATE PREPARE change_table;

-- Orders that were moved to other seats and whose holds the gate has yet to move. Those that it has moved, since done_at, are kept for a
-- while: a gate that is built from a snapshot hears of every move of a later rev again.
CREATE TABLE IF NOT EXISTS seat_moves (
  order_id   BIGINT         NOT NULL,
  -- The version that the move gave the order.
  version    INT            NOT NULL,
  sale_id    BIGINT         NOT NULL,
  item_id    BIGINT         NOT NULL,
  buyer      VARBINARY(512) NOT NULL,
  from_seats VARCHAR(600)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  to_seats   VARCHAR(600)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  -- The gate holds the new seats for the house under it.
  audit_id   BIGINT         NOT NULL,
  rev        BIGINT         NOT NULL,
  created_at BIGINT         NOT NULL,
  done_at    BIGINT         NULL,
  PRIMARY KEY (order_id, version),
  KEY seat_moves_waiting (done_at, created_at),
  KEY seat_moves_sale (sale_id, rev)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
