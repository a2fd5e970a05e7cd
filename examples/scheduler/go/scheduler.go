// Hands partitions to workers, and saves their acknowledgements. See ../README.md.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// failure is the reason why a run failed. If it is fatal, a retry on this node would not help.
type failure struct {
	fatal   bool
	message string
}

// errStopped means that the host has asked this instance to stop.
var errStopped = errors.New("asked to stop")

// acknowledgement is saved under partitions/N: the worker that took partition N, and the term in which it did.
type acknowledgement struct {
	Worker string `json:"worker"`
	Term   uint64 `json:"term"`
}

func run() *failure {
	settings, err := readSettings()
	if err != nil {
		// This failure is fatal, since a retry on this node would fail with the same settings.
		return &failure{fatal: true, message: err.Error()}
	}
	s := scheduler{settings, subscribeStop()}
	defer s.stop.drop()
	open := withoutAcknowledgement(settings.partitions)
	count := settings.partitions - len(open)
	fmt.Printf("term %d: %d of %d partitions are acknowledged\n", termNumber(), count, settings.partitions)
	for _, partition := range open {
		acknowledged, err := s.handOver(partition)
		if err != nil {
			fmt.Printf("asked to stop: %s\n", stopMessage())
			return nil
		}
		if err := save(partition, acknowledged); err != nil {
			// The next instance finds out from the state whether this commit was saved.
			return &failure{message: fmt.Sprintf("partition %d is not acknowledged: %v", partition, err)}
		}
		fmt.Printf("partition %d was taken by %s in term %d\n", partition, acknowledged.Worker, acknowledged.Term)
		collectGarbage()
	}
	fmt.Printf("all %d partitions are acknowledged\n", settings.partitions)
	return nil
}

func withoutAcknowledgement(partitions int) []int {
	acknowledged := map[string]bool{}
	for _, key := range keys("partitions/") {
		acknowledged[key] = true
	}
	var open []int
	for partition := range partitions {
		if !acknowledged[key(partition)] {
			open = append(open, partition)
		}
	}
	return open
}

func key(partition int) string { return fmt.Sprintf("partitions/%d", partition) }

type scheduler struct {
	settings
	stop pollable
}

// handOver offers a partition to one worker after another, starting with the partition's own worker, until a worker
// takes it. The only error is errStopped.
func (s *scheduler) handOver(partition int) (acknowledgement, error) {
	for turn := partition; ; turn++ {
		worker := s.workers[turn%len(s.workers)]
		term, err := s.offer(worker, partition)
		if err == nil {
			return acknowledgement{worker, term}, nil
		}
		if errors.Is(err, errStopped) {
			return acknowledgement{}, err
		}
		fmt.Printf("%s did not take partition %d: %v\n", worker, partition, err)
		if s.sleep(s.pause) != nil {
			return acknowledgement{}, errStopped
		}
	}
}

// offer returns the term in which the worker took the partition, in this offer or an earlier one.
func (s *scheduler) offer(worker string, partition int) (uint64, error) {
	target, err := url.Parse(fmt.Sprintf("%s/partitions/%d", worker, partition))
	if err != nil {
		return 0, err
	}
	deadline := time.Now().Add(s.timeout)
	wait := func(p pollable) error { return s.waitFor(p, time.Until(deadline)) }
	status, text, err := post(target, wait)
	if err != nil {
		return 0, err
	}
	term, err := strconv.ParseUint(text, 10, 64)
	if status != 200 || err != nil {
		return 0, fmt.Errorf("it answered %d %.80s", status, text)
	}
	return term, nil
}

// sleep returns errStopped early if the host asks this instance to stop.
func (s *scheduler) sleep(length time.Duration) error {
	timer := subscribeDuration(length)
	defer timer.drop()
	if poll(s.stop, timer)[0] {
		return errStopped
	}
	return nil
}

// waitFor waits until p is ready, the time has elapsed, or the host asks this instance to stop.
func (s *scheduler) waitFor(p pollable, atMost time.Duration) error {
	timer := subscribeDuration(max(atMost, 0))
	defer timer.drop()
	ready := poll(s.stop, p, timer)
	switch {
	case ready[0]:
		return errStopped
	case !ready[1]:
		return fmt.Errorf("no answer within %v", s.timeout)
	default:
		return nil
	}
}

// save saves an acknowledgement. Once it is saved, no term offers the partition again.
func save(partition int, acknowledged acknowledgement) error {
	value, err := json.Marshal(acknowledged)
	if err != nil {
		return err
	}
	if err := put(key(partition), value); err != nil {
		return err
	}
	termProgress()
	return nil
}

// settings come from environment variables.
type settings struct {
	workers        []string
	partitions     int
	pause, timeout time.Duration
}

func readSettings() (settings, error) {
	var s settings
	for worker := range strings.SplitSeq(os.Getenv("WORKERS"), ",") {
		if worker == "" {
			continue
		}
		if target, err := url.Parse(worker); err != nil || target.Host == "" {
			return s, wrong("WORKERS", "http://10.0.0.1:8080,http://10.0.0.2:8080")
		}
		s.workers = append(s.workers, strings.TrimRight(worker, "/"))
	}
	if len(s.workers) == 0 {
		return s, wrong("WORKERS", "http://10.0.0.1:8080,http://10.0.0.2:8080")
	}
	whole := func(name, otherwise string) (int, error) {
		value := os.Getenv(name)
		if value == "" {
			value = otherwise
		}
		number, err := strconv.ParseUint(value, 10, 20)
		if err != nil {
			return 0, wrong(name, "100")
		}
		return int(number), nil
	}
	pause, pauseErr := whole("PAUSE_MS", "1000")
	timeout, timeoutErr := whole("TIMEOUT_MS", "10000")
	partitions, partitionsErr := whole("PARTITIONS", "")
	s.pause, s.timeout = time.Duration(pause)*time.Millisecond, time.Duration(timeout)*time.Millisecond
	s.partitions = partitions
	return s, errors.Join(partitionsErr, pauseErr, timeoutErr)
}

func wrong(name, example string) error {
	return fmt.Errorf("%s is missing or wrong: --env %s=%s", name, name, example)
}
