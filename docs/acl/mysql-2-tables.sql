-- Step 2 of 2: what the accounts of mysql-1-accounts.sql may do with the tables that `seckill-worker migrate` has made. Use your own
-- names in place of shop, orders, activity and inventory where your configuration does (mysql.tables).

GRANT SELECT, INSERT, UPDATE ON shop.orders TO 'seckill_worker'@'%';
GRANT SELECT, UPDATE ON shop.inventory TO 'seckill_worker'@'%';
GRANT SELECT ON shop.activity TO 'seckill_worker'@'%';
GRANT SELECT ON shop.seckill_schema_migrations TO 'seckill_worker'@'%';
GRANT SELECT, INSERT, DELETE ON shop.seckill_outbox TO 'seckill_worker'@'%';
GRANT SELECT, INSERT, DELETE ON shop.seckill_outbox_sinks TO 'seckill_worker'@'%';

GRANT SELECT ON shop.orders TO 'seckill_syncer'@'%';
GRANT SELECT, INSERT, UPDATE ON shop.inventory TO 'seckill_syncer'@'%';
GRANT SELECT, INSERT, UPDATE ON shop.activity TO 'seckill_syncer'@'%';
GRANT SELECT ON shop.seckill_schema_migrations TO 'seckill_syncer'@'%';

-- The shop, for everything in docs/sql.md. It takes orders further, and inserts and deletes none.
GRANT SELECT, UPDATE (status, reason, updated_at_ms) ON shop.orders TO 'seckill_shop'@'%';
GRANT SELECT, INSERT, UPDATE ON shop.inventory TO 'seckill_shop'@'%';
GRANT SELECT, INSERT, UPDATE ON shop.activity TO 'seckill_shop'@'%';
