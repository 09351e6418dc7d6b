// Package store is the access to MySQL and MariaDB, which alone decide what was sold. It is the only package with SQL: it
// lands batches of orders, reads them back, takes consistent snapshots for the syncer and keeps the schema.
package store
