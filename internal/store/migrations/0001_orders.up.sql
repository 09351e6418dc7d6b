CREATE TABLE {{.Orders}} (
  order_id      CHAR(36)     CHARACTER SET ascii   COLLATE ascii_bin   NOT NULL,
  activity_id   BIGINT       NOT NULL,
  user_id       VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  item_id       BIGINT       NOT NULL,
  quantity      BIGINT       NOT NULL,
  status        VARCHAR(16)  CHARACTER SET ascii   COLLATE ascii_bin   NOT NULL,
  reason        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
  extra         VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  created_at_ms BIGINT       NOT NULL DEFAULT ({{.Micros}} DIV 1000),
  updated_at_ms BIGINT       NOT NULL DEFAULT ({{.Micros}} DIV 1000),
  live          TINYINT GENERATED ALWAYS AS (CASE WHEN status IN ({{.Dead}}) THEN NULL ELSE 1 END) VIRTUAL,
  PRIMARY KEY (order_id),
  UNIQUE KEY one_live_order (activity_id, user_id, live),
  KEY activity_order (activity_id, order_id),
  KEY status_updated (status, updated_at_ms)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
