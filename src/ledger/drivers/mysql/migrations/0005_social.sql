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

-- No foreign keys between these tables: inserting a like would lock its post, and then deadlock with whoever counts it.

CREATE TABLE IF NOT EXISTS posts (
  id             BIGINT         NOT NULL PRIMARY KEY,
  author         VARBINARY(512) NOT NULL,
  title          VARCHAR(200)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  content        TEXT           CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  likes_count    INT            NOT NULL DEFAULT 0,
  comments_count INT            NOT NULL DEFAULT 0,
  -- Raised by one in every transaction that changes who likes it: the count with the larger rev is the newer.
  likes_rev      BIGINT         NOT NULL DEFAULT 0,
  status         VARCHAR(16)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'live',
  -- Raised by every edit and by the deletion, and by nothing else.
  version        INT            NOT NULL DEFAULT 1,
  created_at     BIGINT         NOT NULL,
  updated_at     BIGINT         NOT NULL,
  -- Ids are ordered by time, so these are also the lists from the newest on. Deleted posts are not in their way.
  KEY posts_live (status, id),
  KEY posts_author (author, status, id),
  CONSTRAINT posts_counts CHECK (likes_count >= 0 AND comments_count >= 0),
  CONSTRAINT posts_status CHECK (status IN ('live', 'deleted'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- P8: one row for each pair that was ever liked. It stays when the like is taken back, with its number.
CREATE TABLE IF NOT EXISTS post_likes (
  post_id    BIGINT         NOT NULL,
  -- Whoever the token named.
  liker      VARBINARY(512) NOT NULL,
  liked      SMALLINT       NOT NULL,
  -- Epoch × 2^40 + n (model/like.ts): of two changes of a pair the larger number is the newer.
  number     BIGINT         NOT NULL,
  changed_at BIGINT         NOT NULL,
  PRIMARY KEY (post_id, liker),
  -- Each is continued by the rest of the primary key.
  KEY post_likes_newest (post_id, liked, changed_at),
  KEY post_likes_liker (liker, liked, changed_at),
  CONSTRAINT post_likes_liked CHECK (liked IN (0, 1))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS comments (
  id            BIGINT         NOT NULL PRIMARY KEY,
  post_id       BIGINT         NOT NULL,
  -- The comment that it is a reply to, itself never a reply; NULL: it is a comment on the post.
  parent_id     BIGINT         NULL,
  -- The reply that it answers, under the same parent; NULL: it answers its parent.
  answers       BIGINT         NULL,
  author        VARBINARY(512) NOT NULL,
  content       TEXT           CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  likes_count   INT            NOT NULL DEFAULT 0,
  replies_count INT            NOT NULL DEFAULT 0,
  likes_rev     BIGINT         NOT NULL DEFAULT 0,
  status        VARCHAR(16)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'live',
  version       INT            NOT NULL DEFAULT 1,
  created_at    BIGINT         NOT NULL,
  updated_at    BIGINT         NOT NULL,
  -- The parent that it is listed under (0: the post); NULL: it is not listed, since it is deleted and nobody replied.
  listed        BIGINT         GENERATED ALWAYS AS (CASE WHEN status = 'live' OR replies_count > 0 THEN COALESCE(parent_id, 0) END) VIRTUAL,
  KEY comments_newest (post_id, listed, id),
  KEY comments_liked (post_id, listed, likes_count, id),
  KEY comments_author (author, status, id),
  CONSTRAINT comments_counts CHECK (likes_count >= 0 AND replies_count >= 0),
  CONSTRAINT comments_status CHECK (status IN ('live', 'deleted')),
  CONSTRAINT comments_answers CHECK (answers IS NULL OR parent_id IS NOT NULL)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS comment_likes (
  comment_id BIGINT         NOT NULL,
  liker      VARBINARY(512) NOT NULL,
  liked      SMALLINT       NOT NULL,
  number     BIGINT         NOT NULL,
  changed_at BIGINT         NOT NULL,
  PRIMARY KEY (comment_id, liker),
  KEY comment_likes_newest (comment_id, liked, changed_at),
  KEY comment_likes_liker (liker, liked, changed_at),
  CONSTRAINT comment_likes_liked CHECK (liked IN (0, 1))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The fence of likes: how they are decided, and from which epoch on their events count. A number is epoch × 2^40 + n and has 63 bits.
CREATE TABLE IF NOT EXISTS like_shards (
  shard INT         NOT NULL PRIMARY KEY,
  epoch INT         NOT NULL,
  mode  VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  CONSTRAINT like_shards_shard CHECK (shard BETWEEN 0 AND 7),
  CONSTRAINT like_shards_epoch CHECK (epoch BETWEEN 1 AND 8388607),
  CONSTRAINT like_shards_mode CHECK (mode IN ('direct', 'counted'))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
INSERT INTO like_shards (shard, epoch, mode) VALUES
  (0, 1, 'direct'), (1, 1, 'direct'), (2, 1, 'direct'), (3, 1, 'direct'),
  (4, 1, 'direct'), (5, 1, 'direct'), (6, 1, 'direct'), (7, 1, 'direct')
  ON DUPLICATE KEY UPDATE shard = shard;
