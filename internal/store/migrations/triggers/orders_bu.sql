{{- /* The stock of a dead order has gone back and may be sold already, so it cannot come alive again (E109). What a live
       order holds is known from its row, so that must not change either. */ -}}
CREATE TRIGGER {{.Name}} BEFORE UPDATE ON {{.Orders}} FOR EACH ROW
BEGIN
  DECLARE msg VARCHAR(128) CHARACTER SET utf8mb4;
  IF OLD.status IN ({{.Dead}}) AND NEW.status NOT IN ({{.Dead}}) THEN
    SET msg = LEFT(CONCAT('seckill: order ', OLD.order_id, ' is dead (', OLD.status, '): it cannot become ', NEW.status, '; refund it'), 128);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = msg;
  END IF;
  IF OLD.status NOT IN ({{.Dead}}) AND (NEW.quantity <> OLD.quantity OR NEW.item_id <> OLD.item_id) THEN
    SET msg = CONCAT('seckill: order ', OLD.order_id, ' is live: its item and quantity cannot change');
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = msg;
  END IF;
  IF NEW.status <> OLD.status AND NEW.updated_at_ms = OLD.updated_at_ms THEN
    SET NEW.updated_at_ms = {{.Micros}} DIV 1000;
  END IF;
END
