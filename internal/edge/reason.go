package edge

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/seckillgate/seckillgate/internal/gate"
)

// Reason is a refusal's word in the HTTP contract; empty means accepted.
type Reason = gate.Reason

// The words of the contract.
const (
	Accepted              = gate.Pass
	BadRequest     Reason = "bad_request"
	NoUser         Reason = "no_user"
	NotStarted            = gate.NotStarted
	NotFound              = gate.NotFound
	SoldOut               = gate.SoldOut
	AlreadyOrdered Reason = "already_ordered"
	Ended                 = gate.Ended
	TooLarge       Reason = "too_large"
	TooEarly       Reason = "too_early"
	RateLimited    Reason = "rate_limited"
	TooFrequent    Reason = "too_frequent"
	Unavailable           = gate.Unavailable
)

// Lang is a language of the message catalogue.
type Lang uint8

// Chinese is the default.
const (
	Chinese Lang = iota
	English
)

// Tag is the language's tag for Content-Language.
func (l Lang) Tag() string {
	if l == English {
		return "en"
	}
	return "zh"
}

type words struct {
	status int
	zh, en string
}

func (r words) in(l Lang) string {
	if l == English {
		return r.en
	}
	return r.zh
}

var contract = map[Reason]words{
	Accepted:       {http.StatusAccepted, "已受理", "Accepted"},
	BadRequest:     {http.StatusBadRequest, "请求参数错误", "The request is not valid"},
	NoUser:         {http.StatusUnauthorized, "请先登录", "Please log in first"},
	NotStarted:     {http.StatusForbidden, "活动尚未开始", "The sale has not started yet"},
	NotFound:       {http.StatusNotFound, "活动不存在", "There is no such sale"},
	SoldOut:        {http.StatusConflict, "已售罄", "Sold out"},
	AlreadyOrdered: {http.StatusConflict, "您已参与本次活动", "You have already ordered in this sale"},
	Ended:          {http.StatusGone, "活动已结束", "The sale has ended"},
	TooLarge:       {http.StatusRequestEntityTooLarge, "请求体过大", "The request body is too large"},
	TooEarly:       {http.StatusTooEarly, "请重试", "Please try again"},
	RateLimited:    {http.StatusTooManyRequests, "请求过于频繁，请稍后再试", "Too many requests, please try again later"},
	TooFrequent:    {http.StatusTooManyRequests, "请勿重复提交", "Please do not submit again so soon"},
	Unavailable:    {http.StatusServiceUnavailable, "系统繁忙，请稍后再试", "The system is busy, please try again later"},
}

// HTTPStatus gives the status code of a reason; 202 for Accepted and 503 for one that is not of the contract.
func HTTPStatus(r Reason) int {
	if w, ok := contract[r]; ok {
		return w.status
	}
	return http.StatusServiceUnavailable
}

// Message gives a reason's text for people.
func Message(r Reason, l Lang) string {
	if w, ok := contract[r]; ok {
		return w.in(l)
	}
	return contract[Unavailable].in(l)
}

// Negotiate picks the language of an Accept-Language header: the one of higher weight, the first of equals, and Chinese
// where the header asks for neither.
func Negotiate(acceptLanguage string) Lang {
	best, weight := Chinese, 0.0
	const most = 16 // the header is the buyer's: read no more of it than a browser sends
	for range most {
		item, rest, more := strings.Cut(acceptLanguage, ",")
		tag, params, _ := strings.Cut(item, ";")
		primary, _, _ := strings.Cut(strings.TrimSpace(tag), "-")
		var l Lang
		known := true
		switch {
		case strings.EqualFold(primary, "zh"):
			l = Chinese
		case strings.EqualFold(primary, "en"):
			l = English
		default:
			known = false
		}
		if q := quality(params); known && q > weight {
			best, weight = l, q
		}
		if !more {
			break
		}
		acceptLanguage = rest
	}
	return best
}

// quality reads "q=0.8"; 1 where there is none, 0 where it is not a number from 0 to 1.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if !strings.EqualFold(name, "q") {
			continue
		}
		q, err := strconv.ParseFloat(value, 64)
		if err != nil || !(q >= 0 && q <= 1) {
			return 0
		}
		return q
	}
	return 1
}
