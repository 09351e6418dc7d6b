// Package shop is a small sample shop: log in as anyone, a product page with a countdown and a buy button, and one's order
// with its live result. It stands behind the gateway and knows nothing of it, but that its page sends purchases to
// /seckill/… in place of the shop itself.
package shop

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"
)

//go:embed page.html shop.css shop.js
var files embed.FS

var page = template.Must(template.ParseFS(files, "page.html"))

// Product is what a sale offers. Prices are in cents.
type Product struct {
	Name, NameEN   string
	About, AboutEN string
	Price, Before  int64
	Units          int64 // put on sale at first
}

// Sale is a product in an activity.
type Sale struct {
	Activity int64
	Product  Product
}

// Config of the shop.
type Config struct {
	// Key signs sessions. The gateway has the same one.
	Key []byte
	// DB holds the orders; the shop pays and cancels in it. Its table of orders is `orders`.
	DB *sql.DB
	// Sale gives the sale to show at the moment.
	Sale func() Sale
}

// Shop is the shop's web server.
type Shop struct {
	cfg Config
	mux *http.ServeMux
}

// New makes a shop.
func New(cfg Config) *Shop {
	s := &Shop{cfg: cfg, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /{$}", s.home)
	s.mux.HandleFunc("POST /login", s.login)
	s.mux.HandleFunc("POST /logout", s.logout)
	s.mux.HandleFunc("POST /language", s.language)
	s.mux.HandleFunc("POST /orders/{id}/pay", s.move("PAID", "CONFIRMED"))
	s.mux.HandleFunc("POST /orders/{id}/cancel", s.move("CANCELLED", "CONFIRMED"))
	s.mux.HandleFunc("GET /api/sale", s.current)
	s.mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	s.mux.Handle("GET /assets/", http.StripPrefix("/assets/", assets()))
	return s
}

// assets serves the style and the script.
func assets() http.Handler {
	fs := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "shop.css" && r.URL.Path != "shop.js" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "no-cache")
		fs.ServeHTTP(w, r)
	})
}

// ServeHTTP implements http.Handler.
func (s *Shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; form-action 'self'")
	if r.Method == http.MethodPost && crossSite(r) {
		http.Error(w, "requests from other sites are refused", http.StatusForbidden)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// crossSite says whether another site's page sent a request.
func crossSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}

type view struct {
	T      map[string]string
	Lang   string
	User   string
	Sale   Sale
	Name   string
	About  string
	Price  price
	Before price
	Off    int64 // per cent
	Error  string
	Data   template.JS
}

// price is an amount in parts, so that the page can set the cents smaller.
type price struct{ Whole, Cents string }

func split(cents int64) price {
	return price{fmt.Sprint(cents / 100), fmt.Sprintf("%02d", cents%100)}
}

func (s *Shop) home(w http.ResponseWriter, r *http.Request) { s.show(w, r, http.StatusOK, "") }

func (s *Shop) show(w http.ResponseWriter, r *http.Request, status int, problem string) {
	lang := languageOf(r)
	sale := s.cfg.Sale()
	p := sale.Product
	v := view{
		T: texts[lang], Lang: lang, User: s.user(r), Sale: sale, Name: p.Name, About: p.About, Price: split(p.Price),
		Before: split(p.Before), Error: problem,
	}
	if p.Before > 0 {
		v.Off = 100 - 100*p.Price/p.Before
	}
	if lang == "en" {
		v.Name, v.About = p.NameEN, p.AboutEN
	}
	data, err := json.Marshal(map[string]any{"activity": sale.Activity, "user": v.User, "lang": lang, "t": texts[lang]})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	v.Data = template.JS(data) //nolint:gosec // JSON with <, > and & escaped by its encoder
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept-Language, Cookie")
	w.WriteHeader(status)
	_ = page.Execute(w, v) // it fails only when the buyer has gone
}

func (s *Shop) login(w http.ResponseWriter, r *http.Request) {
	name, err := cleanName(r.FormValue("name"))
	if err != nil {
		s.show(w, r, http.StatusBadRequest, texts[languageOf(r)]["bad_name"])
		return
	}
	token, err := Token(s.cfg.Key, name, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	http.SetCookie(w, sessionCookie(token, sessionLife))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (s *Shop) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, sessionCookie("", -time.Second))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// current tells an open page which sale is on, so that it can lead to the next one.
func (s *Shop) current(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(map[string]int64{"activity_id": s.cfg.Sale().Activity})
}

// move changes the status of the buyer's own order. That is all a shop has to do: the stock of a cancelled order comes
// back in the same transaction, and Redis learns of it from the binlog.
func (s *Shop) move(to, from string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		user := s.user(r)
		if user == "" {
			http.Error(w, "log in first", http.StatusUnauthorized)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		res, err := s.cfg.DB.ExecContext(ctx, "UPDATE orders SET status = ?, updated_at_ms = ? WHERE order_id = ? AND user_id = ? AND status = ?",
			to, time.Now().UnixMilli(), strings.ToLower(r.PathValue("id")), user, from)
		if err != nil {
			http.Error(w, "the order could not be changed, try again", http.StatusServiceUnavailable)
			return
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			http.Error(w, "no such order, or it has changed meanwhile", http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}
