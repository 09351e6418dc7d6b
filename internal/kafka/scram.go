package kafka

import (
	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// scramClient gives the library's hook for SCRAM, which it leaves to its users; nil for other mechanisms.
func scramClient(mechanism string) func() sarama.SCRAMClient {
	switch mechanism {
	case sarama.SASLTypeSCRAMSHA256:
		return func() sarama.SCRAMClient { return &scramConversation{hash: scram.SHA256} }
	case sarama.SASLTypeSCRAMSHA512:
		return func() sarama.SCRAMClient { return &scramConversation{hash: scram.SHA512} }
	}
	return nil
}

type scramConversation struct {
	hash scram.HashGeneratorFcn
	conv *scram.ClientConversation
}

func (s *scramConversation) Begin(user, password, authzID string) error {
	client, err := s.hash.NewClient(user, password, authzID)
	if err != nil {
		return err
	}
	s.conv = client.NewConversation()
	return nil
}

func (s *scramConversation) Step(challenge string) (string, error) { return s.conv.Step(challenge) }

func (s *scramConversation) Done() bool { return s.conv.Done() }
