/* A matrix in a pool, written by rows in the background and read by columns.
 *
 *     cc columns.c $(pkg-config --cflags --libs outcore) -o columns
 *     ./columns outcore://node1:7171           # a served pool; its key is in the file that $OUTCORE_KEY names
 *     ./columns /disk1/pool /disk2/pool        # an embedded one, on two disks of this machine
 */

#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <outcore.h>

enum { ROWS = 1000, COLUMNS = 300, ROWS_AT_ONCE = 100, REQUESTS = ROWS / ROWS_AT_ONCE };

static outcore_context *context;

/* Ends the program with the reason if a call failed. */
static int64_t check(const char *call, int64_t result) {
    if (result < 0) {
        fprintf(stderr, "%s: %s (%s)\n", call, outcore_error_text(context), strerror((int)-result));
        exit(1);
    }
    return result;
}
#define CHECK(call) check(#call, call)

static outcore_pool *open_pool(int count, char **names) {
    outcore_pool *pool;
    if (strncmp(names[0], "outcore", 7) == 0) {
        CHECK(outcore_pool_connect(context, names[0], NULL, 0, &pool));
    } else {
        CHECK(outcore_pool_embed(context, (const char *const *)names, (size_t)count, 0, &pool));
    }
    return pool;
}

/* Writes rows in the background, each request from its own part of the matrix. */
static void write_rows(outcore_file *file, const double *matrix) {
    outcore_request *requests[REQUESTS];
    const uint64_t bytes = ROWS_AT_ONCE * COLUMNS * sizeof(double);
    int event = eventfd(0, 0);
    for (int i = 0; i < REQUESTS; i++) {
        outcore_regions *rows;
        CHECK(outcore_regions_contiguous(context, i * bytes, bytes, &rows));
        CHECK(outcore_file_start_write(
            file, rows, matrix + i * ROWS_AT_ONCE * COLUMNS, bytes, &requests[i]));
        CHECK(outcore_request_notify(requests[i], event));
        outcore_regions_free(rows);
    }
    /* A program with an event loop watches the descriptor there, and computes meanwhile. */
    for (uint64_t ended = 0; ended < REQUESTS;) {
        struct pollfd watched = {.fd = event, .events = POLLIN};
        uint64_t more;
        if (poll(&watched, 1, -1) == 1 && read(event, &more, sizeof more) == sizeof more) {
            ended += more;
        }
    }
    for (int i = 0; i < REQUESTS; i++) {
        CHECK(outcore_request_wait(requests[i], 0));
        outcore_request_free(requests[i]);
    }
    close(event);
}

/* Returns the sum of a column. Its elements are groups of 8 bytes, a row apart: one message to each server. */
static double sum_of_column(outcore_file *file, int column) {
    static double elements[ROWS];
    const uint64_t item = sizeof(double);
    outcore_regions *regions;
    CHECK(outcore_regions_strided(context, column * item, 0, item, ROWS, COLUMNS * item, 0, &regions));
    CHECK(outcore_file_read(file, regions, elements, sizeof elements));
    outcore_regions_free(regions);
    double sum = 0;
    for (int i = 0; i < ROWS; i++) {
        sum += elements[i];
    }
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s URL | DIRECTORY...\n", argv[0]);
        return 2;
    }
    CHECK(outcore_context_new(&context));
    outcore_pool *pool = open_pool(argc - 1, argv + 1);

    outcore_hints *hints;
    CHECK(outcore_hints_new(context, &hints));
    CHECK(outcore_hints_set(hints, "striping_unit", "65536"));
    outcore_file *file;
    CHECK(outcore_file_open(pool, "sim/matrix.f8", O_RDWR | O_CREAT | O_TRUNC, 0666, hints, &file));
    outcore_hints_free(hints);

    double *matrix = malloc(sizeof(double) * ROWS * COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        matrix[i] = i % COLUMNS;
    }
    write_rows(file, matrix);
    free(matrix);
    CHECK(outcore_file_sync(file)); /* it now survives a power loss */

    printf("%lld bytes, sum of column 7: %g\n", (long long)CHECK(outcore_file_length(file)),
           sum_of_column(file, 7));
    outcore_file_close(file);
    outcore_pool_close(pool);
    outcore_context_free(context);
    return 0;
}
