# The gateway: Caddy's standard modules and seckillgate's. Those who need more plugins build theirs with xcaddy (xcaddy.sh).
#
#   docker build -f docker/gateway.Dockerfile -t seckillgate/gateway .        (from the root of the checkout)
FROM golang:1.26-alpine AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=unknown
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags nobadger,nomysql,nopgx \
	-ldflags "-s -w -X github.com/caddyserver/caddy/v2.CustomVersion=seckillgate-$VERSION" -o /caddy ./cmd/caddy

FROM alpine:3.22
RUN apk add --no-cache ca-certificates tzdata && adduser -D -H -u 10001 seckill \
	&& mkdir -p /data /config /etc/caddy && chown seckill /data /config
COPY --from=build /caddy /usr/local/bin/caddy
COPY docker/Caddyfile /etc/caddy/Caddyfile
USER seckill
ENV XDG_DATA_HOME=/data XDG_CONFIG_HOME=/config
VOLUME ["/data", "/config"]
# 8080: the shop. 9300: health and figures, which the network outside has no business with.
EXPOSE 8080 9300
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD wget -q -O /dev/null http://127.0.0.1:9300/livez || exit 1
ENTRYPOINT ["/usr/local/bin/caddy"]
CMD ["run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
