{{- /* REPLACE, DELETE and INSERT, and the restore of an older dump move forward too (E104). */ -}}
CREATE TRIGGER {{.Name}} BEFORE INSERT ON {{.Inventory}} FOR EACH ROW
SET NEW.{{.Version}} = GREATEST({{.Micros}}, IF(NEW.{{.Version}} < {{.MaxVersion}}, NEW.{{.Version}}, 0))
