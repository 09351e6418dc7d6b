-- Step 1 of 2: the accounts of seckillgate, for MySQL 8 and later and MariaDB. An administrator runs it once, before the first
-- `seckill-worker migrate`; mysql-2-tables.sql follows when the tables are there. docs/security.md tells more.
--
-- Put passwords of your own in place of the four that end with _PASSWORD, your database's name in place of shop, and the network
-- of the processes in place of % (such as 10.1.%).

CREATE USER 'seckill_migrate'@'%' IDENTIFIED BY 'MIGRATE_PASSWORD';
CREATE USER 'seckill_worker'@'%' IDENTIFIED BY 'WORKER_PASSWORD';
CREATE USER 'seckill_syncer'@'%' IDENTIFIED BY 'SYNCER_PASSWORD';
CREATE USER 'seckill_shop'@'%' IDENTIFIED BY 'SHOP_PASSWORD';

-- The triggers run with this account's rights, so it must stay. To make them it needs, while the server writes a binary log,
-- log_bin_trust_function_creators = 1 there, or SUPER.
GRANT CREATE, ALTER, INDEX, TRIGGER, SELECT, INSERT, UPDATE, DELETE ON shop.* TO 'seckill_migrate'@'%';

-- Reading the binary log is a right of the whole server. MariaDB calls the second one BINLOG MONITOR and knows this name too.
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'seckill_syncer'@'%';
