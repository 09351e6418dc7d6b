package kafka

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

// ErrNotSent marks the errors of messages that provably never reached a broker's log: the caller may take its reservation
// back. Any other error of Publish and Send means that nobody knows.
var ErrNotSent = errors.New("not sent to kafka")

// ErrTopicMissing marks the errors that say that a topic does not exist.
var ErrTopicMissing = errors.New("kafka topic does not exist")

// ErrOffsetGone says that records which should have been read were already deleted by the topic's retention.
var ErrOffsetGone = errors.New("kafka records are gone")

func notSent(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrNotSent, fmt.Errorf(format, args...))
}

// denied says of a refusal which right is missing, and how to grant it. what is topic or group.
func (k connector) denied(right, what, name string, err error) error {
	user := k.conf.Net.SASL.User
	if user == "" {
		user = "ANONYMOUS" // with mutual TLS it is the certificate's name
	}
	return fmt.Errorf("user %s lacks the right %s on %s %q: %w: grant it with kafka-acls.sh --add --allow-principal User:%s --operation %s --%s %s (docs/acl/kafka.sh has all)",
		user, right, what, name, err, user, right, what, name)
}

func topicMissing(topic string) error {
	return fmt.Errorf("%w: %q: create it with `seckill-worker migrate --create-topics`", ErrTopicMissing, topic)
}

// verdict is what one failed attempt to produce says about its batch.
type verdict int

const (
	// notAppended: nothing of this attempt is in the log, and trying again may help.
	notAppended verdict = iota
	// refused: nothing of this attempt is in the log, and the same would happen again.
	refused
	// newIdentity: nothing of this attempt is in the log, because the broker does not accept our producer id or sequence.
	newIdentity
	// perhaps: it may be in the log, or get there. Trying again with the same sequence is safe.
	perhaps
)

// judgeAnswer classifies the error code in a broker's answer to an acks=all batch. Only codes that the broker decides on before it
// appends are proof. NOT_LEADER_OR_FOLLOWER and UNKNOWN_TOPIC_OR_PARTITION are none: a broker that appended and then lost
// the leadership while it waited for its replicas gives the same answer.
func judgeAnswer(code sarama.KError) verdict {
	switch code {
	case sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge, sarama.ErrInvalidTimestamp,
		sarama.ErrUnsupportedForMessageFormat, sarama.ErrInvalidRecord, sarama.ErrInvalidRequiredAcks,
		sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed, sarama.ErrInvalidTopic:
		return refused
	case sarama.ErrNotEnoughReplicas:
		return notAppended
	case sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerEpoch,
		sarama.ErrProducerFenced, sarama.ErrInvalidProducerIDMapping, sarama.ErrDuplicateSequenceNumber:
		return newIdentity
	default:
		return perhaps
	}
}

// hopeless says that trying to connect again at once will not help: a person has to change something.
func hopeless(err error) bool {
	for _, target := range []error{
		ErrTopicMissing, sarama.ErrSASLAuthenticationFailed, sarama.ErrTopicAuthorizationFailed,
		sarama.ErrClusterAuthorizationFailed, sarama.ErrUnsupportedVersion,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// concernsMessages says that a refusal is about the messages, and tells nothing of the partition's health.
func concernsMessages(err error) bool {
	return errors.Is(err, sarama.ErrMessageSizeTooLarge) || errors.Is(err, sarama.ErrMessageSetSizeTooLarge) ||
		errors.Is(err, sarama.ErrInvalidTimestamp) || errors.Is(err, sarama.ErrInvalidRecord)
}
