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

CREATE TABLE posts (
  id             INTEGER PRIMARY KEY,
  author         TEXT    NOT NULL,
  title          TEXT    NOT NULL,
  content        TEXT    NOT NULL,
  likes_count    INTEGER NOT NULL DEFAULT 0 CHECK (likes_count >= 0),
  comments_count INTEGER NOT NULL DEFAULT 0 CHECK (comments_count >= 0),
  -- Raised by one in every transaction that changes who likes it: the count with the larger rev is the newer.
  likes_rev      INTEGER NOT NULL DEFAULT 0,
  status         TEXT    NOT NULL DEFAULT 'live' CHECK (status IN ('live', 'deleted')),
  -- Raised by every edit and by the deletion, and by nothing else.
  version        INTEGER NOT NULL DEFAULT 1,
  created_at     INTEGER NOT NULL,
  updated_at     INTEGER NOT NULL
) STRICT;
-- Ids are ordered by time, so these are also the lists from the newest on. Deleted posts are not in their way.
CREATE INDEX posts_live ON posts (status, id);
CREATE INDEX posts_author ON posts (author, status, id);

-- P8: one row for each pair that was ever liked. It stays when the like is taken back, with its number.
CREATE TABLE post_likes (
  post_id    INTEGER NOT NULL,
  -- Whoever the token named.
  liker      TEXT    NOT NULL,
  liked      INTEGER NOT NULL CHECK (liked IN (0, 1)),
  -- Epoch × 2^40 + n (model/like.ts): of two changes of a pair the larger number is the newer.
  number     INTEGER NOT NULL,
  changed_at INTEGER NOT NULL,
  PRIMARY KEY (post_id, liker)
) STRICT, WITHOUT ROWID;
CREATE INDEX post_likes_newest ON post_likes (post_id, changed_at, liker) WHERE liked = 1;
CREATE INDEX post_likes_liker ON post_likes (liker, changed_at, post_id) WHERE liked = 1;

CREATE TABLE comments (
  id            INTEGER PRIMARY KEY,
  post_id       INTEGER NOT NULL,
  -- The comment that it is a reply to, itself never a reply; NULL: it is a comment on the post.
  parent_id     INTEGER,
  -- The reply that it answers, under the same parent; NULL: it answers its parent.
  answers       INTEGER,
  author        TEXT    NOT NULL,
  content       TEXT    NOT NULL,
  likes_count   INTEGER NOT NULL DEFAULT 0 CHECK (likes_count >= 0),
  replies_count INTEGER NOT NULL DEFAULT 0 CHECK (replies_count >= 0),
  likes_rev     INTEGER NOT NULL DEFAULT 0,
  status        TEXT    NOT NULL DEFAULT 'live' CHECK (status IN ('live', 'deleted')),
  version       INTEGER NOT NULL DEFAULT 1,
  created_at    INTEGER NOT NULL,
  updated_at    INTEGER NOT NULL,
  -- The parent that it is listed under (0: the post); NULL: it is not listed, since it is deleted and nobody replied.
  listed        INTEGER GENERATED ALWAYS AS (CASE WHEN status = 'live' OR replies_count > 0 THEN coalesce(parent_id, 0) END) VIRTUAL,
  CHECK (answers IS NULL OR parent_id IS NOT NULL)
) STRICT;
CREATE INDEX comments_newest ON comments (post_id, listed, id);
CREATE INDEX comments_liked ON comments (post_id, listed, likes_count, id);
CREATE INDEX comments_author ON comments (author, status, id);

CREATE TABLE comment_likes (
  comment_id INTEGER NOT NULL,
  liker      TEXT    NOT NULL,
  liked      INTEGER NOT NULL CHECK (liked IN (0, 1)),
  number     INTEGER NOT NULL,
  changed_at INTEGER NOT NULL,
  PRIMARY KEY (comment_id, liker)
) STRICT, WITHOUT ROWID;
CREATE INDEX comment_likes_newest ON comment_likes (comment_id, changed_at, liker) WHERE liked = 1;
CREATE INDEX comment_likes_liker ON comment_likes (liker, changed_at, comment_id) WHERE liked = 1;

-- The fence of likes: how they are decided, and from which epoch on their events count. A number is epoch × 2^40 + n and has 63 bits.
CREATE TABLE like_shards (
  shard INTEGER PRIMARY KEY CHECK (shard BETWEEN 0 AND 7),
  epoch INTEGER NOT NULL CHECK (epoch BETWEEN 1 AND 8388607),
  mode  TEXT    NOT NULL CHECK (mode IN ('direct', 'counted'))
) STRICT;
INSERT INTO like_shards (shard, epoch, mode) VALUES
  (0, 1, 'direct'), (1, 1, 'direct'), (2, 1, 'direct'), (3, 1, 'direct'),
  (4, 1, 'direct'), (5, 1, 'direct'), (6, 1, 'direct'), (7, 1, 'direct');
