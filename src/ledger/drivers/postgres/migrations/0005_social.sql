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

CREATE TABLE posts (
  id             BIGINT NOT NULL PRIMARY KEY,
  created_at     BIGINT NOT NULL,
  updated_at     BIGINT NOT NULL,
  -- Raised by one in every transaction that changes who likes it: the count with the larger rev is the newer.
  likes_rev      BIGINT NOT NULL DEFAULT 0,
  likes_count    INT    NOT NULL DEFAULT 0,
  comments_count INT    NOT NULL DEFAULT 0,
  -- Raised by every edit and by the deletion, and by nothing else.
  version        INT    NOT NULL DEFAULT 1,
  author         TEXT   COLLATE "C" NOT NULL,
  status         TEXT   COLLATE "C" NOT NULL DEFAULT 'live',
  title          TEXT   NOT NULL,
  content        TEXT   NOT NULL,
  CONSTRAINT posts_counts CHECK (likes_count >= 0 AND comments_count >= 0),
  CONSTRAINT posts_status CHECK (status IN ('live', 'deleted'))
  -- A hot row changes with every batch of likes: room for its next version on the same page.
) WITH (fillfactor = 70);
-- Ids are ordered by time, so these are also the lists from the newest on. Deleted posts are not in their way.
CREATE INDEX posts_live ON posts (status, id);
CREATE INDEX posts_author ON posts (author, status, id);

-- P8: one row for each pair that was ever liked. It stays when the like is taken back, with its number.
CREATE TABLE post_likes (
  post_id    BIGINT   NOT NULL,
  -- Epoch × 2^40 + n (model/like.ts): of two changes of a pair the larger number is the newer.
  number     BIGINT   NOT NULL,
  changed_at BIGINT   NOT NULL,
  liked      SMALLINT NOT NULL,
  -- Whoever the token named.
  liker      TEXT     COLLATE "C" NOT NULL,
  CONSTRAINT post_likes_pkey PRIMARY KEY (post_id, liker),
  CONSTRAINT post_likes_liked CHECK (liked IN (0, 1))
);
CREATE INDEX post_likes_newest ON post_likes (post_id, changed_at, liker) WHERE liked = 1;
CREATE INDEX post_likes_liker ON post_likes (liker, changed_at, post_id) WHERE liked = 1;

CREATE TABLE comments (
  id            BIGINT NOT NULL PRIMARY KEY,
  post_id       BIGINT NOT NULL,
  -- The comment that it is a reply to, itself never a reply; NULL: it is a comment on the post.
  parent_id     BIGINT,
  -- The reply that it answers, under the same parent; NULL: it answers its parent.
  answers       BIGINT,
  created_at    BIGINT NOT NULL,
  updated_at    BIGINT NOT NULL,
  likes_rev     BIGINT NOT NULL DEFAULT 0,
  -- The parent that it is listed under (0: the post); NULL: it is not listed, since it is deleted and nobody replied.
  listed        BIGINT GENERATED ALWAYS AS (CASE WHEN status = 'live' OR replies_count > 0 THEN COALESCE(parent_id, 0) END) STORED,
  likes_count   INT    NOT NULL DEFAULT 0,
  replies_count INT    NOT NULL DEFAULT 0,
  version       INT    NOT NULL DEFAULT 1,
  author        TEXT   COLLATE "C" NOT NULL,
  status        TEXT   COLLATE "C" NOT NULL DEFAULT 'live',
  content       TEXT   NOT NULL,
  CONSTRAINT comments_counts CHECK (likes_count >= 0 AND replies_count >= 0),
  CONSTRAINT comments_status CHECK (status IN ('live', 'deleted')),
  CONSTRAINT comments_answers CHECK (answers IS NULL OR parent_id IS NOT NULL)
);
CREATE INDEX comments_newest ON comments (post_id, listed, id);
CREATE INDEX comments_liked ON comments (post_id, listed, likes_count, id);
CREATE INDEX comments_author ON comments (author, status, id);

CREATE TABLE comment_likes (
  comment_id BIGINT   NOT NULL,
  number     BIGINT   NOT NULL,
  changed_at BIGINT   NOT NULL,
  liked      SMALLINT NOT NULL,
  liker      TEXT     COLLATE "C" NOT NULL,
  CONSTRAINT comment_likes_pkey PRIMARY KEY (comment_id, liker),
  CONSTRAINT comment_likes_liked CHECK (liked IN (0, 1))
);
CREATE INDEX comment_likes_newest ON comment_likes (comment_id, changed_at, liker) WHERE liked = 1;
CREATE INDEX comment_likes_liker ON comment_likes (liker, changed_at, comment_id) WHERE liked = 1;

-- The fence of likes: how they are decided, and from which epoch on their events count. A number is epoch × 2^40 + n and has 63 bits.
CREATE TABLE like_shards (
  shard INT  NOT NULL PRIMARY KEY,
  epoch INT  NOT NULL,
  mode  TEXT COLLATE "C" NOT NULL,
  CONSTRAINT like_shards_shard CHECK (shard BETWEEN 0 AND 7),
  CONSTRAINT like_shards_epoch CHECK (epoch BETWEEN 1 AND 8388607),
  CONSTRAINT like_shards_mode CHECK (mode IN ('direct', 'counted'))
);
INSERT INTO like_shards (shard, epoch, mode) SELECT shard, 1, 'direct' FROM generate_series(0, 7) AS shard;
