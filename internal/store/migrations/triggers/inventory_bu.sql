{{- /* A writer may ask for a later version than the clock's, never for an earlier one, nor for one past what a double holds. */ -}}
CREATE TRIGGER {{.Name}} BEFORE UPDATE ON {{.Inventory}} FOR EACH ROW
SET NEW.{{.Version}} = GREATEST(OLD.{{.Version}} + 1, {{.Micros}}, IF(NEW.{{.Version}} < {{.MaxVersion}}, NEW.{{.Version}}, 0))
