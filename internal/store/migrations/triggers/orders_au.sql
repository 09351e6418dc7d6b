{{- /* An order that dies gives its stock back in the same transaction, so a shop only sets the status. */ -}}
CREATE TRIGGER {{.Name}} AFTER UPDATE ON {{.Orders}} FOR EACH ROW
BEGIN
  IF OLD.status NOT IN ({{.Dead}}) AND NEW.status IN ({{.Dead}}) THEN
    UPDATE {{.Inventory}}
       SET {{.Stock}} = {{.Stock}} + OLD.quantity, {{.Version}} = GREATEST({{.Version}} + 1, {{.Micros}})
     WHERE {{.Item}} = OLD.item_id;
  END IF;
END
