# seckill-syncer: keeps Redis equal to MySQL.
#
#   docker build -f docker/syncer.Dockerfile -t seckillgate/syncer .        (from the root of the checkout)
FROM golang:1.26-alpine AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=unknown
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.release=$VERSION" -o /seckill-syncer ./syncer

# Alpine rather than an empty image: the health check needs wget, and a person with a problem needs a shell.
FROM alpine:3.22
RUN apk add --no-cache ca-certificates tzdata && adduser -D -H -u 10001 seckill
COPY --from=build /seckill-syncer /usr/local/bin/seckill-syncer
USER seckill
# Health and figures; on loopback by default, which nobody outside the container could reach.
ENV SECKILL_HTTP_LISTEN=0.0.0.0:9302
EXPOSE 9302
# Alive, not ready: a dependency that is down is no reason to restart this process.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD wget -q -O /dev/null http://127.0.0.1:9302/livez || exit 1
ENTRYPOINT ["/usr/local/bin/seckill-syncer"]
CMD ["run"]
