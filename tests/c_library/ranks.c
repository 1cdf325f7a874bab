/* One process of a parallel program that writes or reads an array or a file of a pool by one call of all processes. Messages
 * between the processes go through sockets: process 0 has one to each of the others.
 *
 *     ranks URL RANK SIZE SOCKETS VERB PATH BOXES DATA [FAULT]
 *
 * VERB is array-write, array-read, file-write or file-read. BOXES has the first indices and the lengths of each box, such as
 * "0,0:4,5;8,0:2,5" for two, or "-" for none. DATA is the file with the elements, or for a read the file to make. FAULT
 * names the fault: "short" (a byte of memory is missing), "read-only" (the handle), "leaves" (before the first message),
 * "silent" (after the last message), "hangs" (the same, but it stays alive), "astray" (another path), "null" (no handle),
 * "forks" (a child of the process makes the call).
 */

#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <outcore.h>

#define MOST_BOXES 1000
#define MOST_DIMS 4
#define MOST_RANKS 16

static int sockets[MOST_RANKS];
static uint64_t rank, size;
static const char *fault;

static int move(int is_sent, int to, char *memory, uint64_t bytes) {
    while (bytes > 0) {
        /* A process that has left is an error, not a signal. */
        ssize_t moved = is_sent ? send(to, memory, bytes, MSG_NOSIGNAL) : read(to, memory, bytes);
        if (moved <= 0) {
            return 7;
        }
        memory += moved;
        bytes -= (uint64_t)moved;
    }
    return 0;
}

static int broadcast(void *argument, void *memory, uint64_t bytes, uint64_t root) {
    int failed = 0;
    if (argument != sockets || strcmp(fault, "leaves") == 0) {
        _exit(0);
    }
    if (rank == 0) {
        failed = root == 0 ? 0 : move(0, sockets[root], memory, bytes);
        for (uint64_t other = 1; other < size && failed == 0; other++) {
            failed = other == root ? 0 : move(1, sockets[other], memory, bytes);
        }
    } else {
        failed = move(rank == root, sockets[0], memory, bytes);
    }
    /* The arguments of the last process are those that all wait for. */
    if (root + 1 == size && strcmp(fault, "silent") == 0) {
        _exit(0);
    }
    if (root + 1 == size && strcmp(fault, "hangs") == 0) {
        pause();
    }
    return failed;
}

static uint64_t starts[MOST_BOXES * MOST_DIMS], counts[MOST_BOXES * MOST_DIMS];

/* Returns the number of elements of the boxes, and stores that of the boxes. */
static uint64_t parse(char *text, size_t *boxes) {
    uint64_t items = 0;
    size_t at[2] = {0, 0};
    *boxes = 0;
    for (char *box = strcmp(text, "-") == 0 ? NULL : strtok(text, ";"); box != NULL; box = strtok(NULL, ";")) {
        uint64_t *places[2] = {starts, counts}, product = 1;
        char *number = box;
        for (int part = 0; part < 2; part++) {
            do {
                places[part][at[part]] = strtoull(number, &number, 10);
                product *= part == 1 ? places[part][at[part]] : 1;
                at[part]++;
            } while (*number++ == ',');
        }
        items += product;
        (*boxes)++;
    }
    return items;
}

int main(int argc, char **argv) {
    outcore_context *context;
    outcore_pool *pool;
    outcore_exchange done;
    size_t boxes;
    int result = 2;
    if (argc < 9 || outcore_context_new(&context) != 0) {
        return 2;
    }
    rank = strtoull(argv[2], NULL, 10);
    size = strtoull(argv[3], NULL, 10);
    char *socket = argv[4];
    for (uint64_t i = rank == 0 ? 1 : 0; i < (rank == 0 ? size : 1); i++, socket++) {
        sockets[i] = (int)strtol(socket, &socket, 10);
    }
    fault = argc > 9 ? argv[9] : "";
    int is_array = strncmp(argv[5], "array", 5) == 0, is_write = strstr(argv[5], "write") != NULL;
    int flags = is_write && strcmp(fault, "read-only") != 0 ? O_RDWR : O_RDONLY;
    char path[1000];
    snprintf(path, sizeof path, "%s%s", argv[6], strcmp(fault, "astray") == 0 ? "-2" : "");
    const outcore_group group = {rank, size, broadcast, sockets, strcmp(fault, "no time") == 0 ? -1 : 2};

    if (outcore_pool_connect(context, argv[1], NULL, 0, &pool) != 0) {
        fprintf(stderr, "%s\n", outcore_error_text(context));
        return 1;
    }
    uint64_t bytes = parse(argv[7], &boxes);
    outcore_array *array = NULL;
    outcore_file *file = NULL;
    outcore_regions *regions = NULL;
    if (is_array) {
        result = outcore_array_open(pool, path, flags, &array);
        bytes *= sizeof(double);
    } else {
        result = outcore_file_open(pool, path, flags, 0, NULL, &file);
        if (result == 0) {
            result = outcore_regions_list(context, boxes, starts, counts, &regions);
        }
    }
    if (result != 0) {
        fprintf(stderr, "%s\n", outcore_error_text(context));
        return 1;
    }
    char *memory = malloc(bytes + 1);
    FILE *data = fopen(argv[8], is_write ? "rb" : "wb");
    if (is_write && fread(memory, 1, bytes, data) != bytes) {
        return 1;
    }
    uint64_t given = bytes - (strcmp(fault, "short") == 0);
    if (strcmp(fault, "null") == 0) {
        outcore_array_close(array);
        outcore_file_close(file);
        array = NULL;
        file = NULL;
    }
    if (strcmp(fault, "forks") == 0) {
        pid_t child = fork();
        if (child != 0) {
            int ended = 1;
            _exit(waitpid(child, &ended, 0) == child && ended == 0 ? 0 : 1);
        }
    }
    if (is_array && is_write) {
        result = outcore_array_write_all(array, &group, boxes, starts, counts, memory, given, &done);
    } else if (is_array) {
        result = outcore_array_read_all(array, &group, boxes, starts, counts, memory, given, &done);
    } else if (is_write) {
        result = outcore_file_write_all(file, &group, regions, memory, given, &done);
    } else {
        result = outcore_file_read_all(file, &group, regions, memory, given, &done);
    }
    if (result != 0) {
        printf("%d %s\n", -result, outcore_error_text(context));
    } else {
        printf("0 %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", done.messages, done.shares, done.bytes,
               done.direct_bytes);
        if (!is_write && fwrite(memory, 1, bytes, data) != bytes) {
            return 1;
        }
    }
    if (strcmp(fault, "forks") == 0) {
        fflush(stdout);
        _exit(0); /* The handles are those of the parent. */
    }
    fclose(data);
    free(memory);
    outcore_regions_free(regions);
    outcore_array_close(array);
    outcore_file_close(file);
    outcore_pool_close(pool);
    outcore_context_free(context);
    return 0;
}
