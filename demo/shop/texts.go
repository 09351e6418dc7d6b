package shop

import (
	"net/http"
	"strconv"
	"strings"
)

// languageCookie remembers a choice that was made by hand.
const languageCookie = "lang"

// languageOf is the buyer's choice, else what the browser asks for, else Chinese.
func languageOf(r *http.Request) string {
	if c, err := r.Cookie(languageCookie); err == nil && (c.Value == "en" || c.Value == "zh") {
		return c.Value
	}
	best, weight := "zh", 0.0
	for _, part := range strings.Split(r.Header.Get("Accept-Language"), ",") {
		tag, params, _ := strings.Cut(part, ";")
		q := 1.0
		if _, v, ok := strings.Cut(params, "q="); ok {
			q, _ = strconv.ParseFloat(strings.TrimSpace(v), 64) // not a number: 0
		}
		primary, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(tag)), "-")
		if (primary == "zh" || primary == "en") && q > weight {
			best, weight = primary, q
		}
	}
	return best
}

func (s *Shop) language(w http.ResponseWriter, r *http.Request) {
	lang := r.FormValue("lang")
	if lang != "en" {
		lang = "zh"
	}
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // not Secure: the demo speaks plain HTTP, on loopback only
		Name: languageCookie, Value: lang, Path: "/", MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// texts are all words of the page, by language. Those of refusals come from the gateway, in the buyer's language.
var texts = map[string]map[string]string{
	"zh": {
		"shop": "晨光小店", "title": "限时秒杀", "flash": "秒杀价", "other_lang": "English", "other_lang_code": "en",
		"login_title": "登录后参与秒杀", "login_hint": "演示商店：任意昵称即可登录，无需密码。", "name": "昵称", "login": "登录",
		"logout": "退出", "bad_name": "请输入 1 到 24 个字的昵称", "units": "限量", "unit": "件", "each": "每人限购 1 件",
		"until_start": "距离开抢", "until_end": "距离结束", "over": "本场已结束", "loading": "正在读取活动…",
		"buy": "立即抢购", "not_started": "即将开抢", "open": "抢购中", "sold_out": "已售罄", "ended": "活动已结束",
		"paused": "活动暂停中", "recovering": "系统准备中，请稍候", "login_first": "请先登录",
		"sending": "正在提交…", "queued": "排队中", "processing": "正在处理", "ahead": "前面还有 {n} 单", "next_up": "马上轮到您",
		"queued_hint": "请求已受理，正在落单，请不要离开本页。", "confirmed": "抢到了！",
		"confirmed_hint": "订单已生成，请尽快付款。", "paid": "支付成功", "paid_hint": "我们会尽快发货。",
		"failed": "没有抢到", "failed_sold_out": "库存不足，未产生任何费用。", "failed_other": "订单未成功，未产生任何费用。",
		"cancelled": "订单已取消", "cancelled_hint": "库存已退回，您可以再次抢购。", "dead_hint": "您可以再次抢购。",
		"order": "订单号", "pay": "去付款", "cancel": "取消订单", "again": "稍后再试", "retry_in": "{n} 秒后可再试",
		"next_sale": "下一场已开放", "go": "去看看", "offline": "网络不稳定，正在重试…",
		"change_failed": "操作未成功，请重试。", "days": "天",
		"foot": "这是一个示例商店。抢购请求由前面的网关在内存与 Redis 中承接，经 Kafka 排队，由 MySQL 最终裁决。",
		"why1": "不超卖", "why2": "不丢单", "why3": "毫秒应答",
	},
	"en": {
		"shop": "Daybreak", "title": "Flash sale", "flash": "Flash price", "other_lang": "中文", "other_lang_code": "zh",
		"login_title": "Log in to take part", "login_hint": "A sample shop: any name will do, there is no password.", "name": "Your name", "login": "Log in",
		"logout": "Log out", "bad_name": "Please enter a name of 1 to 24 characters", "units": "Only", "unit": "units", "each": "one per person",
		"until_start": "Starts in", "until_end": "Ends in", "over": "This sale is over", "loading": "Reading the sale…",
		"buy": "Buy now", "not_started": "Starting soon", "open": "On sale", "sold_out": "Sold out", "ended": "Sale ended",
		"paused": "Paused for a moment", "recovering": "Getting ready, one moment", "login_first": "Log in first",
		"sending": "Sending…", "queued": "In the queue", "processing": "Being processed", "ahead": "{n} orders ahead of yours", "next_up": "You are next",
		"queued_hint": "We have your request and are placing the order. Please stay on this page.", "confirmed": "You got it!",
		"confirmed_hint": "Your order stands. Please pay soon.", "paid": "Paid, thank you", "paid_hint": "It will be on its way shortly.",
		"failed": "Not this time", "failed_sold_out": "The stock ran out. You have not been charged.", "failed_other": "The order did not go through. You have not been charged.",
		"cancelled": "Order cancelled", "cancelled_hint": "The unit is back in stock; you may buy again.", "dead_hint": "You may buy again.",
		"order": "Order", "pay": "Pay", "cancel": "Cancel order", "again": "Try again shortly", "retry_in": "Try again in {n} s",
		"next_sale": "The next sale is open", "go": "Take a look", "offline": "Connection lost, trying again…",
		"change_failed": "That did not work. Please try again.", "days": "d",
		"foot": "A sample shop. The gateway in front takes purchases in memory and Redis, queues them in Kafka, and MySQL decides.",
		"why1": "No oversell", "why2": "No lost order", "why3": "Answers in milliseconds",
	},
}
