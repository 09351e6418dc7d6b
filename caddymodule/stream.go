package caddymodule

import (
	"net/http"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/edge"
)

// lastID is the id of a stream's last event. A browser's EventSource reconnects after every end of a stream, and sends the
// id of the last event that it saw; 204 is the one answer that makes it stop.
const lastID = "final"

func wantsStream(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// stream follows an order by server-sent events: one for what it is now, one for each change, and the end once it is final.
func (h *Orders) stream(w http.ResponseWriter, r *http.Request, b backend, q edge.Query) error {
	if r.Header.Get("Last-Event-Id") == lastID {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	follow, reason := b.follow(q)
	if reason != edge.Accepted {
		return h.refuse(w, r, fault{reason: reason})
	}
	defer follow.Close()
	ctx, cancel := h.untilShutdown(r.Context())
	defer cancel()

	rc := http.NewResponseController(w)
	for begun := false; ; {
		v, changed, done, reason := follow.Next(ctx, time.Duration(h.Heartbeat))
		if reason != edge.Accepted {
			if !begun {
				return h.refuse(w, r, fault{reason: reason})
			}
			return nil // the client reconnects and then hears it
		}
		if !begun {
			begun = true
			note(r, q.Activity, "stream", "stream")
			replacer(r).Set("seckill.order_id", q.OrderID)
			head := w.Header()
			head.Set("Content-Type", "text/event-stream")
			head.Set("Cache-Control", "no-store")
			head.Set("X-Accel-Buffering", "no") // for an nginx in front
			w.WriteHeader(http.StatusOK)
			if _, err := w.Write([]byte("retry: 2000\n\n")); err != nil {
				return nil
			}
			changed = true
		}
		if changed || !done {
			if _, err := w.Write(event(v, changed)); err != nil {
				return nil
			}
			if err := rc.Flush(); err != nil {
				return nil
			}
		}
		if done {
			return nil
		}
	}
}

// event is a view as an event, or a comment when there is no news.
func event(v edge.OrderView, changed bool) []byte {
	if !changed {
		return []byte(": no news\n\n")
	}
	b := make([]byte, 0, 256)
	if v.Final {
		b = append(b, "id: "+lastID+"\n"...)
	}
	b = append(b, "data: "...)
	b = append(b, viewJSON(v)...)
	return append(b, "\n\n"...)
}
