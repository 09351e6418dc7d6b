// Package told records what buyers were told, one JSON object a line, so that it can be compared later with what became
// of their orders. The load generator writes such a file and the invariant checker reads it.
package told

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// Unknown is the Answer to a request that got none: a time-out, a broken connection, a page that is not the gateway's.
// Such a request may have bought or not.
const Unknown = "unknown"

// Record is one request to buy and everything its buyer heard of it.
type Record struct {
	AtMs     int64  `json:"at_ms"` // when it was sent, epoch ms
	Activity int64  `json:"activity_id"`
	User     string `json:"user_id"`
	Quantity int64  `json:"quantity"`
	HTTP     int    `json:"http"` // 0: no answer

	// Answer is the status of an accepted order ("queued", "processing"), the reason of a refusal, or Unknown.
	Answer string `json:"answer"`
	// OrderID is the accepted order's id, or that of the order that stood in the way (already_ordered).
	OrderID string `json:"order_id,omitempty"`
	// Cause says why the answer is Unknown: "connection refused", "http 502".
	Cause string `json:"cause,omitempty"`

	// Final is the last final status that the buyer read afterwards ("confirmed", "failed"); empty: none, or never asked.
	Final       string `json:"final,omitempty"`
	FinalReason string `json:"final_reason,omitempty"`
}

// Accepted says whether the buyer was told that an order exists.
func (r *Record) Accepted() bool { return r.HTTP == http.StatusAccepted && r.OrderID != "" }

// Refused says whether the buyer was told that this request bought nothing.
func (r *Record) Refused() bool { return !r.Accepted() && r.Answer != Unknown }

// Writer writes records from any number of goroutines.
type Writer struct {
	mu  sync.Mutex
	buf *bufio.Writer
	enc *json.Encoder
	err error
}

// NewWriter writes to w. Close flushes and does not close w.
func NewWriter(w io.Writer) *Writer {
	buf := bufio.NewWriterSize(w, 1<<16)
	return &Writer{buf: buf, enc: json.NewEncoder(buf)}
}

// Write adds a record. The first failure is kept for Close.
func (w *Writer) Write(r *Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.enc.Encode(r)
	}
}

// Close flushes, and gives the first error of all.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.buf.Flush(); w.err == nil {
		w.err = err
	}
	if w.err != nil {
		return fmt.Errorf("write what buyers were told: %w", w.err)
	}
	return nil
}

// Read gives the records of r to fn, those of other activities left out (activity 0: all).
func Read(r io.Reader, activity int64, fn func(*Record) error) error {
	dec := json.NewDecoder(bufio.NewReaderSize(r, 1<<16))
	for n := 1; ; n++ {
		var rec Record
		err := dec.Decode(&rec)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what buyers were told, record %d: %w", n, err)
		}
		if activity != 0 && rec.Activity != activity {
			continue
		}
		if err := fn(&rec); err != nil {
			return err
		}
	}
}
