{{- /* What somebody still has to be told of an order, one row for each listener. Rows go once they are told. */ -}}
CREATE TABLE {{.Outbox}} (
  sink     TINYINT      NOT NULL,
  seq      BIGINT       NOT NULL AUTO_INCREMENT,
  order_id CHAR(36)     CHARACTER SET ascii   COLLATE ascii_bin   NOT NULL,
  status   VARCHAR(16)  CHARACTER SET ascii   COLLATE ascii_bin   NOT NULL,
  reason   VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
  at_ms    BIGINT       NOT NULL DEFAULT ({{.Micros}} DIV 1000),
  PRIMARY KEY (sink, seq),
  KEY seq (seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
