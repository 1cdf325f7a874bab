/* Calls of the C library, for tests/test_c_library.py: one test for each name.
 *
 *     calls TEST URL      with the key in $OUTCORE_KEY
 *     calls TEST DIRECTORY...
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <outcore.h>

static outcore_context *context;
static outcore_pool *pool;

#define NEED(what)                                                                                  \
    do {                                                                                            \
        if (!(what)) {                                                                              \
            fprintf(stderr, "line %d: %s; %s\n", __LINE__, #what, outcore_error_text(context));     \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)
/* The call succeeds. */
#define OK(call) NEED((call) == 0)
/* The call fails with this number, and its text has these words. */
#define FAILS(number, words, call)                                                                  \
    do {                                                                                            \
        long long had = (call);                                                                     \
        if (had != -(number) || strstr(outcore_error_text(context), words) == NULL) {               \
            fprintf(stderr, "line %d: %s gave %lld: %s\n", __LINE__, #call, had,                    \
                    outcore_error_text(context));                                                   \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

static outcore_file *opened(const char *path, int flags) {
    outcore_file *file = NULL;
    OK(outcore_file_open(pool, path, flags, 0666, NULL, &file));
    NEED(file != NULL);
    return file;
}

static void test_files(void) {
    char bytes[100000], found[100000];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (char)(i * 7);
    }
    outcore_file *file = opened("a/b/file", O_RDWR | O_CREAT | O_EXCL);
    NEED(outcore_file_length(file) == 0);
    NEED(outcore_file_read_at(file, 0, found, 10) == 0);
    OK(outcore_file_write_at(file, 50, bytes, sizeof bytes));
    OK(outcore_file_sync(file));
    NEED(outcore_file_length(file) == 50 + sizeof bytes);
    memset(found, 1, sizeof found);
    NEED(outcore_file_read_at(file, 0, found, 60) == 60);
    NEED(found[49] == 0 && memcmp(found + 50, bytes, 10) == 0);
    NEED(outcore_file_read_at(file, 50, found, sizeof found) == sizeof found);
    NEED(memcmp(found, bytes, sizeof bytes) == 0);
    /* The end of the file, and past it. */
    NEED(outcore_file_read_at(file, sizeof bytes, found, sizeof found) == 50);
    NEED(memcmp(found, bytes + sizeof bytes - 50, 50) == 0);
    NEED(outcore_file_read_at(file, 1 << 20, found, 1) == 0);
    NEED(outcore_file_read_at(file, 0, NULL, 0) == 0);
    OK(outcore_file_truncate(file, 70));
    NEED(outcore_file_length(file) == 70);
    OK(outcore_file_truncate(file, (uint64_t)5 << 32));
    NEED(outcore_file_length(file) == (int64_t)5 << 32);
    NEED(outcore_file_read_at(file, ((uint64_t)5 << 32) - 1, found, 10) == 1 && found[0] == 0);
    OK(outcore_file_close(file));

    file = opened("a/b/file", O_RDONLY);
    FAILS(EROFS, "only", outcore_file_write_at(file, 0, bytes, 1));
    OK(outcore_file_close(file));
    FAILS(EEXIST, "new name", outcore_file_open(pool, "a/b/file", O_RDWR | O_CREAT | O_EXCL, 0666, NULL, &file));
    NEED(file == NULL);
    file = opened("a/b/file", O_RDWR | O_CREAT);
    NEED(outcore_file_length(file) == (int64_t)5 << 32);
    OK(outcore_file_close(file));
    file = opened("a/b/file", O_WRONLY | O_TRUNC);
    NEED(outcore_file_length(file) == 0);
    OK(outcore_file_close(file));
    FAILS(ENOENT, "none", outcore_file_open(pool, "none", O_RDWR, 0, NULL, &file));
    FAILS(EINVAL, "directory", outcore_file_open(pool, "a", O_RDONLY, 0, NULL, &file));
    FAILS(EINVAL, "leave", outcore_file_open(pool, "x", O_RDWR | O_CREAT | O_APPEND, 0666, NULL, &file));
    FAILS(EINVAL, "O_RDONLY", outcore_file_open(pool, "a/b/file", O_TRUNC, 0666, NULL, &file));
}

/* Another handle made the file shorter: no byte comes from behind its end. */
static void test_shorter(void) {
    char bytes[300000], found[300000];
    const uint64_t offsets[] = {299990, 0}, lengths[] = {10, 10};
    outcore_regions *regions;
    memset(bytes, 7, sizeof bytes);
    outcore_file *file = opened("shorter", O_RDWR | O_CREAT);
    OK(outcore_file_write_at(file, 0, bytes, sizeof bytes));
    NEED(outcore_file_read_at(file, 0, found, sizeof found) == sizeof found);
    outcore_file *other = opened("shorter", O_RDWR);
    OK(outcore_file_truncate(other, 1000));
    OK(outcore_regions_list(context, 2, offsets, lengths, &regions));
    FAILS(ENODATA, "", outcore_file_read(file, regions, found, 20));
    outcore_regions_free(regions);
    NEED(outcore_file_read_at(file, 0, found, sizeof found) == 1000);
    NEED(outcore_file_read_at(file, 999, found, 2) == 1 && found[0] == 7);
    NEED(outcore_file_read_at(file, 2000, found, 1) == 0);
    OK(outcore_file_close(other));
    OK(outcore_file_close(file));
}

static void test_reserve(void) {
    struct outcore_status before, after;
    outcore_file *file = opened("reserved", O_RDWR | O_CREAT);
    OK(outcore_file_write_at(file, 0, "bytes", 5));
    OK(outcore_file_reserve(file, 3000000));
    NEED(outcore_file_length(file) == 3000000);
    OK(outcore_file_reserve(file, 10));
    OK(outcore_file_reserve(file, 0));
    NEED(outcore_file_length(file) == 3000000);
    OK(outcore_stat(pool, "reserved", &before));
    NEED(before.length == 3000000 && before.stripe_count == 2 && before.first_server < 2);
    OK(outcore_file_close(file));
    file = opened("reserved", O_RDONLY);
    FAILS(EROFS, "O_RDWR", outcore_file_reserve(file, 10));
    OK(outcore_file_close(file));
    OK(outcore_mkdir(pool, "directory", 0777));
    OK(outcore_stat(pool, "directory", &after));
    NEED(after.is_directory == 1 && after.first_server == 0);
}

static void test_locks(void) {
    const uint64_t most = (uint64_t)1 << 63;
    outcore_file *file = opened("locks", O_RDWR | O_CREAT), *other = opened("locks", O_RDWR);
    uint64_t first = 0, shared[2], whole;
    OK(outcore_file_lock(file, 10, 5, 0, &first));
    OK(outcore_file_lock(other, 15, most - 15, 0, &whole));
    OK(outcore_file_unlock(other, whole));
    FAILS(EBUSY, "another owner", outcore_file_lock(other, 14, 1, 1, &whole));
    FAILS(EBUSY, "another owner", outcore_file_lock(file, 0, 11, 0, &whole));
    OK(outcore_file_write_at(other, 12, "x", 1));
    FAILS(EINVAL, "number", outcore_file_unlock(other, first));
    OK(outcore_file_unlock(file, first));
    FAILS(EINVAL, "number", outcore_file_unlock(file, first));
    OK(outcore_file_lock(file, 0, 20, 1, &shared[0]));
    OK(outcore_file_lock(other, 19, 1, 1, &shared[1]));
    OK(outcore_file_unlock(file, shared[0]));
    FAILS(EBUSY, "another owner", outcore_file_lock(file, 0, 20, 0, &whole));
    OK(outcore_file_close(other));
    OK(outcore_file_lock(file, 0, 20, 0, &whole));
    FAILS(EINVAL, "2^63", outcore_file_lock(file, 3, 0, 0, &whole));
    FAILS(EINVAL, "2^63", outcore_file_lock(file, 1, most, 0, &whole));
    FAILS(EINVAL, "2^63", outcore_file_lock(file, UINT64_MAX, 2, 0, &whole));
    FAILS(EINVAL, "NULL", outcore_file_lock(file, 0, 1, 0, NULL));
    OK(outcore_file_close(file));
}

static void test_signs(void) {
    const uint64_t most = ((uint64_t)1 << 63) - 1;
    outcore_file *file = opened("signs", O_RDWR | O_CREAT), *other = opened("signs", O_RDONLY), *third;
    OK(outcore_sign_give(file, 5));
    OK(outcore_sign_give(file, 6));
    OK(outcore_sign_give(other, most));
    NEED(outcore_sign_is_given(other, 5) == 1 && outcore_sign_is_given(file, 6) == 1);
    NEED(outcore_sign_is_given(file, 4) == 0 && outcore_sign_is_given(file, most) == 1);
    third = opened("other", O_RDWR | O_CREAT);
    NEED(outcore_sign_is_given(third, 5) == 0);
    OK(outcore_sign_withdraw(third, 5));
    OK(outcore_sign_withdraw(file, 5));
    OK(outcore_sign_withdraw(file, 5));
    NEED(outcore_sign_is_given(file, 5) == 0 && outcore_sign_is_given(file, 6) == 1);
    OK(outcore_file_close(file));
    NEED(outcore_sign_is_given(other, 6) == 0 && outcore_sign_is_given(other, most) == 1);
    FAILS(EINVAL, "2^63", outcore_sign_give(other, most + 1));
    FAILS(EINVAL, "2^63", outcore_sign_is_given(other, UINT64_MAX));
    OK(outcore_remove(pool, "other"));
    FAILS(ENOENT, "", outcore_sign_is_given(third, 5));
    FAILS(ENOENT, "", outcore_sign_give(third, 5));
    /* Those of the pool are others. */
    OK(outcore_pool_sign_give(pool, 8));
    OK(outcore_pool_sign_give(pool, 8));
    NEED(outcore_pool_sign_is_given(pool, 8) == 1 && outcore_pool_sign_is_given(pool, most) == 0);
    NEED(outcore_sign_is_given(other, 8) == 0);
    OK(outcore_sign_withdraw(other, 8));
    NEED(outcore_pool_sign_is_given(pool, 8) == 1);
    OK(outcore_pool_sign_withdraw(pool, 8));
    NEED(outcore_pool_sign_is_given(pool, 8) == 0);
    FAILS(EINVAL, "2^63", outcore_pool_sign_give(pool, most + 1));
    OK(outcore_file_close(third));
    OK(outcore_file_close(other));
}

/* Gives a sign, and says so; after an answer, looks at it until it is certain. */
static void test_sign_kept(void) {
    outcore_file *file = opened("kept", O_RDWR | O_CREAT);
    uint64_t lock, other;
    int given;
    OK(outcore_sign_give(file, 7));
    OK(outcore_file_lock(file, 3, 4, 0, &lock));
    NEED(puts("given") >= 0 && fflush(stdout) == 0 && getchar() == '\n');
    while ((given = outcore_sign_is_given(file, 7)) == -EBUSY) {
        usleep(10000);
    }
    NEED(given == 1);
    NEED(outcore_file_lock(file, 5, 1, 1, &other) == -EBUSY);
    OK(outcore_file_unlock(file, lock));
    OK(outcore_file_close(file));
}

/* Says when it has begun; after an answer, uses the pool, whose stand-by manager has taken over. */
static void test_taken_over(void) {
    char found[5];
    outcore_file *file = opened("before", O_RDWR | O_CREAT);
    OK(outcore_file_write_at(file, 0, "first", 5));
    OK(outcore_file_sync(file));
    NEED(puts("begun") >= 0 && fflush(stdout) == 0 && getchar() == '\n');
    NEED(outcore_file_read_at(file, 0, found, 5) == 5 && memcmp(found, "first", 5) == 0);
    OK(outcore_file_close(file));
    OK(outcore_mkdir(pool, "made", 0777));
    file = opened("made/after", O_RDWR | O_CREAT | O_EXCL);
    OK(outcore_file_write_at(file, 0, "second", 6));
    OK(outcore_file_sync(file));
    OK(outcore_file_close(file));
}

/* The flags count, even for a file that the call creates. */
static void test_read_only(void) {
    outcore_file *file = opened("read-only", O_RDONLY | O_CREAT);
    outcore_regions *regions;
    outcore_request *request;
    OK(outcore_regions_contiguous(context, 0, 1, &regions));
    FAILS(EROFS, "O_RDWR", outcore_file_write_at(file, 0, "x", 1));
    FAILS(EROFS, "O_RDWR", outcore_file_write(file, regions, "x", 1));
    FAILS(EROFS, "O_RDWR", outcore_file_start_write(file, regions, "x", 1, &request));
    FAILS(EROFS, "O_RDWR", outcore_file_truncate(file, 10));
    outcore_regions_free(regions);
    NEED(outcore_file_length(file) == 0);
    OK(outcore_file_close(file));
}

/* Symbolic links that the test made: "link" to the missing "target", "astray" to a missing directory. */
static void test_links(void) {
    char found[10];
    outcore_file *file;
    FAILS(EEXIST, "new name", outcore_file_open(pool, "link", O_RDWR | O_CREAT | O_EXCL, 0666, NULL, &file));
    FAILS(ENOENT, "target", outcore_file_open(pool, "link", O_RDWR, 0, NULL, &file));
    FAILS(ENOENT, "", outcore_file_open(pool, "astray", O_RDWR | O_CREAT, 0666, NULL, &file));
    for (int turn = 0; turn < 2; turn++) {
        file = opened("link", O_RDWR | O_CREAT | O_TRUNC);
        NEED(outcore_file_length(file) == 0);
        OK(outcore_file_write_at(file, 0, "through", 7));
        OK(outcore_file_close(file));
    }
    file = opened("target", O_RDONLY | O_CREAT);
    NEED(outcore_file_read_at(file, 0, found, sizeof found) == 7);
    OK(outcore_file_close(file));
}

static void test_regions(void) {
    unsigned char numbers[256], found[256];
    outcore_regions *regions;
    outcore_file *file = opened("regions", O_RDWR | O_CREAT);
    for (int i = 0; i < 256; i++) {
        numbers[i] = (unsigned char)i;
    }
    OK(outcore_file_write_at(file, 0, numbers, 256));

    /* A partial group of 2, two groups of 3 every 10 bytes, and a partial group of 1. */
    const unsigned char strided[] = {100, 101, 109, 110, 111, 119, 120, 121, 129};
    OK(outcore_regions_strided(context, 100, 2, 3, 2, 10, 1, &regions));
    NEED(outcore_regions_bytes(regions) == sizeof strided);
    OK(outcore_file_read(file, regions, found, sizeof strided));
    NEED(memcmp(found, strided, sizeof strided) == 0);
    FAILS(EINVAL, "9 bytes", outcore_file_read(file, regions, found, 10));
    outcore_regions_free(regions);
    FAILS(EINVAL, "overlap", outcore_regions_strided(context, 0, 0, 8, 2, 4, 0, &regions));
    NEED(regions == NULL);

    /* Two planes of three rows of 4 bytes. */
    const uint64_t counts[] = {2, 3}, strides[] = {64, 16};
    OK(outcore_regions_nested(context, 5, 4, 2, counts, strides, &regions));
    NEED(outcore_regions_bytes(regions) == 24);
    OK(outcore_file_read(file, regions, found, 24));
    for (int i = 0; i < 24; i++) {
        NEED(found[i] == 5 + i / 12 * 64 + i / 4 % 3 * 16 + i % 4);
    }
    memset(found, 0xee, 24);
    OK(outcore_file_write(file, regions, found, 24));
    outcore_regions_free(regions);

    /* In any order. */
    const uint64_t offsets[] = {200, 4, 85}, lengths[] = {3, 2, 1};
    OK(outcore_regions_list(context, 3, offsets, lengths, &regions));
    OK(outcore_file_read(file, regions, found, 6));
    NEED(memcmp(found, "\xc8\xc9\xca\x04\xee\xee", 6) == 0);
    outcore_regions_free(regions);

    OK(outcore_regions_contiguous(context, 250, 10, &regions));
    FAILS(ENODATA, "", outcore_file_read(file, regions, found, 10));
    outcore_regions_free(regions);
    OK(outcore_regions_list(context, 0, NULL, NULL, &regions));
    OK(outcore_file_read(file, regions, NULL, 0));
    outcore_regions_free(regions);
    FAILS(EINVAL, "NULL", outcore_regions_list(context, 1, NULL, lengths, &regions));
    FAILS(EINVAL, "check", outcore_regions_list(context, SIZE_MAX / 8, offsets, lengths, &regions));
    FAILS(EINVAL, "16", outcore_regions_nested(context, 0, 1, 17, counts, strides, &regions));
    FAILS(EINVAL, "16", outcore_regions_nested(context, 0, 1, SIZE_MAX, counts, strides, &regions));
    FAILS(EINVAL, "2^63", outcore_regions_contiguous(context, UINT64_MAX, 2, &regions));
    FAILS(EINVAL, "NULL", outcore_file_read(file, NULL, found, 1));
    OK(outcore_file_close(file));
}

/* Several pieces of memory in one call, as preadv and pwritev have them. */
static void test_vectored(void) {
    char some[3], none[1], more[90000], found[90000], last[100];
    const uint64_t offsets[] = {90100, 0}, lengths[] = {2, 90001};
    const struct iovec given[] = {{some, 3}, {none, 0}, {NULL, 0}, {more, 90000}};
    const struct iovec wanted[] = {{last, 1}, {found, 90000}, {last + 1, 99}};
    const struct iovec endless[] = {{some, SIZE_MAX}, {more, 8}};
    outcore_regions *regions;
    outcore_request *request;
    memcpy(some, "abc", 3);
    for (size_t i = 0; i < sizeof more; i++) {
        more[i] = (char)(i * 11);
    }
    outcore_file *file = opened("vectored", O_RDWR | O_CREAT);
    OK(outcore_file_writev_at(file, 7, given, 4));
    NEED(outcore_file_length(file) == 90010);
    /* One byte, 90000 bytes, and the rest of the file. */
    memset(last, 'x', sizeof last);
    NEED(outcore_file_readv_at(file, 7, wanted, 3) == 90003);
    NEED(memcmp(last, "a", 1) == 0 && memcmp(found, "bc", 2) == 0);
    NEED(memcmp(found + 2, more, 89998) == 0 && memcmp(last + 1, more + 89998, 2) == 0 && last[3] == 'x');
    NEED(outcore_file_readv_at(file, 90010, wanted, 3) == 0);
    NEED(outcore_file_readv_at(file, 0, NULL, 0) == 0);
    OK(outcore_file_writev_at(file, 0, NULL, 0));
    /* Regions of the file to pieces of memory with other ends. */
    OK(outcore_regions_list(context, 2, offsets, lengths, &regions));
    OK(outcore_file_writev(file, regions, given, 4));
    NEED(outcore_file_read_at(file, 90100, found, 10) == 2 && memcmp(found, "ab", 2) == 0);
    NEED(outcore_file_read_at(file, 0, found, 3) == 3 && found[0] == 'c' && memcmp(found + 1, more, 2) == 0);
    memset(found, 0, sizeof found);
    const struct iovec halves[] = {{found, 40000}, {last, 3}, {found + 40000, 50000}};
    OK(outcore_file_start_writev(file, regions, given, 4, &request));
    OK(outcore_request_wait(request, -1));
    outcore_request_free(request);
    OK(outcore_file_start_readv(file, regions, halves, 3, &request));
    OK(outcore_request_wait(request, -1));
    outcore_request_free(request);
    char *read = malloc(90003);
    NEED(read != NULL);
    memcpy(read, found, 40000);
    memcpy(read + 40000, last, 3);
    memcpy(read + 40003, found + 40000, 50000);
    NEED(memcmp(read, some, 3) == 0 && memcmp(read + 3, more, 90000) == 0);
    free(read);
    FAILS(EINVAL, "90003", outcore_file_readv(file, regions, halves, 2));
    FAILS(EINVAL, "less", outcore_file_readv_at(file, 0, endless, 2));
    FAILS(EINVAL, "NULL", outcore_file_writev_at(file, 0, NULL, 1));
    FAILS(EINVAL, "NULL", outcore_file_readv(file, NULL, halves, 3));
    outcore_regions_free(regions);
    OK(outcore_file_truncate(file, 10));
    OK(outcore_regions_contiguous(context, 5, 90003, &regions));
    FAILS(ENODATA, "", outcore_file_readv(file, regions, halves, 3));
    outcore_regions_free(regions);
    OK(outcore_file_close(file));
}

static void test_requests(void) {
    enum { COUNT = 20, BYTES = 5000 };
    static unsigned char sent[COUNT][BYTES], got[COUNT][BYTES];
    outcore_request *requests[COUNT];
    outcore_regions *regions;
    outcore_file *file = opened("requests", O_RDWR | O_CREAT);
    int event = eventfd(0, 0);
    for (int i = 0; i < COUNT; i++) {
        memset(sent[i], i + 1, BYTES);
        OK(outcore_regions_contiguous(context, (uint64_t)i * BYTES, BYTES, &regions));
        OK(outcore_file_start_write(file, regions, sent[i], BYTES, &requests[i]));
        OK(outcore_request_notify(requests[i], event));
        outcore_regions_free(regions);
    }
    for (uint64_t ended = 0; ended < COUNT;) {
        uint64_t more = 0;
        NEED(read(event, &more, sizeof more) == sizeof more);
        ended += more;
    }
    for (int i = 0; i < COUNT; i++) {
        NEED(outcore_request_done(requests[i]) == 1);
        OK(outcore_request_wait(requests[i], 0));
        outcore_request_free(requests[i]);
        OK(outcore_regions_contiguous(context, (uint64_t)i * BYTES, BYTES, &regions));
        OK(outcore_file_start_read(file, regions, got[i], BYTES, &requests[i]));
        outcore_regions_free(regions);
    }
    for (int i = 0; i < COUNT; i++) {
        OK(outcore_request_wait(requests[i], i % 2 == 0 ? -1 : 1e300));
        outcore_request_free(requests[i]);
    }
    NEED(memcmp(sent, got, sizeof sent) == 0);

    /* The error of a request is that of its wait, and a request that was waited for still notifies. */
    OK(outcore_regions_contiguous(context, COUNT * BYTES - 1, 2, &regions));
    OK(outcore_file_start_read(file, regions, got, 2, &requests[0]));
    outcore_regions_free(regions);
    FAILS(ENODATA, "", outcore_request_wait(requests[0], -1));
    OK(outcore_request_notify(requests[0], event));
    uint64_t more = 0;
    NEED(read(event, &more, sizeof more) == sizeof more && more == 1);
    close(event);
    FAILS(EINVAL, "eventfd", outcore_request_notify(requests[0], event));
    FAILS(EINVAL, "eventfd", outcore_request_notify(requests[0], -1));
    int ends[2];
    NEED(pipe(ends) == 0);
    FAILS(EINVAL, "pipe", outcore_request_notify(requests[0], ends[1]));
    close(ends[0]);
    close(ends[1]);
    /* A full counter does not block the library. */
    uint64_t most = UINT64_MAX - 1;
    event = eventfd(0, 0);
    NEED(write(event, &most, sizeof most) == sizeof most);
    OK(outcore_request_notify(requests[0], event));
    close(event);
    outcore_request_free(requests[0]);

    OK(outcore_file_start_sync(file, &requests[0]));
    int outcome;
    while ((outcome = outcore_request_wait(requests[0], 0)) == -ETIMEDOUT) {
        NEED(strstr(outcore_error_text(context), "has not ended") != NULL);
    }
    OK(outcome);
    outcore_request_free(requests[0]);
    OK(outcore_file_close(file));
}

struct seen {
    int count, stop_at;
    char names[100];
};

static int see(void *argument, const char *name, const outcore_status *status) {
    struct seen *seen = argument;
    strcat(strcat(seen->names, name), status->is_directory ? "/ " : " ");
    return ++seen->count == seen->stop_at ? 42 : 0;
}

static void test_names(void) {
    outcore_status status;
    OK(outcore_mkdir(pool, "dir/sub", 0750));
    FAILS(EEXIST, "dir/sub exists", outcore_mkdir(pool, "dir/sub", 0750));
    outcore_file *file = opened("dir/one", O_WRONLY | O_CREAT);
    OK(outcore_file_write_at(file, 6, "end", 3));
    OK(outcore_file_close(file));
    OK(outcore_stat(pool, "dir/one", &status));
    NEED(status.length == 9 && !status.is_directory && status.stripe_count > 0);
    NEED(status.stripe_unit_bytes > 0 && status.handle > 0 && status.modified_ns > (uint64_t)1e18);
    OK(outcore_stat(pool, "dir", &status));
    NEED(status.is_directory && status.length == 0 && status.stripe_count == 0);
    FAILS(ENOENT, "none", outcore_stat(pool, "none", &status));

    OK(outcore_chmod(pool, "dir/one", 0640));
    OK(outcore_set_modified(pool, "dir/one", 1234567890123456789));
    OK(outcore_stat(pool, "dir/one", &status));
    NEED(status.mode == 0640 && status.modified_ns == 1234567890123456789);
    OK(outcore_chown(pool, "dir/one", UINT32_MAX, status.group));

    char value[10];
    OK(outcore_setxattr(pool, "dir/one", "unit", "m/s", 3));
    NEED(outcore_getxattr(pool, "dir/one", "unit", NULL, 0) == 3);
    NEED(outcore_getxattr(pool, "dir/one", "unit", value, sizeof value) == 3);
    NEED(memcmp(value, "m/s", 3) == 0);
    FAILS(ERANGE, "3 bytes", outcore_getxattr(pool, "dir/one", "unit", value, 2));
    FAILS(EINVAL, "NULL", outcore_getxattr(pool, "dir/one", "unit", NULL, 100));
    FAILS(EINVAL, "65536", outcore_setxattr(pool, "dir/one", "unit", value, SIZE_MAX));
    OK(outcore_setxattr(pool, "dir/one", "empty", NULL, 0));
    NEED(outcore_getxattr(pool, "dir/one", "empty", value, sizeof value) == 0);
    OK(outcore_removexattr(pool, "dir/one", "unit"));
    FAILS(ENOENT, "unit", outcore_getxattr(pool, "dir/one", "unit", value, sizeof value));

    outcore_hints *hints;
    OK(outcore_hints_new(context, &hints));
    OK(outcore_hints_set(hints, "striping_unit", "1"));
    OK(outcore_hints_set(hints, "striping_unit", "131072"));
    OK(outcore_hints_set(hints, "striping_factor", "1"));
    OK(outcore_hints_set(hints, "access_style", "read_once"));
    FAILS(EINVAL, "NULL", outcore_hints_set(hints, "cb_nodes", NULL));
    FAILS(EINVAL, "UTF-8", outcore_hints_set(hints, "\xff", "1"));
    OK(outcore_file_open(pool, "dir/two", O_RDWR | O_CREAT, 0666, hints, &file));
    outcore_hints_free(hints);
    OK(outcore_file_close(file));
    OK(outcore_stat(pool, "dir/two", &status));
    NEED(status.stripe_unit_bytes == 131072 && status.stripe_count == 1);
    NEED(outcore_getxattr(pool, "dir/two", "hint.access_style", value, sizeof value) == 9);

    struct seen seen = {0};
    OK(outcore_list(pool, "dir", see, &seen));
    NEED(seen.count == 3 && strcmp(seen.names, "one sub/ two ") == 0);
    seen = (struct seen){.stop_at = 2};
    NEED(outcore_list(pool, "dir", see, &seen) == 42 && seen.count == 2);
    FAILS(EINVAL, "dir/one", outcore_list(pool, "dir/one", see, &seen));
    FAILS(EINVAL, "NULL", outcore_list(pool, "dir", NULL, NULL));

    OK(outcore_rename(pool, "dir/one", "dir/two"));
    OK(outcore_stat(pool, "dir/two", &status));
    NEED(status.length == 9);
    FAILS(ENOENT, "dir/one", outcore_remove(pool, "dir/one"));
    FAILS(EEXIST, "", outcore_remove(pool, "dir"));
    OK(outcore_remove(pool, "dir/two"));
    OK(outcore_remove(pool, "dir/sub"));
    OK(outcore_remove(pool, "dir"));
}

static void test_arrays(void) {
    enum { ROWS = 50, COLUMNS = 30, BYTES = ROWS * COLUMNS * 4 };
    static int32_t numbers[ROWS][COLUMNS], found[ROWS][COLUMNS];
    const uint64_t shape[] = {ROWS, COLUMNS}, chunk[] = {16, 8}, zero[] = {0, 0};
    uint64_t has[2], its_chunk[2];
    outcore_array *array;
    outcore_request *requests[2];
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        numbers[i / COLUMNS][i % COLUMNS] = i;
    }
    for (const char *order = "CF"; *order; order++) {
        const char path[] = {'a', *order, 0};
        OK(outcore_array_create(pool, path, 2, shape, chunk, "int32", *order, &array));
        OK(outcore_array_read(array, zero, shape, found, BYTES));
        NEED(found[0][0] == 0 && found[ROWS - 1][COLUMNS - 1] == 0);
        OK(outcore_array_write(array, zero, shape, numbers, BYTES));
        OK(outcore_array_sync(array));
        OK(outcore_array_close(array));
        FAILS(EEXIST, "exists", outcore_array_create(pool, path, 2, shape, chunk, "int32", 'C', &array));

        OK(outcore_array_open(pool, path, O_RDWR, &array));
        NEED(outcore_array_dims(array) == 2 && strcmp(outcore_array_type(array), "int32") == 0);
        OK(outcore_array_shape(array, has, its_chunk));
        NEED(has[0] == ROWS && has[1] == COLUMNS && its_chunk[0] == 16 && its_chunk[1] == 8);
        OK(outcore_array_shape(array, NULL, NULL));
        /* A box that cuts chunks, written and read in the background. */
        const uint64_t start[] = {13, 5}, count[] = {20, 10};
        int32_t box[20][10], back[20][10];
        memset(box, 0xff, sizeof box);
        OK(outcore_array_start_write(array, start, count, box, sizeof box, &requests[0]));
        OK(outcore_array_start_read(array, start, count, back, sizeof back, &requests[1]));
        for (int i = 0; i < 2; i++) {
            OK(outcore_request_wait(requests[i], -1));
            outcore_request_free(requests[i]);
        }
        NEED(memcmp(box, back, sizeof box) == 0);
        OK(outcore_array_read(array, zero, shape, found, BYTES));
        for (int i = 0; i < ROWS; i++) {
            for (int j = 0; j < COLUMNS; j++) {
                int inside = i >= 13 && i < 33 && j >= 5 && j < 15;
                NEED(found[i][j] == (inside ? -1 : numbers[i][j]));
            }
        }
        const uint64_t outside[] = {40, 25};
        FAILS(EINVAL, "", outcore_array_read(array, outside, count, back, sizeof back));
        FAILS(EINVAL, "796 bytes", outcore_array_read(array, start, count, back, sizeof back - 4));
        FAILS(EINVAL, "NULL", outcore_array_read(array, NULL, count, back, sizeof back));
        FAILS(EINVAL, "NULL", outcore_array_read(array, start, count, NULL, sizeof back));
        OK(outcore_array_close(array));

        OK(outcore_array_open(pool, path, O_RDONLY, &array));
        FAILS(EROFS, "O_RDWR", outcore_array_write(array, start, count, box, sizeof box));
        OK(outcore_array_close(array));
    }
    FAILS(ENOENT, "none", outcore_array_open(pool, "none", O_RDONLY, &array));
    NEED(array == NULL);
    FAILS(EINVAL, "float64", outcore_array_create(pool, "x", 2, shape, chunk, "double", 'C', &array));
    FAILS(EINVAL, "'C'", outcore_array_create(pool, "x", 2, shape, chunk, "int32", 'D', &array));
    FAILS(EINVAL, "at least 1", outcore_array_create(pool, "x", 2, shape, zero, "int32", 'C', &array));
    FAILS(EINVAL, "dimension", outcore_array_create(pool, "x", 0, shape, zero, "int32", 'C', &array));
    FAILS(EINVAL, "O_RDWR", outcore_array_open(pool, "aC", O_WRONLY, &array));
    outcore_status status;
    FAILS(ENOENT, "x", outcore_stat(pool, "x", &status));
    OK(outcore_mkdir(pool, "plain", 0777));
    FAILS(ENOENT, "", outcore_array_open(pool, "plain", O_RDONLY, &array));
    outcore_file *file = opened("odd/zarr.json", O_RDWR | O_CREAT);
    OK(outcore_file_write_at(file, 0, "{\"a\": [", 7));
    FAILS(EBADMSG, "odd/zarr.json", outcore_array_open(pool, "odd", O_RDONLY, &array));
    OK(outcore_file_write_at(file, 0, "{}     ", 7));
    FAILS(EINVAL, "array of outcore", outcore_array_open(pool, "odd", O_RDONLY, &array));
    OK(outcore_file_close(file));
    OK(outcore_array_close(NULL));
    NEED(outcore_array_type(NULL) == NULL && outcore_array_dims(NULL) == -EINVAL);

    /* After the close of the pool. */
    OK(outcore_array_open(pool, "aC", O_RDONLY, &array));
    OK(outcore_pool_close(pool));
    pool = NULL;
    FAILS(EBADF, "closed", outcore_array_read(array, zero, shape, found, BYTES));
    OK(outcore_array_close(array));
}

/* Prints a box of an array that Python made, as bytes. */
static void test_print(void) {
    const uint64_t start[] = {1, 2}, count[] = {3, 2};
    unsigned char bytes[6 * 16];
    outcore_array *array;
    OK(outcore_array_open(pool, "made", O_RDONLY, &array));
    const char *type = outcore_array_type(array);
    uint64_t item = strcmp(type, "complex128") == 0 ? 16 : strcmp(type, "float64") == 0 ? 8 : 2;
    OK(outcore_array_read(array, start, count, bytes, 6 * item));
    OK(outcore_array_close(array));
    for (uint64_t i = 0; i < 6 * item; i++) {
        printf("%02x", bytes[i]);
    }
}

/* Arrays of Python that the library does not open. */
static void test_refused(void) {
    outcore_array *array;
    FAILS(EINVAL, "grows", outcore_array_open(pool, "growing", O_RDONLY, &array));
    FAILS(EINVAL, "incomplete (why)", outcore_array_open(pool, "half", O_RDONLY, &array));
    FAILS(EINVAL, "another", outcore_array_open(pool, "foreign", O_RDONLY, &array));
}

static void test_mistakes(void) {
    outcore_file *file;
    char byte;
    NEED(outcore_file_length(NULL) == -EINVAL);
    NEED(outcore_context_new(NULL) == -EINVAL);
    NEED(outcore_file_close(NULL) == 0 && outcore_pool_close(NULL) == 0);
    outcore_request_free(NULL);
    outcore_regions_free(NULL);
    outcore_hints_free(NULL);
    outcore_context_free(NULL);
    NEED(*outcore_error_text(NULL) != '\0');
    FAILS(EINVAL, "NULL", outcore_file_open(pool, "x", O_RDONLY, 0, NULL, NULL));
    FAILS(EINVAL, "NULL", outcore_file_open(pool, NULL, O_RDONLY, 0, NULL, &file));
    NEED(file == NULL);
    file = opened("file", O_RDWR | O_CREAT);
    FAILS(EINVAL, "NULL", outcore_file_read_at(file, 0, NULL, 1));
    FAILS(EINVAL, "NULL", outcore_stat(pool, "file", NULL));
    FAILS(EINVAL, "2^63", outcore_file_write_at(file, UINT64_MAX, &byte, 1));

    outcore_pool *other;
    FAILS(EINVAL, "outcore://HOST", outcore_pool_connect(context, "node1:7171", NULL, 0, &other));
    FAILS(EINVAL, "\"node2\" is no HOST:PORT",
          outcore_pool_connect(context, "outcore://node1:7171,node2", NULL, 0, &other));
    FAILS(EINVAL, "time", outcore_pool_connect(context, "outcore://127.0.0.1:1", NULL, -1, &other));
    FAILS(ENOENT, "/none", outcore_pool_connect(context, "outcore://127.0.0.1:1", "/none", 0, &other));
    int key = open("any.key", O_WRONLY | O_CREAT, 0600);
    NEED(dprintf(key, "outcore-pool-key-1 %064d\n", 7) > 0 && close(key) == 0);
    FAILS(EIO, "127.0.0.1:1", outcore_pool_connect(context, "outcore://127.0.0.1:1", "any.key", 0.1, &other));
    FAILS(EINVAL, "NULL", outcore_pool_embed(context, NULL, 1, 0, &other));
    const char *twice[] = {"new", "new"};
    FAILS(EINVAL, "check", outcore_pool_embed(context, twice, SIZE_MAX / 8, 0, &other));
    FAILS(EINVAL, "twice", outcore_pool_embed(context, twice, 2, 0, &other));

    /* A file of a pool that was closed. */
    OK(outcore_pool_close(pool));
    FAILS(EBADF, "closed", outcore_file_read_at(file, 0, &byte, 1));
    FAILS(EBADF, "closed", outcore_file_sync(file));
    OK(outcore_file_close(file));
    pool = NULL;
}

static void test_fork(void) {
    outcore_file *file = opened("file", O_RDWR | O_CREAT);
    OK(outcore_file_write_at(file, 0, "parent", 6));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        outcore_status status;
        char bytes[6];
        FAILS(ENOTCONN, "fork", outcore_file_read_at(file, 0, bytes, 6));
        FAILS(ENOTCONN, "fork", outcore_stat(pool, "file", &status));
        FAILS(ENOTCONN, "fork", outcore_file_close(file));
        FAILS(ENOTCONN, "fork", outcore_pool_close(pool));
        outcore_context_free(context);
        _exit(0);
    }
    int ended;
    NEED(waitpid(child, &ended, 0) == child && ended == 0);
    char bytes[6];
    NEED(outcore_file_read_at(file, 0, bytes, 6) == 6 && memcmp(bytes, "parent", 6) == 0);
    OK(outcore_file_close(file));
}

enum { THREADS = 4, PARTS = 25 };
static outcore_file *shared;

static void *work(void *argument) {
    int number = *(int *)argument;
    unsigned char bytes[1000];
    char missing[20], text[20];
    sprintf(missing, "none-%d", number);
    sprintf(text, "%s", missing);
    for (int part = 0; part < PARTS; part++) {
        uint64_t at = (uint64_t)(part * THREADS + number) * sizeof bytes;
        memset(bytes, number + 1, sizeof bytes);
        OK(outcore_file_write_at(shared, at, bytes, sizeof bytes));
        /* The text of an error is that of this thread. */
        outcore_status status;
        FAILS(ENOENT, text, outcore_stat(pool, missing, &status));
        memset(bytes, 0, sizeof bytes);
        NEED(outcore_file_read_at(shared, at, bytes, sizeof bytes) == sizeof bytes);
        NEED(bytes[0] == number + 1 && bytes[999] == number + 1);
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[THREADS];
    int numbers[THREADS];
    shared = opened("shared", O_RDWR | O_CREAT);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        NEED(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        NEED(pthread_join(threads[i], NULL) == 0);
    }
    NEED(outcore_file_length(shared) == THREADS * PARTS * 1000);
    OK(outcore_file_close(shared));
}

static void test_versions(void) {
    NEED(outcore_interface() == OUTCORE_INTERFACE);
    printf("%s\n", outcore_version());
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"shorter", test_shorter},   {"read_only", test_read_only}, {"arrays", test_arrays},
        {"print", test_print},       {"refused", test_refused},   {"links", test_links},         {"vectored", test_vectored},
        {"files", test_files},       {"regions", test_regions}, {"requests", test_requests},
        {"names", test_names},       {"mistakes", test_mistakes}, {"fork", test_fork},
        {"threads", test_threads},   {"versions", test_versions}, {"reserve", test_reserve},
        {"signs", test_signs},       {"sign_kept", test_sign_kept}, {"locks", test_locks},
        {"taken_over", test_taken_over},
    };
    OK(outcore_context_new(&context));
    if (argc < 3) {
        return 2;
    }
    if (strncmp(argv[2], "outcore", 7) == 0) {
        OK(outcore_pool_connect(context, argv[2], NULL, 0, &pool));
    } else {
        OK(outcore_pool_embed(context, (const char *const *)argv + 2, (size_t)argc - 2, 0, &pool));
    }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (strcmp(tests[i].name, argv[1]) == 0) {
            tests[i].run();
            OK(outcore_pool_close(pool));
            outcore_context_free(context);
            return 0;
        }
    }
    return 2;
}
