// Hands partitions to workers, and saves their acknowledgements. See ../README.md.
//
// wit-bindgen generates bindings.h from ../wit; see scripts/examples.sh.

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bindings.h"

#define LARGEST_ANSWER 1024
#define NANOSECONDS_PER_MS 1000000ull

/** The settings, from environment variables. */
struct settings {
    char *workers[64];
    size_t worker_count;
    unsigned partitions, pause_ms, timeout_ms;
};

/** The outcome of a step. */
enum outcome {
    DONE,
    /** The worker did not take the partition; `why` contains the reason. */
    REFUSED,
    /** The host has asked this instance to stop. */
    STOPPED,
};

static wasi_io_poll_own_pollable_t stop;
static char why[256];

static enum outcome hand_over(const struct settings *, unsigned partition, const char **worker, unsigned long long *term);
static bool save(unsigned partition, const char *worker, unsigned long long term);
static bool read_settings(struct settings *);
static bool *acknowledged(unsigned partitions, unsigned *count);

/** Runs the coordinator. The host calls this once for each instance. */
bool exports_baton_host_task_run(exports_baton_host_task_failure_t *failure) {
    static struct settings settings;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!read_settings(&settings)) {
        // This failure is fatal, since a retry on this node would fail with the same settings.
        failure->tag = EXPORTS_BATON_HOST_TASK_FAILURE_FATAL;
        bindings_string_dup(&failure->val.fatal, why);
        return false;
    }
    stop = baton_host_term_subscribe_stop();
    unsigned count;
    const bool *is_acknowledged = acknowledged(settings.partitions, &count);
    printf("term %llu: %u of %u partitions are acknowledged\n", (unsigned long long)baton_host_term_number(), count,
           settings.partitions);
    for (unsigned partition = 0; partition < settings.partitions; partition++) {
        const char *worker;
        unsigned long long term;
        if (is_acknowledged[partition]) {
            continue;
        }
        if (hand_over(&settings, partition, &worker, &term) == STOPPED) {
            bindings_string_t message;
            if (baton_host_term_stop_message(&message)) {
                printf("asked to stop: %.*s\n", (int)message.len, (char *)message.ptr);
            }
            return true;
        }
        if (!save(partition, worker, term)) {
            // The next instance finds out from the state whether this commit was saved.
            failure->tag = EXPORTS_BATON_HOST_TASK_FAILURE_RETRYABLE;
            bindings_string_dup(&failure->val.retryable, why);
            return false;
        }
        printf("partition %u was taken by %s in term %llu\n", partition, worker, term);
    }
    printf("all %u partitions are acknowledged\n", settings.partitions);
    return true;
}

static enum outcome refused(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    return REFUSED;
}

/**
 * Waits until the source is ready, the deadline has passed, or the host asks this instance to stop. Without a source,
 * returns DONE at the deadline.
 */
static enum outcome wait_for(const wasi_io_poll_own_pollable_t *source, uint64_t deadline) {
    wasi_io_poll_own_pollable_t timer = wasi_clocks_monotonic_clock_subscribe_instant(deadline);
    wasi_io_poll_borrow_pollable_t pollables[] = {
        wasi_io_poll_borrow_pollable(stop),
        wasi_io_poll_borrow_pollable(source ? *source : timer),
        wasi_io_poll_borrow_pollable(timer),
    };
    wasi_io_poll_list_borrow_pollable_t list = {pollables, sizeof pollables / sizeof *pollables};
    bindings_list_u32_t ready;
    wasi_io_poll_poll(&list, &ready);
    bool is_ready[3] = {false};
    for (size_t i = 0; i < ready.len; i++) {
        is_ready[ready.ptr[i]] = true;
    }
    bindings_list_u32_free(&ready);
    wasi_io_poll_pollable_drop_own(timer);
    if (is_ready[0]) {
        return STOPPED;
    }
    return is_ready[1] ? DONE : refused("it did not answer in time");
}

static uint64_t milliseconds_from_now(unsigned length) {
    return wasi_clocks_monotonic_clock_now() + length * NANOSECONDS_PER_MS;
}

/** Reads the whole body of the answer, and parses it as a number. */
static enum outcome read_number(wasi_http_types_own_incoming_response_t response, uint64_t deadline,
                                unsigned long long *number) {
    wasi_http_types_own_incoming_body_t body;
    wasi_http_types_own_input_stream_t stream;
    if (!wasi_http_types_method_incoming_response_consume(wasi_http_types_borrow_incoming_response(response), &body)) {
        return refused("its answer has no body");
    }
    enum outcome outcome = refused("its answer has no body");
    if (wasi_http_types_method_incoming_body_stream(wasi_http_types_borrow_incoming_body(body), &stream)) {
        wasi_io_streams_borrow_input_stream_t input = wasi_io_streams_borrow_input_stream(stream);
        wasi_io_poll_own_pollable_t readable = wasi_io_streams_method_input_stream_subscribe(input);
        char text[LARGEST_ANSWER + 1];
        size_t length = 0;
        for (bool ended = false; !ended && (outcome = wait_for(&readable, deadline)) == DONE;) {
            bindings_list_u8_t chunk;
            wasi_io_streams_stream_error_t error;
            if (wasi_io_streams_method_input_stream_read(input, LARGEST_ANSWER - length, &chunk, &error)) {
                memcpy(text + length, chunk.ptr, chunk.len);
                length += chunk.len;
                bindings_list_u8_free(&chunk);
                if (length == LARGEST_ANSWER) {
                    outcome = refused("its answer is too long");
                    break;
                }
            } else {
                ended = true;
                if (error.tag != WASI_IO_STREAMS_STREAM_ERROR_CLOSED) {
                    outcome = refused("its answer was cut off");
                }
                wasi_io_streams_stream_error_free(&error);
            }
        }
        wasi_io_poll_pollable_drop_own(readable);
        wasi_io_streams_input_stream_drop_own(stream);
        if (outcome == DONE) {
            text[length] = 0;
            char *end = text;
            *number = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
            if (end == text || *end != 0) {
                outcome = refused("it answered %.80s", text);
            }
        }
    }
    wasi_http_types_incoming_body_drop_own(body);
    return outcome;
}

/** Reads an answer that has arrived. */
static enum outcome receive(wasi_http_types_own_future_incoming_response_t answer, uint64_t deadline,
                            unsigned long long *term) {
    wasi_http_types_result_result_own_incoming_response_error_code_void_t got;
    wasi_http_types_borrow_future_incoming_response_t future = wasi_http_types_borrow_future_incoming_response(answer);
    if (!wasi_http_types_method_future_incoming_response_get(future, &got) || got.is_err) {
        return refused("the host has no answer");
    }
    if (got.val.ok.is_err) {
        enum outcome outcome = refused("error %d of WASI_HTTP_TYPES_ERROR_CODE", got.val.ok.val.err.tag);
        wasi_http_types_error_code_free(&got.val.ok.val.err);
        return outcome;
    }
    wasi_http_types_own_incoming_response_t response = got.val.ok.val.ok;
    unsigned status = wasi_http_types_method_incoming_response_status(wasi_http_types_borrow_incoming_response(response));
    enum outcome outcome =
        status == 200 ? read_number(response, deadline, term) : refused("it answered %u", status);
    wasi_http_types_incoming_response_drop_own(response);
    return outcome;
}

/**
 * Sends POST {worker}/partitions/{partition}. Sets `term` to the term in which the worker took the partition, in this
 * offer or an earlier one.
 */
static enum outcome offer(const char *worker, unsigned partition, unsigned timeout_ms, unsigned long long *term) {
    const bool tls = strncmp(worker, "https://", 8) == 0;
    const char *authority = worker + (tls ? 8 : 7), *prefix = authority + strcspn(authority, "/");
    char path[512];
    if (snprintf(path, sizeof path, "%s/partitions/%u", prefix, partition) >= (int)sizeof path) {
        return refused("its URL is too long");
    }
    wasi_http_types_own_outgoing_request_t request =
        wasi_http_types_constructor_outgoing_request(wasi_http_types_constructor_fields());
    wasi_http_types_borrow_outgoing_request_t r = wasi_http_types_borrow_outgoing_request(request);
    wasi_http_types_method_t method = {.tag = WASI_HTTP_TYPES_METHOD_POST};
    wasi_http_types_scheme_t scheme = {.tag = tls ? WASI_HTTP_TYPES_SCHEME_HTTPS : WASI_HTTP_TYPES_SCHEME_HTTP};
    bindings_string_t authority_ = {(uint8_t *)authority, prefix - authority}, path_ = {(uint8_t *)path, strlen(path)};
    if (!wasi_http_types_method_outgoing_request_set_method(r, &method) ||
        !wasi_http_types_method_outgoing_request_set_scheme(r, &scheme) ||
        !wasi_http_types_method_outgoing_request_set_authority(r, &authority_) ||
        !wasi_http_types_method_outgoing_request_set_path_with_query(r, &path_)) {
        wasi_http_types_outgoing_request_drop_own(request);
        return refused("its URL is not valid");
    }
    const uint64_t deadline = milliseconds_from_now(timeout_ms);
    wasi_http_types_own_future_incoming_response_t answer;
    wasi_http_types_error_code_t error;
    if (!wasi_http_outgoing_handler_handle(request, NULL, &answer, &error)) {
        enum outcome outcome = refused("error %d of WASI_HTTP_TYPES_ERROR_CODE", error.tag);
        wasi_http_types_error_code_free(&error);
        return outcome;
    }
    wasi_io_poll_own_pollable_t arrived = wasi_http_types_method_future_incoming_response_subscribe(
        wasi_http_types_borrow_future_incoming_response(answer));
    enum outcome outcome = wait_for(&arrived, deadline);
    wasi_io_poll_pollable_drop_own(arrived);
    if (outcome == DONE) {
        outcome = receive(answer, deadline, term);
    }
    wasi_http_types_future_incoming_response_drop_own(answer);
    return outcome;
}

/** Offers a partition to one worker after another, starting with its own worker, until a worker takes it. */
static enum outcome hand_over(const struct settings *settings, unsigned partition, const char **worker,
                              unsigned long long *term) {
    for (size_t attempt = 0;; attempt++) {
        *worker = settings->workers[(partition + attempt) % settings->worker_count];
        enum outcome outcome = offer(*worker, partition, settings->timeout_ms, term);
        if (outcome != REFUSED) {
            return outcome;
        }
        printf("%s did not take partition %u: %s\n", *worker, partition, why);
        if (wait_for(NULL, milliseconds_from_now(settings->pause_ms)) == STOPPED) {
            return STOPPED;
        }
    }
}

/** Saves an acknowledgement. Once it is saved, no term offers the partition again. */
static bool save(unsigned partition, const char *worker, unsigned long long term) {
    char key[32], value[1024];
    snprintf(key, sizeof key, "partitions/%u", partition);
    snprintf(value, sizeof value, "{\"worker\":\"%s\",\"term\":%llu}", worker, term);
    baton_host_state_change_t put = {.tag = BATON_HOST_STATE_CHANGE_PUT};
    bindings_string_set(&put.val.put.f0, key);
    put.val.put.f1 = (bindings_list_u8_t){(uint8_t *)value, strlen(value)};
    baton_host_state_list_change_t changes = {&put, 1};
    baton_host_state_error_t error;
    if (!baton_host_state_commit(&changes, &error)) {
        // All variants of the error contain a text.
        bindings_string_t text = error.val.unknown;
        snprintf(why, sizeof why, "partition %u is not acknowledged: %.*s", partition, (int)text.len, (char *)text.ptr);
        baton_host_state_error_free(&error);
        return false;
    }
    baton_host_term_progress();
    return true;
}

/** Returns, for each partition, whether its acknowledgement is saved. */
static bool *acknowledged(unsigned partitions, unsigned *count) {
    bool *is_acknowledged = calloc(partitions + 1, sizeof *is_acknowledged);
    if (!is_acknowledged) {
        abort();
    }
    bindings_string_t prefix;
    bindings_list_string_t keys;
    bindings_string_set(&prefix, "partitions/");
    baton_host_state_keys(&prefix, &keys);
    *count = 0;
    for (size_t i = 0; i < keys.len; i++) {
        char number[16] = "";
        if (keys.ptr[i].len - prefix.len < sizeof number) {
            memcpy(number, keys.ptr[i].ptr + prefix.len, keys.ptr[i].len - prefix.len);
        }
        unsigned long partition = strtoul(number, NULL, 10);
        if (*number != 0 && partition < partitions) {
            is_acknowledged[partition] = true;
            ++*count;
        }
    }
    bindings_list_string_free(&keys);
    return is_acknowledged;
}

static bool wrong(const char *name, const char *example) {
    refused("%s is missing or wrong: --env %s=%s", name, name, example);
    return false;
}

static bool read_number_of(const char *name, const char *otherwise, unsigned *number) {
    const char *text = getenv(name) ? getenv(name) : otherwise;
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 6 || text[digits] != 0) {
        return wrong(name, "100");
    }
    *number = (unsigned)strtoul(text, NULL, 10);
    return true;
}

static bool read_settings(struct settings *settings) {
    const size_t most = sizeof settings->workers / sizeof *settings->workers;
    char *workers = strdup(getenv("WORKERS") ? getenv("WORKERS") : "");
    for (char *worker = strtok(workers, ","); worker; worker = strtok(NULL, ",")) {
        size_t length = strlen(worker);
        while (length > 0 && worker[length - 1] == '/') {
            worker[--length] = 0;
        }
        if ((strncmp(worker, "http://", 7) != 0 && strncmp(worker, "https://", 8) != 0) ||
            strpbrk(worker, "\"\\") || length > 256 || settings->worker_count == most) {
            settings->worker_count = 0;
            break;
        }
        settings->workers[settings->worker_count++] = worker;
    }
    if (settings->worker_count == 0) {
        return wrong("WORKERS", "http://10.0.0.1:8080,http://10.0.0.2:8080");
    }
    return read_number_of("PARTITIONS", "", &settings->partitions) &&
           read_number_of("PAUSE_MS", "1000", &settings->pause_ms) &&
           read_number_of("TIMEOUT_MS", "10000", &settings->timeout_ms);
}
