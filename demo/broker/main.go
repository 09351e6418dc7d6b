// Broker is the demo's embedded Kafka by itself, for the benchmarks:
//
//	broker FOLDER TOPIC
//
// It keeps its log in the folder, has the topic with one partition, writes its address to FOLDER/address, and serves until it is
// ended.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/seckillgate/seckillgate/demo/stack"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: broker FOLDER TOPIC")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir, topic string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	kafka, err := stack.StartKafka(dir, 1, topic)
	if err != nil {
		return err
	}
	defer kafka.Stop()
	file := filepath.Join(dir, "address")
	if err := os.WriteFile(file, []byte(kafka.Brokers[0]), 0o600); err != nil { //nolint:gosec // G703: the caller's own folder
		return err
	}
	<-stop
	return nil
}
