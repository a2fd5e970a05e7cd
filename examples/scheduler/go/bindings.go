package main

// The functions in ../wit that the scheduler calls, in the form that the component model's canonical ABI defines.
// Numbers and handles are passed directly, strings and lists as address and length, and larger results through a buffer
// that the caller provides. These bindings are handwritten, because the generator for Go needs modules from Go's proxy.

import (
	"runtime"
	"runtime/debug"
	"unsafe"
)

//go:wasmimport baton:host/term@0.1.1 number
func termNumber() uint64

//go:wasmimport baton:host/term@0.1.1 subscribe-stop
func termSubscribeStop() int32

//go:wasmimport baton:host/term@0.1.1 stop-message
func termStopMessage(result unsafe.Pointer)

//go:wasmimport baton:host/term@0.1.1 progress
func termProgress()

//go:wasmimport baton:host/state@0.1.1 keys
func stateKeys(prefix unsafe.Pointer, length uint32, result unsafe.Pointer)

//go:wasmimport baton:host/state@0.1.1 commit
func stateCommit(changes unsafe.Pointer, length uint32, result unsafe.Pointer)

//go:wasmimport wasi:io/poll@0.2.0 poll
func ioPoll(pollables unsafe.Pointer, length uint32, result unsafe.Pointer)

//go:wasmimport wasi:io/poll@0.2.0 [resource-drop]pollable
func dropPollable(int32)

//go:wasmimport wasi:io/error@0.2.0 [resource-drop]error
func dropError(int32)

//go:wasmimport wasi:io/streams@0.2.0 [method]input-stream.read
func streamRead(stream int32, length uint64, result unsafe.Pointer)

//go:wasmimport wasi:io/streams@0.2.0 [method]input-stream.subscribe
func streamSubscribe(stream int32) int32

//go:wasmimport wasi:io/streams@0.2.0 [resource-drop]input-stream
func dropStream(int32)

//go:wasmimport wasi:clocks/monotonic-clock@0.2.0 subscribe-duration
func clockSubscribe(nanoseconds uint64) int32

//go:wasmimport wasi:http/types@0.2.0 [constructor]fields
func httpFields() int32

//go:wasmimport wasi:http/types@0.2.0 [constructor]outgoing-request
func httpRequest(fields int32) int32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-request.set-method
func requestSetMethod(request int32, method int32, other unsafe.Pointer, length uint32) int32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-request.set-scheme
func requestSetScheme(request int32, some int32, scheme int32, other unsafe.Pointer, length uint32) int32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-request.set-authority
func requestSetAuthority(request int32, some int32, authority unsafe.Pointer, length uint32) int32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-request.set-path-with-query
func requestSetPath(request int32, some int32, path unsafe.Pointer, length uint32) int32

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]outgoing-request
func dropRequest(int32)

//go:wasmimport wasi:http/outgoing-handler@0.2.0 handle
func httpHandle(request int32, some int32, options int32, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [method]future-incoming-response.subscribe
func futureSubscribe(future int32) int32

//go:wasmimport wasi:http/types@0.2.0 [method]future-incoming-response.get
func futureGet(future int32, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]future-incoming-response
func dropFuture(int32)

//go:wasmimport wasi:http/types@0.2.0 [method]incoming-response.status
func responseStatus(response int32) uint32

//go:wasmimport wasi:http/types@0.2.0 [method]incoming-response.consume
func responseConsume(response int32, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]incoming-response
func dropResponse(int32)

//go:wasmimport wasi:http/types@0.2.0 [method]incoming-body.stream
func bodyStream(body int32, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [resource-drop]incoming-body
func dropBody(int32)

const (
	methodPost  = 2
	schemeHTTP  = 0
	schemeHTTPS = 1

	commitPut = 0

	failureRetryable = 0
	failureFatal     = 1

	streamFailed = 0
)

// result is the buffer for a function's result. The largest result of these functions has 56 bytes.
type result [64]byte

func (r *result) byte(offset int) byte    { return r[offset] }
func (r *result) handle(offset int) int32 { return *(*int32)(unsafe.Pointer(&r[offset])) }
func (r *result) span(offset int) span    { return *(*span)(unsafe.Pointer(&r[offset])) }

// span is the memory layout of strings and lists.
type span struct{ address, length uint32 }

func spanOf(bytes []byte) span {
	return span{uint32(uintptr(unsafe.Pointer(unsafe.SliceData(bytes)))), uint32(len(bytes))}
}

func (s span) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(nil, s.address)), s.length)
}

func listOf[T any](s span) []T {
	return unsafe.Slice((*T)(unsafe.Add(nil, s.address)), s.length)
}

// arena is the memory for lists and strings that a call returns. The next call overwrites it. While the host is in the
// middle of a call, Go's runtime must not read the clock, which it may do whenever it allocates. The arena therefore
// allocates nothing during a call, and garbage is collected only by collectGarbage. The arena has the size of the
// largest list, the keys of the state: by default, --max-state limits the state to 4 MiB.
var arena struct {
	bytes [4 << 20]byte
	used  uint32
}

//go:wasmexport cabi_import_realloc
func importRealloc(old uint32, oldSize uint32, align uint32, size uint32) uint32 {
	start := (arena.used + align - 1) &^ (align - 1)
	block := arena.bytes[start : start+size]
	if oldSize > 0 {
		copy(block, span{old, oldSize}.bytes())
	}
	arena.used = start + size
	return spanOf(block).address
}

// call runs a function that returns its result in a buffer, and passes the buffer to read.
func call(function func(at unsafe.Pointer), read func(*result)) {
	r := new(result)
	arena.used = 0
	function(unsafe.Pointer(r))
	read(r)
}

func init() {
	debug.SetGCPercent(-1)
}

func collectGarbage() {
	runtime.GC()
}

// returned is the result of run, which the host reads after the call.
var returned struct {
	isError byte
	_       [3]byte
	failure byte
	_       [3]byte
	message span
	text    []byte
}

//go:wasmexport baton:host/task@0.1.1#run
func taskRun() uint32 {
	if failure := run(); failure != nil {
		returned.isError = 1
		if failure.fatal {
			returned.failure = failureFatal
		}
		returned.text = []byte(failure.message)
		returned.message = spanOf(returned.text)
	}
	return uint32(uintptr(unsafe.Pointer(&returned)))
}

func main() {}
