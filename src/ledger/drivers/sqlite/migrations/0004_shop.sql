-- Which shop this ledger is of. A gate in Redis is of one ledger: whoever finds another shop's number there does not start.
-- A copy of the database has the same number, and is taken for the same shop.
CREATE TABLE shop (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  id  TEXT NOT NULL
) STRICT;
INSERT INTO shop (one, id) VALUES (1, lower(hex(randomblob(16))));
