-- rerunnable
-- Accounts that people register themselves (ACCOUNTS=on). Text compares bytewise (VARBINARY, lengths in bytes of UTF-8); `email` is
-- stored with its domain in lower case.
CREATE TABLE IF NOT EXISTS users (
  id            BIGINT          NOT NULL PRIMARY KEY,
  -- 'account:<id>': the buyer of its orders and the author of its posts.
  subject       VARBINARY(128)  NOT NULL,
  username      VARBINARY(200)  NOT NULL,
  email         VARBINARY(1016) NOT NULL,
  -- With the parameters and the salt of its own that it was made with.
  password_hash VARBINARY(255)  NOT NULL,
  created_at    BIGINT          NOT NULL,
  updated_at    BIGINT          NOT NULL,
  UNIQUE KEY users_subject (subject),
  UNIQUE KEY users_username (username),
  UNIQUE KEY users_email (email),
  CONSTRAINT users_name CHECK (LENGTH(username) >= 1)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
