-- rerunnable
-- Which shop this ledger is of. A gate in Redis is of one ledger: whoever finds another shop's number there does not start.
-- A copy of the database has the same number, and is taken for the same shop.
CREATE TABLE IF NOT EXISTS shop (
  one INT      NOT NULL PRIMARY KEY,
  id  CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  CONSTRAINT shop_one CHECK (one = 1)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
INSERT INTO shop (one, id) VALUES (1, MD5(CONCAT_WS(' ', UUID(), RAND(), RAND(), SYSDATE(6)))) ON DUPLICATE KEY UPDATE one = one;
