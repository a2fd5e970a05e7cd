package main

// Idiomatic Go functions on top of the bindings.

import (
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"time"
	"unsafe"
)

const largestAnswer = 1024

// pollable is a handle to wait for.
type pollable int32

func (p pollable) drop() { dropPollable(int32(p)) }

// subscribeStop returns a pollable that is ready once the host asks this instance to stop.
func subscribeStop() pollable { return pollable(termSubscribeStop()) }

func subscribeDuration(length time.Duration) pollable {
	return pollable(clockSubscribe(uint64(length)))
}

// poll waits until at least one pollable is ready, and returns for each whether it is ready.
func poll(pollables ...pollable) []bool {
	ready := make([]bool, len(pollables))
	call(func(at unsafe.Pointer) {
		ioPoll(unsafe.Pointer(unsafe.SliceData(pollables)), uint32(len(pollables)), at)
	}, func(r *result) {
		for _, index := range listOf[uint32](r.span(0)) {
			ready[index] = true
		}
	})
	return ready
}

func stopMessage() (message string) {
	call(termStopMessage, func(r *result) {
		if r.byte(0) == 1 {
			message = string(r.span(4).bytes())
		}
	})
	return message
}

// keys returns the state's keys that begin with a prefix.
func keys(prefix string) (keys []string) {
	call(func(at unsafe.Pointer) {
		stateKeys(unsafe.Pointer(unsafe.StringData(prefix)), uint32(len(prefix)), at)
	}, func(r *result) {
		for _, key := range listOf[span](r.span(0)) {
			keys = append(keys, string(key.bytes()))
		}
	})
	return keys
}

// put saves one value; once it returns nil, the store has confirmed it.
func put(key string, value []byte) (err error) {
	name := []byte(key)
	change := struct {
		kind  uint32
		key   span
		value span
	}{commitPut, spanOf(name), spanOf(value)}
	call(func(at unsafe.Pointer) {
		stateCommit(unsafe.Pointer(&change), 1, at)
	}, func(r *result) {
		if r.byte(0) == 1 {
			err = errors.New(string(r.span(8).bytes()))
		}
	})
	runtime.KeepAlive(name)
	runtime.KeepAlive(value)
	return err
}

// post sends a request without a body, and returns the answer's status and body. It calls wait whenever it must wait,
// and returns the errors of wait.
func post(target *url.URL, wait func(pollable) error) (status int, text string, err error) {
	future, err := send(target)
	if err != nil {
		return 0, "", err
	}
	defer dropFuture(future)
	arrived := pollable(futureSubscribe(future))
	err = wait(arrived)
	arrived.drop()
	if err != nil {
		return 0, "", err
	}
	var response int32
	call(func(at unsafe.Pointer) { futureGet(future, at) }, func(r *result) {
		switch {
		case r.byte(0) == 0 || r.byte(8) == 1:
			err = errors.New("the host has no answer")
		case r.byte(16) == 1:
			err = fmt.Errorf("error %d of wasi:http/types.error-code", r.byte(24))
		default:
			response = r.handle(24)
		}
	})
	if err != nil {
		return 0, "", err
	}
	defer dropResponse(response)
	text, err = readBody(response, wait)
	return int(responseStatus(response)), text, err
}

func send(target *url.URL) (future int32, err error) {
	scheme := int32(schemeHTTP)
	if target.Scheme == "https" {
		scheme = schemeHTTPS
	}
	at := func(text string) (unsafe.Pointer, uint32) {
		return unsafe.Pointer(unsafe.StringData(text)), uint32(len(text))
	}
	host, hostLength := at(target.Host)
	path := target.RequestURI()
	pathAt, pathLength := at(path)
	request := httpRequest(httpFields())
	refused := requestSetMethod(request, methodPost, nil, 0) + requestSetScheme(request, 1, scheme, nil, 0) +
		requestSetAuthority(request, 1, host, hostLength) + requestSetPath(request, 1, pathAt, pathLength)
	runtime.KeepAlive(path)
	if refused != 0 {
		dropRequest(request)
		return 0, errors.New("its URL is not valid")
	}
	call(func(at unsafe.Pointer) { httpHandle(request, 0, 0, at) }, func(r *result) {
		if r.byte(0) == 1 {
			err = fmt.Errorf("error %d of wasi:http/types.error-code", r.byte(8))
		} else {
			future = r.handle(8)
		}
	})
	return future, err
}

func readBody(response int32, wait func(pollable) error) (string, error) {
	body, err := handleOf(func(at unsafe.Pointer) { responseConsume(response, at) })
	if err != nil {
		return "", err
	}
	defer dropBody(body)
	stream, err := handleOf(func(at unsafe.Pointer) { bodyStream(body, at) })
	if err != nil {
		return "", err
	}
	defer dropStream(stream)
	readable := pollable(streamSubscribe(stream))
	defer readable.drop()
	var text []byte
	for ended := false; !ended; {
		if err := wait(readable); err != nil {
			return "", err
		}
		call(func(at unsafe.Pointer) { streamRead(stream, largestAnswer, at) }, func(r *result) {
			switch {
			case r.byte(0) == 0:
				text = append(text, r.span(4).bytes()...)
			case r.byte(4) == streamFailed:
				dropError(r.handle(8))
				err = errors.New("its answer was cut off")
			default:
				ended = true
			}
		})
		if len(text) > largestAnswer {
			err = errors.New("its answer is too long")
		}
		if err != nil {
			return "", err
		}
	}
	return string(text), nil
}

// handleOf returns the handle in a result<handle>.
func handleOf(function func(at unsafe.Pointer)) (handle int32, err error) {
	call(function, func(r *result) {
		if r.byte(0) == 1 {
			err = errors.New("its answer has no body")
		}
		handle = r.handle(4)
	})
	return handle, err
}
