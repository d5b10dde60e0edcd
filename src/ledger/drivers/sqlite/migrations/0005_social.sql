-- Accounts that people register themselves (ACCOUNTS=on). Text compares bytewise; `email` is stored with its domain in lower case.
CREATE TABLE users (
  id            INTEGER PRIMARY KEY,
  -- 'account:<id>': the buyer of its orders and the author of its posts.
  subject       TEXT    NOT NULL UNIQUE CHECK (length(subject) <= 128),
  username      TEXT    NOT NULL UNIQUE CHECK (length(username) BETWEEN 1 AND 50),
  email         TEXT    NOT NULL UNIQUE CHECK (length(email) <= 254),
  -- With the parameters and the salt of its own that it was made with.
  password_hash TEXT    NOT NULL CHECK (length(password_hash) <= 255),
  created_at    INTEGER NOT NULL,
  updated_at    INTEGER NOT NULL
) STRICT;
