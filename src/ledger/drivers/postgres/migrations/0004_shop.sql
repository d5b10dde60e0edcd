-- Which shop this ledger is of. A gate in Redis is of one ledger: whoever finds another shop's number there does not start.
-- A copy of the database has the same number, and is taken for the same shop.
CREATE TABLE shop (
  one INT  NOT NULL PRIMARY KEY,
  id  TEXT COLLATE "C" NOT NULL,
  CONSTRAINT shop_one CHECK (one = 1)
);
INSERT INTO shop (one, id)
VALUES (1, md5(concat_ws(' ', random(), random(), clock_timestamp(), pg_backend_pid(), txid_current())));
