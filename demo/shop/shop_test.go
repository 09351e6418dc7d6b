package shop

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

func do(t *testing.T, s *Shop, method, path string, form url.Values, header http.Header, cookies ...*http.Cookie) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
	for k, v := range header {
		r.Header[k] = v
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, c := range cookies {
		r.AddCookie(c)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result()
}

func testShop() *Shop { return New(Config{Key: testKey, Sale: func() Sale { return testSale }}) }

func TestLogInSetsASignedCookie(t *testing.T) {
	s := testShop()
	resp := do(t, s, "POST", "/login", url.Values{"name": {"  小明 "}}, nil)
	if resp.StatusCode != http.StatusSeeOther || len(resp.Cookies()) != 1 {
		t.Fatalf("%d, %v", resp.StatusCode, resp.Cookies())
	}
	c := resp.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Name != Cookie {
		t.Errorf("cookie %+v", c)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.AddCookie(c)
	if got := s.user(r); got != "小明" {
		t.Errorf("user %q", got)
	}
	for name, value := range map[string]string{"tampered": c.Value + "x", "empty": "", "old": old(t)} {
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(&http.Cookie{Name: Cookie, Value: value})
		if got := s.user(r); got != "" {
			t.Errorf("%s: user %q", name, got)
		}
	}
}

func old(t *testing.T) string {
	t.Helper()
	token, err := Token(testKey, "u", time.Now().Add(-48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestBadNamesAreToldSo(t *testing.T) {
	for _, name := range []string{"", "   ", strings.Repeat("长", 25), "a\nb"} {
		resp := do(t, testShop(), "POST", "/login", url.Values{"name": {name}}, nil)
		if resp.StatusCode != http.StatusBadRequest || len(resp.Cookies()) != 0 {
			t.Errorf("%q: %d", name, resp.StatusCode)
		}
	}
}

func TestLanguage(t *testing.T) {
	for header, want := range map[string]string{
		"": "zh", "zh-CN,zh;q=0.9,en;q=0.8": "zh", "en-US,en;q=0.9": "en", "de,en;q=0.5": "en", "fr": "zh", "en;q=0.3,zh;q=0.7": "zh",
		"en;q=rubbish": "zh",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept-Language", header)
		if got := languageOf(r); got != want {
			t.Errorf("%q: %s, want %s", header, got, want)
		}
	}
	resp := do(t, testShop(), "POST", "/language", url.Values{"lang": {"en"}}, nil)
	r := httptest.NewRequest("GET", "/", nil)
	r.AddCookie(resp.Cookies()[0])
	if got := languageOf(r); got != "en" {
		t.Errorf("after the choice: %s", got)
	}
}

func TestBothLanguagesHaveAllTexts(t *testing.T) {
	for key := range texts["zh"] {
		if texts["en"][key] == "" {
			t.Errorf("en lacks %s", key)
		}
	}
	if len(texts["zh"]) != len(texts["en"]) {
		t.Errorf("zh has %d texts, en %d", len(texts["zh"]), len(texts["en"]))
	}
}

func TestOtherSitesCannotPost(t *testing.T) {
	for site, want := range map[string]int{"cross-site": 403, "same-site": 403, "same-origin": 303, "none": 303, "": 303} {
		resp := do(t, testShop(), "POST", "/login", url.Values{"name": {"u"}}, http.Header{"Sec-Fetch-Site": {site}})
		if resp.StatusCode != want {
			t.Errorf("%q: %d, want %d", site, resp.StatusCode, want)
		}
	}
}

func TestNamesAreEscaped(t *testing.T) {
	resp := do(t, testShop(), "POST", "/login", url.Values{"name": {"</script><b>x"}}, nil)
	page := do(t, testShop(), "GET", "/", nil, nil, resp.Cookies()...)
	var b strings.Builder
	if err := page.Write(&b); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "</script><b>") {
		t.Error("the name stands in the page as markup")
	}
}

func TestPayingNeedsALogIn(t *testing.T) {
	if resp := do(t, testShop(), "POST", "/orders/x/pay", nil, nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("%d", resp.StatusCode)
	}
	if resp := do(t, testShop(), "GET", "/assets/page.html", nil, nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("the template is served: %d", resp.StatusCode)
	}
}
