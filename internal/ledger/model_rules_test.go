package ledger

// rule is a rule of the protocol that lives around the scripts, so that the model can be played without it.
type rule int

const (
	ruleRefusalFenced        rule = iota // a refusal of a call that may have run twice is fenced before it is told
	ruleReleaseUnknown                   // a release without an answer is unknown
	ruleMarkedAfter                      // a record is marked only once MySQL and Redis are done
	ruleHybridClock                      // the version moves forward, whoever writes the row, and after a fail-over
	ruleAheadIsTouched                   // where Redis is ahead the row moves past it
	ruleLandedAgain                      // after MySQL lost commits their orders are landed again from Kafka
	ruleLoadOutwaitsPublish              // a load waits until nothing can be published any more
	ruleLoadOutwaitsCalls                // and until no reserve call from before can take effect
	ruleKafkaFirst                       // a load reads Kafka's end before its snapshot of MySQL
	ruleBinlogGoesBack                   // after a load the binlog goes back to where it was before
	ruleLostPositionLoads                // a lost position in the binlog means a load
	ruleTombstonesOutlive                // tombstones outlive every reserve deadline
	ruleSweepWaits                       // the sweep publishes only what can be in no record
	ruleLockedOutAreFreed                // compare frees the buyers of dead orders
	ruleBuyersAreKnown                   // compare adds the buyers of live orders
	ruleLiveMayHaveDied                  // compare writes a live order's result only where there is none
	ruleNothingResetsPending             // compare does not reset pending
)

type rules map[rule]bool
