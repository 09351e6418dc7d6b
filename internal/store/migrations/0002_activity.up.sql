CREATE TABLE {{.Activity}} (
  activity_id  BIGINT       NOT NULL,
  item_id      BIGINT       NOT NULL,
  title        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
  starts_at_ms BIGINT       NOT NULL,
  ends_at_ms   BIGINT       NOT NULL,
  max_per_user BIGINT       NOT NULL DEFAULT 1,
  state        VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'open',
  PRIMARY KEY (activity_id),
  KEY item_ends (item_id, ends_at_ms),
  CHECK (activity_id > 0 AND item_id > 0),
  CHECK (starts_at_ms > 0 AND ends_at_ms > starts_at_ms),
  CHECK (max_per_user BETWEEN 1 AND 1000000),
  CHECK (state IN ('open', 'paused', 'closed'))
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
