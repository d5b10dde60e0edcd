-- Accounts that people register themselves (ACCOUNTS=on). Text compares bytewise; `email` is stored with its domain in lower case.
CREATE TABLE users (
  id            BIGINT NOT NULL PRIMARY KEY,
  created_at    BIGINT NOT NULL,
  updated_at    BIGINT NOT NULL,
  -- 'account:<id>': the buyer of its orders and the author of its posts.
  subject       TEXT   COLLATE "C" NOT NULL,
  username      TEXT   COLLATE "C" NOT NULL,
  email         TEXT   COLLATE "C" NOT NULL,
  -- With the parameters and the salt of its own that it was made with.
  password_hash TEXT   COLLATE "C" NOT NULL,
  CONSTRAINT users_subject UNIQUE (subject),
  CONSTRAINT users_username UNIQUE (username),
  CONSTRAINT users_email UNIQUE (email),
  CONSTRAINT users_lengths CHECK (length(subject) <= 128 AND length(username) BETWEEN 1 AND 50
    AND length(email) <= 254 AND length(password_hash) <= 255)
);
