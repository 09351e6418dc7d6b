{{- /* The shop's own table keeps its data and gets one column, invisible where the server can: the shop's SELECT * and its
       INSERT without a column list go on as before. A constant default makes this instant and touches no row. */ -}}
{{- if .HasVersion -}}
DO 0
{{- else if .HasInventory -}}
ALTER TABLE {{.Inventory}}
  ADD COLUMN {{.Version}} BIGINT NOT NULL DEFAULT 1 /*!80023 INVISIBLE */ /*M!100303 INVISIBLE */
{{- else -}}
CREATE TABLE {{.Inventory}} (
  {{.Item}}    BIGINT NOT NULL,
  {{.Stock}}   BIGINT NOT NULL CHECK ({{.Stock}} >= 0),
  {{.Version}} BIGINT NOT NULL DEFAULT ({{.Micros}}),
  PRIMARY KEY ({{.Item}})
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
{{- end}}
