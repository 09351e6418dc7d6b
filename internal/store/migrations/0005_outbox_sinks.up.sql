{{- /* Who listens. It is in the database so that the shop's own changes, by trigger, are written for nobody in vain. */ -}}
CREATE TABLE {{.Sinks}} (
  sink TINYINT     NOT NULL,
  name VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  PRIMARY KEY (sink)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
