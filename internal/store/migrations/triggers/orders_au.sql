{{- /* An order that dies gives its stock back in the same transaction, so a shop only sets the status. Whoever listens is told of
       every change of status; each by an INSERT of one row, since INSERT ... SELECT would hold the table's counter to the end of
       the shop's statement. */ -}}
CREATE TRIGGER {{.Name}} AFTER UPDATE ON {{.Orders}} FOR EACH ROW
BEGIN
  IF OLD.status NOT IN ({{.Dead}}) AND NEW.status IN ({{.Dead}}) THEN
    UPDATE {{.Inventory}}
       SET {{.Stock}} = {{.Stock}} + OLD.quantity, {{.Version}} = GREATEST({{.Version}} + 1, {{.Micros}})
     WHERE {{.Item}} = OLD.item_id;
  END IF;
  IF NEW.status <> OLD.status THEN
    IF EXISTS (SELECT 1 FROM {{.Sinks}} WHERE sink = 1) THEN
      INSERT INTO {{.Outbox}} (sink, order_id, status, reason) VALUES (1, NEW.order_id, NEW.status, NEW.reason);
    END IF;
    IF EXISTS (SELECT 1 FROM {{.Sinks}} WHERE sink = 2) THEN
      INSERT INTO {{.Outbox}} (sink, order_id, status, reason) VALUES (2, NEW.order_id, NEW.status, NEW.reason);
    END IF;
  END IF;
END
