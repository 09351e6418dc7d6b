package order

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// NewID makes a fresh order id: a UUIDv7 in lower case, which sorts by the millisecond it was made in.
func NewID() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	return id.String(), nil
}

// DerivedID is the order id of a request that carries an Idempotency-Key: the same for the same activity, user and key on
// every gateway, so that a repeat meets its own order wherever it arrives and nothing has to be remembered for it. It is a
// UUIDv7 whose time is 0, which no fresh id has, and whose 74 random bits are a hash. attempt counts the ids before it that
// ended in a refusal: those are fenced for good, so the buyer's next try needs another.
func DerivedID(activity int64, user, key string, attempt int) string {
	h := sha256.New()
	var b [8]byte
	for _, part := range []string{user, key} {
		binary.BigEndian.PutUint64(b[:], uint64(len(part)))
		h.Write(b[:])
		h.Write([]byte(part))
	}
	for _, n := range []uint64{uint64(activity), uint64(attempt)} {
		binary.BigEndian.PutUint64(b[:], n)
		h.Write(b[:])
	}
	var id uuid.UUID
	copy(id[:], h.Sum(nil))
	clear(id[:6])
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// ValidID accepts a UUID in its 36-byte lower-case form. MySQL compares ids as bytes, so `A` and `a` would be two orders.
func ValidID(id string) bool {
	if len(id) != 36 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

// IsDerived says whether an id was made by DerivedID.
func IsDerived(id string) bool { return IDTime(id).UnixMilli() == 0 }

// IDTime is the time in a UUIDv7, or the zero time if id is not one.
func IDTime(id string) time.Time {
	u, err := uuid.Parse(id)
	if err != nil || u.Version() != 7 {
		return time.Time{}
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(append([]byte{0, 0}, u[:6]...))))
}
